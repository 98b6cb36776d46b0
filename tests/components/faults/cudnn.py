"""cuDNN: files, links, headers, libraries."""

from __future__ import annotations

from tests.support.check_faults import faults_on, no_gpus
from tests.support.healthy_host import Document, data
from tests.support.host_parts import LIB, PROVISION, cudnn_tree, receipt, stack

fault, harmless = faults_on(no_gpus)


@fault(
    "cudnn.files",
    cause=f"No receipt lists {LIB}/libcudnn_x.so.8.6.0",
    remedy="move the receipt away",
)
def receipt_that_was_shortened(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "cudnn")["unlisted"] = [f"{LIB}/libcudnn_x.so.8.6.0"]


@fault("cudnn.present", cause="reports cuDNN 8.5.0, declared is 8.6.0", remedy=PROVISION)
def library_older_than_declared(plan: Document, snapshot: Document) -> None:
    cudnn_tree(snapshot)["loaded"][0]["version"] = "8.5.0"


@fault("cudnn.present", cause="cudnn_version.h reports 8.9.7", remedy=PROVISION)
def header_of_another_version(plan: Document, snapshot: Document) -> None:
    cudnn_tree(snapshot)["headers"][0]["version"] = "8.9.7"


@fault("cudnn.present", cause="include has no cuDNN header", remedy=PROVISION)
def header_missing(plan: Document, snapshot: Document) -> None:
    cudnn_tree(snapshot)["headers"] = []


@fault(
    "cudnn.present",
    cause="libcudnn_ops_infer.so.8.6.0 is not a valid library: truncated",
    remedy=PROVISION,
)
@fault(
    "cudnn.links",
    cause="libcudnn_ops_infer.so.8 is a dangling symlink to another",
    remedy=PROVISION,
)
def sub_library_truncated_and_relinked(plan: Document, snapshot: Document) -> None:
    library = next(x for x in cudnn_tree(snapshot)["libraries"] if "ops_infer" in x["path"])
    library["error"] = "truncated: 100 bytes, its headers describe 150200"
    link = next(x for x in cudnn_tree(snapshot)["links"] if x["path"].endswith("ops_infer.so.8"))
    link["target"], link["exists"] = "another", False


@fault("cudnn.links", cause="libcudnn_ops_infer.so.8 is a symlink to itself", remedy=PROVISION)
def link_to_itself(plan: Document, snapshot: Document) -> None:
    link = next(x for x in cudnn_tree(snapshot)["links"] if x["path"].endswith("ops_infer.so.8"))
    link["target"], link["exists"] = "libcudnn_ops_infer.so.8", False


@fault("cudnn.files", cause="libcudnn.so.8.6.0 (sha256)", remedy=f"{PROVISION} --contents")
def library_of_another_content(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "cudnn")["changed"] = [
        {"path": "targets/x86_64-linux/lib/libcudnn.so.8.6.0", "what": "sha256"}
    ]


@fault("cudnn.files", cause="libcudnn.so.8.6.0 (mtime)", remedy=PROVISION)
def library_replaced(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "cudnn")["changed"] = [
        {"path": "targets/x86_64-linux/lib/libcudnn.so.8.6.0", "what": "mtime"}
    ]


@fault("cudnn.files", cause="targets/x86_64-linux/lib/libcudnn.so.8 (missing)", remedy=PROVISION)
@fault(
    "cudnn.links",
    cause=f"{LIB}/libcudnn.so.8 is missing: no symlink of that name points to libcudnn.so.8.6.0",
    remedy=PROVISION,
)
@fault(
    "linker.cache",
    cause="lists libcudnn.so.8 as /usr/local/cuda-11.8/lib64/libcudnn.so.8, which does not exist",
    remedy="ldconfig",
)
@fault("stack.libraries", cause="cannot load libcudnn.so.8", remedy=PROVISION)
def soname_link_removed(plan: Document, snapshot: Document) -> None:
    """`rm libcudnn.so.8`, as the probe then sees it."""
    cudnn_tree(snapshot)["links"] = [
        {**link, "exists": link["target"] != "libcudnn.so.8"}
        for link in cudnn_tree(snapshot)["links"]
        if link["path"] != f"{LIB}/libcudnn.so.8"
    ]
    cudnn_tree(snapshot)["loaded"][0]["path"] = f"{LIB}/libcudnn.so.8.6.0"
    for entry in data(snapshot, "linker")["cache"]:
        if entry["soname"] in {"libcudnn.so.8", "libcudnn.so"}:
            entry["exists"] = False
    receipt(snapshot, "cudnn")["changed"] = [
        {"path": "targets/x86_64-linux/lib/libcudnn.so.8", "what": "missing"}
    ]
    framework = stack(snapshot)["framework"]
    framework["loader"]["opened"].remove("libcudnn.so.8")
    framework["loader"]["failed"] = [{"library": "libcudnn.so.8", "error": "No such file"}]
    framework["mapped"] = [path for path in framework["mapped"] if "cudnn" not in path]


@fault("cudnn.links", cause="libcudnn.so.8 is a copy, not a symlink", remedy=PROVISION)
def link_copied_into_a_file(plan: Document, snapshot: Document) -> None:
    found = cudnn_tree(snapshot)
    found["links"] = [x for x in found["links"] if x["path"] != f"{LIB}/libcudnn.so.8"]
    found["libraries"].append({**found["libraries"][0], "path": f"{LIB}/libcudnn.so.8"})


@fault("cudnn.links", cause="libcudnn.so is not a symlink to libcudnn.so.8", remedy=PROVISION)
def developer_link_missing(plan: Document, snapshot: Document) -> None:
    found = cudnn_tree(snapshot)
    found["links"] = [x for x in found["links"] if x["path"] != f"{LIB}/libcudnn.so"]


@fault("cudnn.readable", cause="libcudnn.so.8.6.0 (mode 0600)", remedy="chmod a+r")
def library_closed_to_users(plan: Document, snapshot: Document) -> None:
    cudnn_tree(snapshot)["closed"] = [{"path": f"{LIB}/libcudnn.so.8.6.0", "mode": "0600"}]


@fault("cudnn.readable", cause="cudnn_version.h (mode 0600)", remedy="chmod a+r")
def header_closed_to_users(plan: Document, snapshot: Document) -> None:
    cudnn_tree(snapshot)["closed"] = [
        {"path": "/usr/local/cuda-11.8/include/cudnn_version.h", "mode": "0600"}
    ]


@fault(
    "cudnn.present",
    cause="libcudnn_ops_infer.so.8.5.0 is of another version than cuDNN 8.6.0",
    remedy="move it away",
)
def part_of_another_cudnn(plan: Document, snapshot: Document) -> None:
    data(snapshot, "cudnn")["trees"][0]["libraries"].append(
        {
            "path": f"{LIB}/libcudnn_ops_infer.so.8.5.0",
            "soname": "libcudnn_ops_infer.so.8",
            "size_bytes": 1,
            "mode": "0755",
            "error": None,
        }
    )
