"""Toolkits: files, links, compilers."""

from __future__ import annotations

from gpufleet.on_host.constants import REFUSED
from tests.support.check_faults import faults_on, no_gpus
from tests.support.healthy_host import Document, data
from tests.support.host_parts import PROVISION, receipt

fault, harmless = faults_on(no_gpus)


@fault(
    "toolkit.files",
    cause="names the path /opt/elsewhere, planned is /usr/local/cuda-11.8",
    remedy=PROVISION,
)
def receipt_of_another_place(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "toolkit")["path"] = "/opt/elsewhere"


@fault("toolkit.files", cause="lists no file", remedy=PROVISION)
def receipt_of_nothing(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "toolkit").update(files=0, changed=[])


@fault(
    "toolkit.files",
    cause="The receipt of toolkit 11.8 names the version 11.8.1, planned is 11.8.0",
    remedy=PROVISION,
)
def receipt_of_another_release(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "toolkit")["version"] = "11.8.1"


@fault("toolkit.present", cause="cuda_runtime_api.h reports 12.5", remedy=PROVISION)
def header_of_another_toolkit(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"][0]["headers"][1]["version"] = "12.5"


@fault("toolkit.present", cause="/usr/local/cuda-11.8 does not exist", remedy=PROVISION)
@fault(
    "toolkit.readable",
    verdict="INCONCLUSIVE",
    cause="/usr/local/cuda-11.8 does not exist",
    remedy=PROVISION,
)
def toolkit_tree_gone(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"] = []


@fault("toolkit.present", cause="version.json reports 11.7.1", remedy=PROVISION)
def toolkit_of_another_release(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"][0]["version"] = "11.7.1"


@fault("toolkit.present", cause="nvcc reports 11.5.119", remedy=PROVISION)
def nvcc_of_another_release(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"][0]["nvcc"] = "11.5.119"


@fault("toolkit.present", cause="libcudart is 11.7.99", remedy=PROVISION)
def cudart_of_another_release(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"][0]["cudart"] = ["11.7.99"]


@fault(
    "toolkit.files",
    cause="bin/ptxas (size)",
    remedy="on the host: chattr -i /usr/local/cuda-11.8/bin/ptxas (the attribute immutable keeps"
    f" root from changing them); then {PROVISION}",
)
def changed_file_is_immutable(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "toolkit")["changed"] = [{"path": "bin/ptxas", "what": "size"}]
    data(snapshot, "receipts")["obstacles"] = [
        {"path": "/usr/local/cuda-11.8/bin/ptxas", "what": "immutable", "source": None}
    ]


@fault(
    "toolkit.files",
    cause="bin/ptxas (size)",
    remedy="/dev/sdb1 is mounted read-only at /usr/local/cuda-11.8: unmount it",
)
def changed_file_is_on_a_read_only_mount(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "toolkit")["changed"] = [{"path": "bin/ptxas", "what": "size"}]
    data(snapshot, "receipts")["obstacles"] = [
        {"path": "/usr/local/cuda-11.8", "what": "read-only", "source": "/dev/sdb1"}
    ]


@harmless
def toolkit_that_its_owner_locked(plan: Document, snapshot: Document) -> None:
    data(snapshot, "receipts")["obstacles"] = [
        {"path": "/usr/local/cuda-11.8", "what": "immutable", "source": None}
    ]


@fault(
    "toolkit.files",
    cause="1 of its 4112 files changed under /usr/local/cuda-11.8: bin/ptxas (size)",
    remedy=PROVISION,
)
def toolkit_file_truncated(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "toolkit")["changed"] = [{"path": "bin/ptxas", "what": "size"}]


@fault(
    "toolkit.files", cause="cuda-11.8: no patch is applied, patch2.run is planned", remedy=PROVISION
)
def toolkit_without_its_patch(plan: Document, snapshot: Document) -> None:
    plan["toolkits"][0]["patches"] = [{"file": "patch2.run", "checksum": "sha256:ab"}]


@fault("toolkit.files", cause="toolkit 11.8 has no receipt", remedy=PROVISION)
def toolkit_not_ours(plan: Document, snapshot: Document) -> None:
    receipts = data(snapshot, "receipts")
    receipts["receipts"] = [r for r in receipts["receipts"] if r["kind"] != "toolkit"]


@fault(
    "toolkit.default-link",
    cause="points to /usr/local/cuda-12.4, declared is /usr/local/cuda-11.8",
    remedy=PROVISION,
)
def default_moved(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["default"].update(
        target="cuda-12.4", realpath="/usr/local/cuda-12.4"
    )


@fault("toolkit.default-link", cause="is a dangling symlink to cuda-11.8", remedy=PROVISION)
def default_dangles(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["default"]["realpath"] = None


@fault("toolkit.default-link", cause="is a directory, not a symlink", remedy=PROVISION)
def default_is_a_directory(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["default"].update(state="directory", target=None, realpath=None)


@fault("toolkit.readable", cause="/usr/local/cuda-11.8 (mode 0700)", remedy="chmod a+rx")
def toolkit_closed_to_users(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"][0]["closed"] = [
        {"path": "/usr/local/cuda-11.8", "mode": "0700"}
    ]


@fault("toolkit.readable", cause="/usr/local is mounted noexec", remedy="remount,exec /usr/local")
def toolkits_mounted_noexec(plan: Document, snapshot: Document) -> None:
    data(snapshot, "disks")["noexec"] = ["/tmp", "/usr/local"]


@fault(
    "toolkit.present",
    verdict="INCONCLUSIVE",
    cause="/usr/local/cuda-11.8/bin/nvcc belongs to alice (1000)",
    remedy="chown -h root:root",
)
def nvcc_that_a_user_owns(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"][0].update(
        nvcc=None,
        nvcc_error=(
            "/usr/local/cuda-11.8/bin/nvcc belongs to alice (1000); every account can write"
            f" /usr/local/cuda-11.8: {REFUSED}"
        ),
    )


@fault(
    "toolkit.present",
    remedy=PROVISION,
    cause="libcufft.so.10.9 cannot be loaded: it is for aarch64, this host is x86_64",
)
def library_of_another_machine(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"][0]["unfit"] = [
        {
            "path": "/usr/local/cuda-11.8/lib64/libcufft.so.10.9",
            "error": "it is for aarch64, this host is x86_64",
        }
    ]
