"""Stacks: the virtual environment, its Python and packages, what TensorFlow maps and computes."""

from __future__ import annotations

from tests.support.check_faults import faults_on, no_gpus
from tests.support.healthy_host import Document, data
from tests.support.host_parts import LIB, PROVISION, receipt, stack

fault, harmless = faults_on(no_gpus)


@fault("stack.readable", cause="/opt/gpufleet (mode 0700)", remedy="chmod a+rx")
def stacks_closed_to_users(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["closed"] = [{"path": "/opt/gpufleet", "mode": "0700"}]


@fault(
    "stack.readable",
    remedy="namei -l",
    cause="tensorflow-2.13.1 works for root alone, not for other users: libstdc++.so.6: cannot",
)
def library_of_the_system_closed_to_users(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["binding"]["ordinary"] = "Traceback:\nlibstdc++.so.6: cannot open shared object"


@fault(
    "stack.python",
    cause="sets CUDA_VISIBLE_DEVICES=, LD_PRELOAD=/x.so at every start",
    remedy="remove that from /etc/python3.11/sitecustomize.py",
)
def start_that_hides_the_gpus(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["start"]["sets"] = {"LD_PRELOAD": "/x.so", "CUDA_VISIBLE_DEVICES": ""}


@fault("stack.readable", cause="/opt/gpufleet/stacks is mounted noexec", remedy="remount,exec")
def stacks_mounted_noexec(plan: Document, snapshot: Document) -> None:
    data(snapshot, "disks")["noexec"] = ["/opt/gpufleet/stacks"]


@fault("stack.release", cause="bin/activate of tensorflow-2.13.1 does not source", remedy=PROVISION)
def activation_of_before(plan: Document, snapshot: Document) -> None:
    for each in data(snapshot, "receipts")["receipts"]:
        each.pop("activation", None)


@fault("stack.release", cause="has tensorflow 2.15.0, planned is 2.13.1", remedy=PROVISION)
def upgraded_by_pip(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["packages"] = {**stack(snapshot)["packages"], "tensorflow": "2.15.0"}


@fault("stack.release", cause="numpy 1.24.3 -> 2.1.0", remedy=PROVISION)
def a_package_of_the_lock_changed(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["packages"] = {**stack(snapshot)["packages"], "numpy": "2.1.0"}


@harmless
def packages_installed_beside_the_lock_are_nobody_s_fault(
    plan: Document, snapshot: Document
) -> None:
    stack(snapshot)["packages"] = {**stack(snapshot)["packages"], "pandas": "2.2.0"}


@fault("stack.release", cause="installed from another lock than the inventory's", remedy=PROVISION)
def the_lock_beside_the_inventory_changed(plan: Document, snapshot: Document) -> None:
    plan["stacks"][0]["lock_sha256"] = "0" * 64


@fault("stack.release", cause="runs Python 3.9.2, planned is 3.11", remedy=PROVISION)
def another_python(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["python"] = "3.9.2"


@fault("stack.files", cause="sitecustomize.pth (missing)", remedy=PROVISION)
def binding_removed(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "stack")["changed"] = [{"path": "sitecustomize.pth", "what": "missing"}]


@fault("stack.files", cause="numpy-1.24.3.dist-info/RECORD (size)", remedy=PROVISION)
def package_record_emptied(plan: Document, snapshot: Document) -> None:
    receipt(snapshot, "stack")["changed"] = [
        {"path": "lib/python3.11/site-packages/numpy-1.24.3.dist-info/RECORD", "what": "size"}
    ]


@fault("stack.build", cause="is a CPU-only build", remedy=PROVISION)
def cpu_build(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["build"].update(cuda=None, cudnn=None, cuda_build=False)


@fault("stack.build", cause="was built for CUDA 12.2, planned is 11.8", remedy=PROVISION)
def build_for_another_cuda(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["build"]["cuda"] = "12.2"


@fault("stack.build", cause="was built for cuDNN 9, planned is 8", remedy=PROVISION)
def build_for_another_cudnn(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["build"]["cudnn"] = "9"


@fault(
    "stack.libraries",
    verdict="INCONCLUSIVE",
    cause="It is unknown whether TensorFlow of tensorflow-2.13.1 finds libcufft.so.10",
    remedy="GPU",
)
def library_that_the_loader_did_not_try(plan: Document, snapshot: Document) -> None:
    framework = stack(snapshot)["framework"]
    framework["loader"]["opened"].remove("libcufft.so.10")
    framework["mapped"] = [path for path in framework["mapped"] if "cufft" not in path]


@fault(
    "stack.mapped",
    cause="from outside /usr/local/cuda-11.8: /opt/other/libcublas.so.11",
    remedy=PROVISION,
)
def library_of_another_toolkit_mapped(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["mapped"].append("/opt/other/libcublas.so.11")


@fault("stack.mapped", cause="from outside", remedy=PROVISION)
def library_of_a_toolkit_with_a_longer_name(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["mapped"].append("/usr/local/cuda-11.8-old/lib64/libcufft.so.10")


@fault("stack.matmul", cause="gave 3 wrong rows of 512", remedy="out of service")
def wrong_numbers(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["matmul"][0]["wrong"] = 3


@fault("stack.matmul", cause="gave rows that were not checked", remedy="out of service")
def unchecked_numbers(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["matmul"][0]["wrong"] = None


@fault("stack.matmul", cause="sum of all devices' results is wrong", remedy="devices")
def wrong_sum(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["tower_sum"]["wrong"] = 1


@fault(
    "stack.matmul",
    cause="does not run: ImportError: Descriptors cannot be created",
    remedy=PROVISION,
)
@fault("stack.build", cause="stopped before this step", remedy=PROVISION, verdict="INCONCLUSIVE")
@fault(
    "stack.libraries", verdict="INCONCLUSIVE", cause="stopped before this step", remedy=PROVISION
)
@fault("stack.mapped", cause="stopped before this step", remedy=PROVISION, verdict="INCONCLUSIVE")
def import_fails(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"].update(
        state="failed",
        error="ImportError: Descriptors cannot be created",
        version=None,
        build=None,
        loader=None,
        devices=[],
        matmul=[],
        tower_sum=None,
        mapped=[],
    )


@fault("stack.matmul", cause="hung: no answer", remedy="load", verdict="HUNG")
@fault("stack.build", cause="hung: no answer", remedy="load", verdict="HUNG")
@fault("stack.libraries", cause="hung: no answer", remedy="load", verdict="HUNG")
@fault("stack.mapped", cause="hung: no answer", remedy="load", verdict="HUNG")
def framework_hangs(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"].update(
        state="hung",
        error="no answer within 96 s",
        version=None,
        build=None,
        loader=None,
        devices=[],
        matmul=[],
        tower_sum=None,
        mapped=[],
    )


@fault("stack.python", cause="does not start: libpython3.11.so.1.0: cannot open", remedy=PROVISION)
def interpreter_gone(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["start"].update(
        python=None, prefix=None, error="libpython3.11.so.1.0: cannot open"
    )


@fault("stack.python", cause="searches for modules in /srv/site-packages", remedy="a .pth file")
def another_site_first(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["start"]["strange"] = ["/srv/site-packages"]


@fault(
    "stack.python",
    cause="neither its own nor the system's: /opt/conda/lib/libstdc++.so.6.0.33",
    remedy="ld.so.conf.d",
)
def library_of_conda(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["framework"]["strangers"] = ["/opt/conda/lib/libstdc++.so.6.0.33"]


@fault("stack.python", cause="starts Python 3.12.1, planned is 3.11", remedy=PROVISION)
def interpreter_exchanged(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["start"]["python"] = "3.12.1"


@fault("stack.libraries", cause="cannot be loaded with all its symbols: libx.so", remedy=PROVISION)
def symbol_missing(plan: Document, snapshot: Document) -> None:
    stack(snapshot)["binding"]["error"] = "libx.so: undefined symbol: cublasCreate_v2"


@fault("stack.mapped", cause="no receipt of its own toolkit", remedy="move it away")
def mapped_file_that_no_receipt_knows(plan: Document, snapshot: Document) -> None:
    mapped = stack(snapshot)["framework"]["mapped"]
    mapped[0] = f"{LIB}/glibc-hwcaps/x86-64-v2/libcublas.so.11"


@fault("stack.mapped", cause="(deleted)", remedy="move it away")
def mapped_file_that_was_replaced(plan: Document, snapshot: Document) -> None:
    mapped = stack(snapshot)["framework"]["mapped"]
    mapped[0] += " (deleted)"


@fault(
    "stack.mapped",
    cause="libcudnn.so.7.6.5, which was installed for something else",
    remedy=PROVISION,
)
def mapped_file_of_another_cudnn(plan: Document, snapshot: Document) -> None:
    receipts = data(snapshot, "receipts")["receipts"]
    other = f"{LIB}/libcudnn.so.7.6.5"
    own = next(row for row in receipts if row["kind"] == "cudnn")
    receipts.append({**own, "id": "11.8-7", "libraries": [other]})
    read = data(snapshot, "receipts")["scrub"]["components"]
    read.append({**read[0], "component": "cudnn-11.8-7"})
    stack(snapshot)["framework"]["mapped"].append(other)
