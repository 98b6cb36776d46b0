"""Each check catches the break that it is for, names cause and remedy; the others stay healthy.

A row breaks the healthy pair in one way and lists every check that then is not as before.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest

from gpufleet.checks import CHECKS, judge
from tests.checks import test_checks_compute, test_checks_driver, test_checks_gpu
from tests.support.healthy_host import (
    Break,
    Document,
    Row,
    data,
    document,
    registering,
    verdicts,
    with_cards,
)

LIB = "/usr/local/cuda-11.8/targets/x86_64-linux/lib"
PROVISION = "./gpufleet provision --limit gpu01"

FAULTS: list[Row] = []
fault = registering(FAULTS)


def tree(snapshot: Document) -> Document:
    found: Document = data(snapshot, "cudnn")["trees"][0]
    return found


def stack(snapshot: Document) -> Document:
    found: Document = data(snapshot, "stacks")["stacks"][0]
    return found


def receipt(snapshot: Document, kind: str) -> Document:
    return next(r for r in data(snapshot, "receipts")["receipts"] if r["kind"] == kind)


def with_gpus(plan: Document, snapshot: Document, count: int = 2) -> None:
    """Turn the healthy pair into a healthy host that has GPUs."""
    with_cards(plan, snapshot, count)
    place = "/job:localhost/replica:0/task:0/device:GPU:"
    with_gpus_in_containers(plan, snapshot, count)
    run = data(snapshot, "containers")["run"]
    stack(snapshot)["framework"]["matmul"] = [
        {"requested": f"/GPU:{n}", "device": f"{place}{n}", "n": 2048, "wrong": 0, "first_s": 0.5,
         "steady_s": 0.001, "tflops": 17.1, "error": None} for n in range(count)]
    run["framework"]["matmul"] = deepcopy(stack(snapshot)["framework"]["matmul"])


def with_gpus_in_containers(plan: Document, snapshot: Document, count: int) -> None:
    """The same for containers."""
    plan["containers"]["gpus"] = count
    there = data(snapshot, "containers")
    there["cdi"] = [{"path": "/run/cdi/nvidia.yaml", "driver_version": "535.261.03",
                     "devices": [*map(str, range(count)), "all"], "error": None}]
    there["run"]["gpus"] = [{"node": f"/dev/nvidia{n}", "error": None} for n in range(count)]
    there["run"]["reload"] = {"error": None, "gpus": deepcopy(there["run"]["gpus"])}


# -- the host -----------------------------------------------------------------------------------


@fault(host__probe=("Probing 'driver' hung", "state D"))
def driver_section_hung(plan: Document, snapshot: Document) -> None:
    snapshot["sections"]["driver"] = {
        "state": "hung", "seconds": 20, "error": "no answer within 20 s", "data": None}


@fault(host__probe=("The snapshot is of gpu02, the plan is for gpu01", "same host"))
def snapshot_of_another_host(plan: Document, snapshot: Document) -> None:
    snapshot["host"] = "gpu02"


@fault(host__disk=("No space is left in /tmp (3 MiB, 4718592 files)", "df -h"))
def disk_full(plan: Document, snapshot: Document) -> None:
    data(snapshot, "disks")["free_mib"]["/tmp"] = 3


@fault(host__disk=("No space is left in / (74132 MiB, 0 files)", "df -i"))
def disk_without_inodes(plan: Document, snapshot: Document) -> None:
    data(snapshot, "disks")["free_files"]["/"] = 0


@fault(host__disk=("/var/lib/gpufleet cannot be written", "kernel log"))
def disk_mounted_read_only_after_an_error(plan: Document, snapshot: Document) -> None:
    data(snapshot, "disks")["readonly"] = ["/var/lib/gpufleet"]


@fault(host__plan=("gpu_stacks[0].tensorflow: There is no TensorFlow 9.9", "the newest"))
def wish_refused(plan: Document, snapshot: Document) -> None:
    plan["problems"] = [{"code": "unknown-release", "message": "There is no TensorFlow 9.9.",
                         "where": "gpu_stacks[0].tensorflow", "remedy": "Declare the newest."}]


@fault(install__complete=("installation of toolkit 11.8 in /usr/local/cuda-11.8 was started",
                          PROVISION))
def killed_while_installing(plan: Document, snapshot: Document) -> None:
    data(snapshot, "receipts")["journal"] = [
        {"schema": 1, "kind": "toolkit", "id": "11.8", "path": "/usr/local/cuda-11.8",
         "version": "11.8.0", "state": "installing", "fresh": True, "started": "now"}]


@fault(install__complete=("stack old in /opt/old", "./gpufleet remove --stack old --limit gpu01"))
def killed_while_installing_what_nobody_declares_any_more(
    plan: Document, snapshot: Document
) -> None:
    data(snapshot, "receipts")["journal"] = [
        {"schema": 1, "kind": "stack", "id": "old", "path": "/opt/old", "version": "1",
         "state": "installing", "fresh": True, "started": "now"}]


@fault(install__complete=("removal of stack old in /opt/old was started", PROVISION))
def killed_while_removing(plan: Document, snapshot: Document) -> None:
    data(snapshot, "receipts")["journal"] = [
        {"schema": 1, "kind": "stack", "id": "old", "path": "/opt/old", "version": "1",
         "state": "removing", "fresh": False, "started": "now"}]


@fault(install__complete=("installation of cudnn 8.0-5", f"gpu_prune: true, then {PROVISION}"))
def killed_while_installing_a_cudnn_that_nobody_declares_any_more(
    plan: Document, snapshot: Document
) -> None:
    data(snapshot, "receipts")["journal"] = [
        {"schema": 1, "kind": "cudnn", "id": "8.0-5", "path": "/usr/local/cuda-8.0",
         "version": "5.1", "state": "installing", "fresh": True, "started": "now"}]


@fault(host__probe=("schema 2, this release reads 1", "new snapshot"))
def snapshot_of_another_schema(plan: Document, snapshot: Document) -> None:
    snapshot["schema"] = 2


@fault(toolkit__files=("names the path /opt/elsewhere, planned is /usr/local/cuda-11.8", PROVISION))
def receipt_of_another_place(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "toolkit")["path"] = "/opt/elsewhere"


@fault(toolkit__files=("lists no file", PROVISION))
def receipt_of_nothing(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "toolkit").update(files=0, changed=[])


@fault(install__complete=("toolkit-11.8.json cannot be read", PROVISION))
def receipt_unreadable(plan: Document, snapshot: Document) -> None:
    data(snapshot, "receipts")["unreadable"] = [
        {"path": "/var/lib/gpufleet/receipts/toolkit-11.8.json", "error": "Expecting value"}]


@fault(toolkit__files=("The receipt of toolkit 11.8 names the version 11.8.1, planned is 11.8.0",
                       PROVISION))
def receipt_of_another_release(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "toolkit")["version"] = "11.8.1"


@fault(cudnn__files=(f"No receipt lists {LIB}/libcudnn_x.so.8.6.0", "move the receipt away"))
def receipt_that_was_shortened(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "cudnn")["unlisted"] = [f"{LIB}/libcudnn_x.so.8.6.0"]


@fault(install__owned=("/usr/local/cuda-11.8/bin/nvcc (belongs to user 1000)", "chown root:root"))
def file_of_another_owner(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "toolkit")["exposed"] = [
        {"path": "/usr/local/cuda-11.8/bin/nvcc", "what": "belongs to user 1000"}]


# -- toolkits -------------------------------------------------------------------------------------


@fault(toolkit__present=("cuda_runtime_api.h reports 12.5", PROVISION))
def header_of_another_toolkit(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"][0]["headers"][1]["version"] = "12.5"


@fault(toolkit__present=("/usr/local/cuda-11.8 does not exist", PROVISION),
       toolkit__readable=("/usr/local/cuda-11.8 does not exist", PROVISION))
def toolkit_tree_gone(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"] = []


@fault(toolkit__present=("version.json reports 11.7.1", PROVISION))
def toolkit_of_another_release(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"][0]["version"] = "11.7.1"


@fault(toolkit__present=("nvcc reports 11.5.119", PROVISION))
def nvcc_of_another_release(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"][0]["nvcc"] = "11.5.119"


@fault(toolkit__present=("libcudart is 11.7.99", PROVISION))
def cudart_of_another_release(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"][0]["cudart"] = ["11.7.99"]


@fault(toolkit__files=("1 of its 4112 files changed under /usr/local/cuda-11.8:"
                       " bin/ptxas (size)", PROVISION))
def toolkit_file_truncated(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "toolkit")["changed"] = [{"path": "bin/ptxas", "what": "size"}]


@fault(toolkit__files=("cuda-11.8: no patch is applied, patch2.run is planned", PROVISION))
def toolkit_without_its_patch(plan: Document, snapshot: Document) -> None:
    plan["toolkits"][0]["patches"] = [{"file": "patch2.run", "checksum": "sha256:ab"}]


@fault(toolkit__files=("toolkit 11.8 has no receipt", PROVISION))
def toolkit_not_ours(plan: Document, snapshot: Document) -> None:
    receipts = data(snapshot, "receipts")
    receipts["receipts"] = [r for r in receipts["receipts"] if r["kind"] != "toolkit"]


@fault(toolkit__default_link=("points to /usr/local/cuda-12.4, declared is /usr/local/cuda-11.8",
                              PROVISION))
def default_moved(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["default"].update(
        target="cuda-12.4", realpath="/usr/local/cuda-12.4")


@fault(toolkit__default_link=("is a dangling symlink to cuda-11.8", PROVISION))
def default_dangles(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["default"]["realpath"] = None


@fault(toolkit__default_link=("is a directory, not a symlink", PROVISION))
def default_is_a_directory(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["default"].update(state="directory", target=None, realpath=None)


# -- cuDNN ----------------------------------------------------------------------------------------


@fault(cudnn__present=("reports cuDNN 8.5.0, declared is 8.6.0", PROVISION))
def library_older_than_declared(plan: Document, snapshot: Document) -> None:
    tree(snapshot)["loaded"][0]["version"] = "8.5.0"


@fault(cudnn__present=("cudnn_version.h reports 8.9.7", PROVISION))
def header_of_another_version(plan: Document, snapshot: Document) -> None:
    tree(snapshot)["headers"][0]["version"] = "8.9.7"


@fault(cudnn__present=("include has no cuDNN header", PROVISION))
def header_missing(plan: Document, snapshot: Document) -> None:
    tree(snapshot)["headers"] = []


@fault(cudnn__present=("libcudnn_ops_infer.so.8.6.0 is not a valid library: truncated", PROVISION),
       cudnn__links=("libcudnn_ops_infer.so.8 is a dangling symlink to another", PROVISION))
def sub_library_truncated_and_relinked(plan: Document, snapshot: Document) -> None:
    library = next(x for x in tree(snapshot)["libraries"] if "ops_infer" in x["path"])
    library["error"] = "truncated: 100 bytes, its headers describe 150200"
    link = next(x for x in tree(snapshot)["links"] if x["path"].endswith("ops_infer.so.8"))
    link["target"], link["exists"] = "another", False


@fault(cudnn__files=("libcudnn.so.8.6.0 (mtime)", PROVISION))
def library_replaced(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "cudnn")["changed"] = [
        {"path": "targets/x86_64-linux/lib/libcudnn.so.8.6.0", "what": "mtime"}]


@fault(
    cudnn__files=("targets/x86_64-linux/lib/libcudnn.so.8 (missing)", PROVISION),
    cudnn__links=(f"{LIB}/libcudnn.so.8 is missing: no symlink of that name points to"
                  " libcudnn.so.8.6.0", PROVISION),
    linker__cache=("lists libcudnn.so.8 as /usr/local/cuda-11.8/lib64/libcudnn.so.8, which does"
                   " not exist", "ldconfig"),
    stack__libraries=("cannot load libcudnn.so.8", PROVISION),
)
def soname_link_removed(plan: Document, snapshot: Document) -> None:
    """`rm libcudnn.so.8`, as the probe then sees it."""
    tree(snapshot)["links"] = [
        {**link, "exists": link["target"] != "libcudnn.so.8"} for link in tree(snapshot)["links"]
        if link["path"] != f"{LIB}/libcudnn.so.8"]
    tree(snapshot)["loaded"][0]["path"] = f"{LIB}/libcudnn.so.8.6.0"
    for entry in data(snapshot, "linker")["cache"]:
        if entry["soname"] in {"libcudnn.so.8", "libcudnn.so"}:
            entry["exists"] = False
    receipt(snapshot, "cudnn")["changed"] = [
        {"path": "targets/x86_64-linux/lib/libcudnn.so.8", "what": "missing"}]
    framework = stack(snapshot)["framework"]
    framework["loader"]["opened"].remove("libcudnn.so.8")
    framework["loader"]["failed"] = [{"library": "libcudnn.so.8", "error": "No such file"}]
    framework["mapped"] = [path for path in framework["mapped"] if "cudnn" not in path]


@fault(cudnn__links=("libcudnn.so.8 is a copy, not a symlink", PROVISION))
def link_copied_into_a_file(plan: Document, snapshot: Document) -> None:
    found = tree(snapshot)
    found["links"] = [x for x in found["links"] if x["path"] != f"{LIB}/libcudnn.so.8"]
    found["libraries"].append({**found["libraries"][0], "path": f"{LIB}/libcudnn.so.8"})


@fault(cudnn__links=("libcudnn.so is not a symlink to libcudnn.so.8", PROVISION))
def developer_link_missing(plan: Document, snapshot: Document) -> None:
    found = tree(snapshot)
    found["links"] = [x for x in found["links"] if x["path"] != f"{LIB}/libcudnn.so"]


@fault(cudnn__readable=("libcudnn.so.8.6.0 (mode 0600)", "chmod a+r"))
def library_closed_to_users(plan: Document, snapshot: Document) -> None:
    tree(snapshot)["closed"] = [{"path": f"{LIB}/libcudnn.so.8.6.0", "mode": "0600"}]


@fault(cudnn__readable=("cudnn_version.h (mode 0600)", "chmod a+r"))
def header_closed_to_users(plan: Document, snapshot: Document) -> None:
    tree(snapshot)["closed"] = [
        {"path": "/usr/local/cuda-11.8/include/cudnn_version.h", "mode": "0600"}]


@fault(toolkit__readable=("/usr/local/cuda-11.8 (mode 0700)", "chmod a+rx"))
def toolkit_closed_to_users(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"][0]["closed"] = [
        {"path": "/usr/local/cuda-11.8", "mode": "0700"}]


@fault(stack__readable=("/opt/gpufleet (mode 0700)", "chmod a+rx"))
def stacks_closed_to_users(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["closed"] = [{"path": "/opt/gpufleet", "mode": "0700"}]


# -- the linker -----------------------------------------------------------------------------------


@fault(linker__registered=("gpufleet-cuda.conf is missing", PROVISION))
def our_file_removed(plan: Document, snapshot: Document) -> None:
    linker = data(snapshot, "linker")
    linker["files"] = [f for f in linker["files"] if "gpufleet" not in f["path"]]


@fault(linker__registered=("lists /opt/old instead of /usr/local/cuda-11.8/lib64", PROVISION))
def our_file_edited(plan: Document, snapshot: Document) -> None:
    data(snapshot, "linker")["files"][1]["directories"] = ["/opt/old"]


@fault(linker__cache=("does not list libcudart.so.11.0", "ldconfig"))
def ldconfig_never_ran(plan: Document, snapshot: Document) -> None:
    data(snapshot, "linker")["cache"] = []


@fault(linker__cache=("loads libcublas.so.11 from /opt/other/libcublas.so.11", "ldconfig"))
def another_provider_first(plan: Document, snapshot: Document) -> None:
    other = "/opt/other/libcublas.so.11"
    data(snapshot, "linker")["cache"].insert(
        0, {"soname": "libcublas.so.11", "path": other, "exists": True, "realpath": other})


@fault(linker__cache=("lists libcublas.so.11 first as /opt/gone/libcublas.so.11", "ldconfig"))
def stale_provider_first(plan: Document, snapshot: Document) -> None:
    gone = "/opt/gone/libcublas.so.11"
    data(snapshot, "linker")["cache"].insert(
        0, {"soname": "libcublas.so.11", "path": gone, "exists": False, "realpath": gone})


@fault(linker__cache=("/etc/ld.so.cache is damaged", "ldconfig"))
def cache_damaged(plan: Document, snapshot: Document) -> None:
    data(snapshot, "linker").update(cache=[], cache_error="/etc/ld.so.cache is damaged")


@fault(linker__cache=("the next ldconfig makes the linker load those", "/etc/ld.so.conf.d"))
def another_provider_next_time(plan: Document, snapshot: Document) -> None:
    other = "/opt/other/libcublas.so.11"
    data(snapshot, "linker")["offered"] = [
        {"soname": "libcublas.so.11", "path": other, "realpath": other}]


def test_a_toolkit_behind_a_link_is_its_own(plan: Document, snapshot: Document) -> None:
    there = "/data/cuda-11.8"
    data(snapshot, "toolkits")["trees"][0]["realpath"] = there
    for entry in data(snapshot, "linker")["cache"]:
        entry["realpath"] = entry["realpath"].replace("/usr/local/cuda-11.8", there)
    framework = stack(snapshot)["framework"]
    for row in (framework, *data(snapshot, "receipts")["receipts"]):
        key = "mapped" if row is framework else "libraries"
        row[key] = [path.replace("/usr/local/cuda-11.8", there) for path in row[key]]
    found = verdicts(plan, snapshot)
    assert (found["linker.cache"], found["stack.mapped"]) == ("PASS", "PASS")


# -- a login's environment ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "variables", "offers"),
    [
        ("A login of deploy", {"LD_LIBRARY_PATH": "/opt/bbb"}, {"/opt/bbb": ["libcudnn.so.8"]}),
        ("systemd, for its services,", {"LD_LIBRARY_PATH": "/opt/cuda-9.0/lib64"}, {}),
        ("/etc/ld.so.preload", {"LD_PRELOAD": "/opt/x.so"}, {"/opt/x.so": ["libcudart.so.11.0"]}),
    ],
)
def test_other_ways_to_disturb(
    plan: Document, snapshot: Document, where: str, variables: Document, offers: Document
) -> None:
    data(snapshot, "environment").update(
        others=[{"where": where, "variables": variables}], offers=offers)
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["environment.login"]["verdict"] == "FAIL"
    assert found["environment.login"]["cause"].startswith(f"{where} sets LD_")


def test_a_preloaded_library_of_others_is_no_fault(plan: Document, snapshot: Document) -> None:
    data(snapshot, "environment")["login"]["LD_PRELOAD"] = "/usr/lib/libcurl.so.4"
    assert verdicts(plan, snapshot)["environment.login"] == "PASS"


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("LD_LIBRARY_PATH", "/opt/cuda-12.4/lib64:/opt/x", "/opt/cuda-12.4/lib64"),
        ("LD_LIBRARY_PATH", "/usr/local/cuda-11.8/lib64/stubs", "stub"),
        ("LD_PRELOAD", "/opt/libcublas.so.11", "before those of every stack"),
        ("PYTHONPATH", "/opt/site", "modules"),
        ("PYTHONHOME", "/opt/python", "modules"),
    ],
)
def test_a_login_that_disturbs(
    plan: Document, snapshot: Document, name: str, value: str, word: str
) -> None:
    data(snapshot, "environment")["login"][name] = value
    data(snapshot, "environment")["offers"] = {"/opt/libcublas.so.11": ["libcublas.so.11"]}
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["environment.login"]["verdict"] == "FAIL"
    assert f"{name}={value}" in found["environment.login"]["cause"]
    assert word in found["environment.login"]["cause"]
    assert "/etc/profile.d" in found["environment.login"]["remedy"]


def test_a_login_may_name_the_only_toolkit_and_other_libraries(
    plan: Document, snapshot: Document
) -> None:
    login = data(snapshot, "environment")["login"]
    login["LD_LIBRARY_PATH"] = "/usr/local/cuda/lib64:/opt/mpi/lib"
    login["CUDA_HOME"] = "/usr/local/cuda"
    assert verdicts(plan, snapshot)["environment.login"] == "PASS"


def test_cuda_visible_devices_counts_only_where_gpus_are_declared(
    plan: Document, snapshot: Document
) -> None:
    data(snapshot, "environment")["login"]["CUDA_VISIBLE_DEVICES"] = "0"
    assert verdicts(plan, snapshot)["environment.login"] == "PASS"
    with_gpus(plan, snapshot)
    assert verdicts(plan, snapshot)["environment.login"] == "FAIL"
    data(snapshot, "environment")["login"]["CUDA_VISIBLE_DEVICES"] = "0,1"
    assert verdicts(plan, snapshot)["environment.login"] == "PASS"


@pytest.mark.parametrize(
    ("visible", "shown"),
    [("", 0), ("-1", 0), ("NoDevFiles", 0), ("1", 1), ("0,0", 1), ("0,2,1", 1), ("7", 0), ("x", 0)],
)
def test_cuda_reads_up_to_the_first_that_is_no_gpu(
    plan: Document, snapshot: Document, visible: str, shown: int
) -> None:
    with_gpus(plan, snapshot)
    data(snapshot, "environment")["login"]["CUDA_VISIBLE_DEVICES"] = visible
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert f"it shows {shown} of the 2 declared GPUs" in found["environment.login"]["cause"]


@pytest.mark.parametrize(
    ("variables", "job", "verdict"),
    [({"CUDA_VISIBLE_DEVICES": "1"}, True, "PASS"),
     ({"CUDA_VISIBLE_DEVICES": ""}, True, "PASS"),
     ({"CUDA_VISIBLE_DEVICES": "GPU-1f"}, True, "PASS"),
     ({"LD_LIBRARY_PATH": "/opt/cuda/lib64"}, True, "PASS"),
     ({"CUDA_VISIBLE_DEVICES": "2"}, True, "FAIL"),
     ({"LD_LIBRARY_PATH": "/opt/cuda/lib64/stubs"}, True, "FAIL"),
     ({"CUDA_VISIBLE_DEVICES": "1"}, False, "FAIL")],
)  # fmt: skip
def test_what_one_job_chooses_is_its_own_affair(
    plan: Document, snapshot: Document, variables: dict[str, str], job: bool, verdict: str
) -> None:
    with_gpus(plan, snapshot)
    data(snapshot, "environment")["others"].append(
        {"where": "/etc/cron.d/train", "variables": variables, "job": job})
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["environment.login"]["verdict"] == verdict
    assert "/etc/cron.d/train sets " in found["environment.login"]["evidence"]
    assert verdict == "PASS" or "from /etc/cron.d/train" in found["environment.login"]["remedy"]


def test_the_file_that_sets_it_is_named(plan: Document, snapshot: Document) -> None:
    environment = data(snapshot, "environment")
    environment["login"]["PYTHONPATH"] = "/opt/site"
    environment["mentions"] = {"PYTHONPATH": ["/etc/profile.d/site.sh"]}
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["environment.login"]["remedy"].endswith("from /etc/profile.d/site.sh")


@fault(toolkit__readable=("/usr/local is mounted noexec", "remount,exec /usr/local"))
def toolkits_mounted_noexec(plan: Document, snapshot: Document) -> None:
    data(snapshot, "disks")["noexec"] = ["/tmp", "/usr/local"]


@fault(stack__readable=("/opt/gpufleet/stacks is mounted noexec", "remount,exec"))
def stacks_mounted_noexec(plan: Document, snapshot: Document) -> None:
    data(snapshot, "disks")["noexec"] = ["/opt/gpufleet/stacks"]


@fault(environment__login=("PYTHONPATH=/opt/site", "remove it"))
def python_path_set(plan: Document, snapshot: Document) -> None:
    data(snapshot, "environment")["login"]["PYTHONPATH"] = "/opt/site"


@fault(environment__files=("1 of its 2 files changed under /: opt/gpufleet/modulefiles/cuda/11.8",
                           PROVISION))
def modulefile_edited(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "environment")["changed"] = [
        {"path": "opt/gpufleet/modulefiles/cuda/11.8", "what": "size"}]


@fault(environment__files=("by an earlier plan: /opt/gpufleet/modulefiles/cuda/11.8",
                           PROVISION))
def modulefile_of_an_earlier_plan(plan: Document, snapshot: Document) -> None:
    plan["environment"][0]["text"] += "prepend-path PATH /usr/local/cuda-11.8/bin\n"


@fault(environment__files=("by an earlier plan: /etc/profile.d/gpufleet-cuda.sh", PROVISION))
def profile_no_longer_declared(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "environment")["texts"]["/etc/profile.d/gpufleet-cuda.sh"] = {
        "sha256": "ab", "for": "toolkit 11.8"}


@fault(environment__files=("environment files has no receipt", PROVISION))
def environment_never_written(plan: Document, snapshot: Document) -> None:
    receipts = data(snapshot, "receipts")["receipts"]
    receipts.remove(receipt(snapshot, "environment"))


# -- cards and driver -----------------------------------------------------------------------------


@fault(gpu__count=("1 NVIDIA GPUs are in the host, declared is gpu_expect: {count: 0}",
                   "inventory"))
def card_that_is_not_declared(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["pci"] = [
        {"address": "0000:01:00.0", "vendor": "0x10de", "device": "0x2330", "class": "0x030200",
         "driver": None}]


def test_a_host_with_gpus_can_be_healthy(plan: Document, snapshot: Document) -> None:
    with_gpus(plan, snapshot)
    assert set(verdicts(plan, snapshot).values()) == {"PASS"}


def test_a_gpu_that_fell_off_the_bus(plan: Document, snapshot: Document) -> None:
    with_gpus(plan, snapshot)
    data(snapshot, "gpus")["pci"].pop()
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert "1 of 2 declared GPUs are not on the PCI bus" in found["gpu.count"]["cause"]
    assert "Xid 79" in found["gpu.count"]["remedy"]


def test_a_result_from_the_cpu_is_no_proof_of_a_gpu(plan: Document, snapshot: Document) -> None:
    with_gpus(plan, snapshot)
    entry = stack(snapshot)["framework"]["matmul"][1]
    entry["device"] = "/job:localhost/replica:0/task:0/device:CPU:0"
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert "on /GPU:1 was computed on" in found["stack.matmul"]["cause"]
    assert "no result of GPU 1 of 2" in found["stack.gpu"]["cause"]
    assert {n for n, c in found.items() if c["verdict"] == "FAIL"} == {"stack.matmul", "stack.gpu"}


@pytest.mark.parametrize("device", ["/device:XLA_GPU:0", "/device:GPU:01x", "", None])
def test_a_device_of_another_name_is_no_gpu(
    plan: Document, snapshot: Document, device: str | None
) -> None:
    with_gpus(plan, snapshot, 1)
    stack(snapshot)["framework"]["matmul"][0]["device"] = device
    assert verdicts(plan, snapshot)["stack.gpu"] == "FAIL"


# -- stacks ---------------------------------------------------------------------------------------


@fault(stack__release=("bin/activate of tensorflow-2.13.1 does not source", PROVISION))
def activation_of_before(plan: Document, snapshot: Document) -> None:
    for receipt in data(snapshot, "receipts")["receipts"]:
        receipt.pop("activation", None)


@fault(stack__release=("has tensorflow 2.15.0, planned is 2.13.1", PROVISION))
def upgraded_by_pip(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["packages"] = {**stack(snapshot)["packages"], "tensorflow": "2.15.0"}


@fault(stack__release=("numpy 1.24.3 -> 2.1.0", PROVISION))
def a_package_of_the_lock_changed(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["packages"] = {**stack(snapshot)["packages"], "numpy": "2.1.0"}


@fault()
def packages_installed_beside_the_lock_are_nobody_s_fault(
    plan: Document, snapshot: Document
) -> None:
    stack(snapshot)["packages"] = {**stack(snapshot)["packages"], "pandas": "2.2.0"}


@fault(stack__release=("installed from another lock than the inventory's", PROVISION))
def the_lock_beside_the_inventory_changed(plan: Document, snapshot: Document) -> None:
    plan["stacks"][0]["lock_sha256"] = "0" * 64


@fault(stack__release=("runs Python 3.9.2, planned is 3.11", PROVISION))
def another_python(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["python"] = "3.9.2"


@fault(stack__files=("sitecustomize.pth (missing)", PROVISION))
def binding_removed(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "stack")["changed"] = [{"path": "sitecustomize.pth", "what": "missing"}]


@fault(stack__build=("is a CPU-only build", PROVISION))
def cpu_build(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["build"].update(cuda=None, cudnn=None, cuda_build=False)


@fault(stack__build=("was built for CUDA 12.2, planned is 11.8", PROVISION))
def build_for_another_cuda(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["build"]["cuda"] = "12.2"


@fault(stack__build=("was built for cuDNN 9, planned is 8", PROVISION))
def build_for_another_cudnn(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["build"]["cudnn"] = "9"


@fault(stack__libraries=("It is unknown whether TensorFlow of tensorflow-2.13.1 finds"
                         " libcufft.so.10", "GPU"))
def library_that_the_loader_did_not_try(plan: Document, snapshot: Document) -> None:
    framework = stack(snapshot)["framework"]
    framework["loader"]["opened"].remove("libcufft.so.10")
    framework["mapped"] = [path for path in framework["mapped"] if "cufft" not in path]


@fault(stack__mapped=("from outside /usr/local/cuda-11.8: /opt/other/libcublas.so.11", PROVISION))
def library_of_another_toolkit_mapped(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["mapped"].append("/opt/other/libcublas.so.11")


@fault(stack__mapped=("from outside", PROVISION))
def library_of_a_toolkit_with_a_longer_name(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["mapped"].append("/usr/local/cuda-11.8-old/lib64/libcufft.so.10")


@fault(stack__matmul=("gave 3 wrong rows of 512", "out of service"))
def wrong_numbers(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["matmul"][0]["wrong"] = 3


@fault(stack__matmul=("gave unchecked wrong", "out of service"))
def unchecked_numbers(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["matmul"][0]["wrong"] = None


@fault(stack__matmul=("sum of all devices' results is wrong", "devices"))
def wrong_sum(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["tower_sum"]["wrong"] = 1


@fault(
    stack__matmul=("does not run: ImportError: Descriptors cannot be created", PROVISION),
    stack__build=("stopped before this step", PROVISION),
    stack__libraries=("stopped before this step", PROVISION),
    stack__mapped=("stopped before this step", PROVISION),
)
def import_fails(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"].update(
        state="failed", error="ImportError: Descriptors cannot be created", version=None,
        build=None, loader=None, devices=[], matmul=[], tower_sum=None, mapped=[])


@fault(
    stack__matmul=("hung: no answer", "load"),
    stack__build=("hung: no answer", "load"),
    stack__libraries=("hung: no answer", "load"),
    stack__mapped=("hung: no answer", "load"),
)
def framework_hangs(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"].update(
        state="hung", error="no answer within 96 s", version=None, build=None, loader=None,
        devices=[], matmul=[], tower_sum=None, mapped=[])


def test_a_snapshot_without_framework_runs_proves_no_stack(
    plan: Document, snapshot: Document
) -> None:
    snapshot["mode"], stack(snapshot)["framework"] = "facts", None
    data(snapshot, "compute")["runs"] = []
    found = verdicts(plan, snapshot)
    unjudged = {name for name, verdict in found.items() if verdict == "INCONCLUSIVE"}
    assert unjudged == {
        "stack.build", "stack.libraries", "stack.mapped", "stack.matmul", "stack.hello",
        "stack.local-devices", "stack.gpu-device-name", "stack.device-placement", "toolkit.nvrtc"}


def test_libraries_that_a_build_links_are_proven_by_being_mapped(
    plan: Document, snapshot: Document
) -> None:
    """Up to 1.13 TensorFlow has no loader to ask; its import maps them all."""
    stack(snapshot)["framework"]["loader"] = {"ran": False, "opened": [], "failed": []}
    for name in ("libcublas.so.11", "libcusparse.so.11"):
        assert any(f"{name}." in path for path in stack(snapshot)["framework"]["mapped"])
    # Real file names carry the soname, but for libcudart.so.11.0 (libcudart.so.11.8.89).
    stack(snapshot)["framework"]["mapped"].append(f"{LIB}/libcudart.so.11.0.1")
    assert verdicts(plan, snapshot)["stack.libraries"] == "PASS"


def test_the_drivers_libraries_matter_only_where_gpus_are_declared(
    plan: Document, snapshot: Document
) -> None:
    stack(snapshot)["framework"]["loader"]["failed"] = [
        {"library": "libcuda.so.1", "error": "No such file"},
        {"library": "libnvinfer.so.8", "error": "No such file"}]
    assert verdicts(plan, snapshot)["stack.libraries"] == "PASS"
    with_gpus(plan, snapshot)
    assert verdicts(plan, snapshot)["stack.libraries"] == "FAIL"


@pytest.mark.parametrize(("version", "source", "verdict"), [
    ("11.8.20220929", "version.json", "PASS"),
    ("11.8.0", "version.json", "PASS"),
    ("11.8.1", "version.json", "FAIL"),
    ("11.8.89", "version.txt", "PASS"),
    (None, "version.json", "FAIL"),
    (None, None, "PASS"),
])
def test_what_tells_a_toolkits_release(
    plan: Document, snapshot: Document, version: str, source: str, verdict: str
) -> None:
    """version.json may carry a date; between 11.0 and 11.4 there is no such file at all."""
    data(snapshot, "toolkits")["trees"][0].update(version=version, version_source=source)
    assert verdicts(plan, snapshot)["toolkit.present"] == verdict


# -- nothing but what is declared -----------------------------------------------------------------


@fault(cudnn__present=("libcudnn_ops_infer.so.8.5.0 is of another version than cuDNN 8.6.0",
                       "move it away"))
def part_of_another_cudnn(plan: Document, snapshot: Document) -> None:
    data(snapshot, "cudnn")["trees"][0]["libraries"].append(
        {"path": f"{LIB}/libcudnn_ops_infer.so.8.5.0", "soname": "libcudnn_ops_infer.so.8",
         "size_bytes": 1, "mode": "0755", "error": None})


@fault(linker__providers=("/usr/lib/x86_64-linux-gnu also provides libcublas.so.11", "dpkg -S"))
def a_second_provider(plan: Document, snapshot: Document) -> None:
    there = "/usr/lib/x86_64-linux-gnu/libcublas.so.11"
    data(snapshot, "linker")["providers"].append(
        {"soname": "libcublas.so.11", "path": there, "realpath": f"{there}.4.1"})


@fault(stack__python=("does not start: libpython3.11.so.1.0: cannot open", PROVISION))
def interpreter_gone(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["start"].update(
        python=None, prefix=None, error="libpython3.11.so.1.0: cannot open")


@fault(stack__python=("searches for modules in /srv/site-packages", "a .pth file"))
def another_site_first(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["start"]["strange"] = ["/srv/site-packages"]


@fault(stack__python=("neither its own nor the system's: /opt/conda/lib/libstdc++.so.6.0.33",
                      "ld.so.conf.d"))
def library_of_conda(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["strangers"] = ["/opt/conda/lib/libstdc++.so.6.0.33"]


@fault(stack__python=("starts Python 3.12.1, planned is 3.11", PROVISION))
def interpreter_exchanged(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["start"]["python"] = "3.12.1"


@fault(stack__libraries=("cannot be loaded with all its symbols: libx.so", PROVISION))
def symbol_missing(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["binding"]["error"] = "libx.so: undefined symbol: cublasCreate_v2"


@fault(stack__mapped=("no receipt of its own toolkit", "move it away"))
def mapped_file_that_no_receipt_knows(plan: Document, snapshot: Document) -> None:
    mapped = stack(snapshot)["framework"]["mapped"]
    mapped[0] = f"{LIB}/glibc-hwcaps/x86-64-v2/libcublas.so.11"


@fault(stack__mapped=("(deleted)", "move it away"))
def mapped_file_that_was_replaced(plan: Document, snapshot: Document) -> None:
    mapped = stack(snapshot)["framework"]["mapped"]
    mapped[0] += " (deleted)"


@fault(stack__mapped=("libcudnn.so.7.6.5, which was installed for something else", PROVISION))
def mapped_file_of_another_cudnn(plan: Document, snapshot: Document) -> None:
    receipts = data(snapshot, "receipts")["receipts"]
    other = f"{LIB}/libcudnn.so.7.6.5"
    own = next(row for row in receipts if row["kind"] == "cudnn")
    receipts.append({**own, "id": "11.8-7", "libraries": [other]})
    stack(snapshot)["framework"]["mapped"].append(other)


# -- containers -----------------------------------------------------------------------------------


@fault(containers__runtime=("daemon.json cannot be read: Expecting value", "correct /etc/docker"))
def daemon_json_is_damaged(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["daemon"]["error"] = "Expecting value: line 3 column 5"


@fault(containers__runtime=("does not register the runtime nvidia", PROVISION))
def runtime_is_not_registered(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["daemon"]["runtimes"] = {}


@fault(containers__runtime=("he running Docker does not know the runtime nvidia",
                            PROVISION))
def docker_was_not_told(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["engine"]["runtimes"] = ["runc"]


@fault(containers__runtime=("1.17.8-1 is not held", PROVISION))
def toolkit_is_not_held(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["toolkit"]["held"] = False


@fault(containers__runtime=("could not be run: docker run: no space left", "journalctl -u docker"),
       containers__matmul=("could not be run: docker run: no space left", "journalctl -u docker"))
def no_container_starts(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"].update(
        state="failed", error="docker run: no space left", framework=None)


@fault(containers__matmul=("in a container on /CPU:0 gave 3 wrong rows", "out of service"))
def wrong_numbers_in_a_container(plan: Document, snapshot: Document) -> None:
    data(snapshot, "containers")["run"]["framework"]["matmul"][0]["wrong"] = 3


@fault(containers__matmul=("The image theirs:1 is not on the host", "docker pull theirs:1"))
def image_is_not_there(plan: Document, snapshot: Document) -> None:
    plan["containers"]["image"] = "theirs:1"
    data(snapshot, "containers")["run"]["image"] = {
        "name": "theirs:1", "present": False, "framework": None}


# -- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("break_it", "caught"), [row[1:] for row in FAULTS],
                         ids=[row[0] for row in FAULTS])
def test_a_fault_is_caught_by_its_checks_alone(
    break_it: Break, caught: dict[str, tuple[str, str]]
) -> None:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    before = verdicts(plan, snapshot)
    break_it(plan, snapshot)
    after = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert {name for name in before if after[name]["verdict"] != before[name]} == set(caught)
    for name, (cause, remedy) in caught.items():
        assert cause in after[name]["cause"]
        assert remedy in after[name]["remedy"]


def test_a_library_mapped_under_another_name_is_a_stranger(
    plan: Document, snapshot: Document
) -> None:
    framework = stack(snapshot)["framework"]
    framework["mapped"] = [path for path in framework["mapped"] if "libcudart" not in path]
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["stack.mapped"]["verdict"] == "FAIL"
    assert "opened libcudart.so.11.0" in found["stack.mapped"]["cause"]


@pytest.mark.parametrize(("check", "place"), [
    ("stack.python", lambda snapshot: stack(snapshot)["start"]),
    ("stack.libraries", lambda snapshot: stack(snapshot)["binding"]),
    ("cudnn.present", lambda snapshot: tree(snapshot)["loaded"][0])])
def test_what_gave_no_answer_hung_and_is_not_called_broken(
    plan: Document, snapshot: Document, check: str, place: Callable[[Document], Document]
) -> None:
    place(snapshot)["error"] = "no answer within 4 s"
    found = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}[check]
    assert (found["verdict"], "gave no answer" in found["cause"]) == ("HUNG", True)
    assert "state D" in found["remedy"]


def test_a_compiler_that_gave_no_answer_hung(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"][0].update(nvcc=None, nvcc_error="no answer within 4 s")
    assert verdicts(plan, snapshot)["toolkit.present"] == "HUNG"


def test_every_check_is_proven_by_a_fault() -> None:
    # Those of driver and GPUs are broken in tables of their own, the others above and in
    # test_containers.py.
    others = {name for table in (test_checks_driver, test_checks_gpu, test_checks_compute)
              for row in table.FAULTS for name in row[2]} | {
        "driver.pending", "stack.gpu", "containers.cdi", "containers.gpus", "containers.reload"}
    assert {name for row in FAULTS for name in row[2]} | others == set(CHECKS)


@pytest.mark.parametrize(("what", "verdict"), [
    ("/usr/local", "INCONCLUSIVE"), ("/usr/local/cuda-11.8/lib64", "INCONCLUSIVE"),
    ("/var/lib/gpufleet/receipts", "INCONCLUSIVE"), ("/proc/1/environ", "PASS"),
    ("/usr/local/cuda-9.0", "PASS"), ("/boot/grub/grub.cfg", "PASS"), ("holders", "PASS"),
])
def test_what_was_not_seen_matters_where_the_plan_speaks_about_it(
    plan: Document, snapshot: Document, what: str, verdict: str
) -> None:
    snapshot["unseen"] = [{"section": "toolkits", "what": what, "because": "no right"}]
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    probed = found.pop("host.probe")
    assert probed["verdict"] == verdict
    assert f"{what} (no right)" in probed["evidence"]
    assert {check["verdict"] for check in found.values()} == {"PASS", "NOT-DECLARED"}
