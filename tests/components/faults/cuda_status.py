"""CUDA does not start on two GPUs, and the rest of the snapshot says why."""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, with_cards
from tests.support.host_parts import PROVISION, event, kernel

fault, harmless = faults_on(with_cards)
FABRIC = "nvidia-fabricmanager.service"


def refuses(snapshot: Document, status: int) -> None:
    data(snapshot, "driver")["cuinit"] = status


def fabric(snapshot: Document, **state: object) -> None:
    data(snapshot, "driver")["fabric"] = {
        "unit": FABRIC,
        "enabled": True,
        "active": True,
        "version": "535.261.03",
        **state,
    }


def hgx_b200(plan: Document, snapshot: Document, *loaded: str) -> None:
    """A board whose NVSwitches no PCI bus shows, with these modules of the subnet manager."""
    plan["driver"]["fabric_manager"] = True
    data(snapshot, "gpus")["nvswitches"] = ["0000:c0:00.0"]
    for card in data(snapshot, "gpus")["pci"]:
        card["device"] = "0x2901"
    data(snapshot, "driver")["nvlsm"] = {
        "program": "/opt/nvidia/nvlsm/sbin/nvlsm",
        "running": False,
        "modules": list(loaded),
    }


# -- 802: the system is not ready ------------------------------------------------------------------


@fault(
    "driver.fabric",
    cause="nvidia-fabricmanager.service is not installed",
    remedy="install the fabric manager of exactly 535.261.03",
)
@fault("driver.cuda", cause="not ready: service nvidia-fabricmanager", remedy="see driver.fabric")
def a_fabric_without_a_manager_behind_hidden_switches(plan: Document, snapshot: Document) -> None:
    refuses(snapshot, 802)


@fault(
    "driver.fabric",
    cause="The fabric manager is 590.48.01, the driver is 535.261.03: CUDA starts only where they"
    " are equal, and does not run",
    remedy="install the fabric manager of exactly 535.261.03",
)
@fault("driver.cuda", cause="the fabric manager is 590.48.01", remedy="see driver.fabric")
def a_fabric_manager_that_is_newer_and_stops(plan: Document, snapshot: Document) -> None:
    refuses(snapshot, 802)
    fabric(snapshot, active=False, version="590.48.01")


@fault("driver.fabric", cause="is masked", remedy=f"systemctl unmask {FABRIC}; then {PROVISION}")
@fault("driver.cuda", cause="is masked", remedy="see driver.fabric")
def a_masked_fabric_manager(plan: Document, snapshot: Document) -> None:
    refuses(snapshot, 802)
    fabric(snapshot, active=False, enabled=False, masked=True)


@fault(
    "driver.fabric",
    cause="does not run, and the kernel modules by which it reaches the NVSwitches are not loaded:"
    " ib_umad",
    remedy="modprobe -a ib_umad",
)
@fault("driver.cuda", cause="are not loaded: ib_umad", remedy="see driver.fabric")
def a_board_whose_switches_no_module_reaches(plan: Document, snapshot: Document) -> None:
    hgx_b200(plan, snapshot, "mlx5_ib")
    refuses(snapshot, 802)
    fabric(snapshot, active=False)


@fault(
    "driver.cuda",
    cause="confidential computing is on, and the GPUs are not set ready",
    remedy="nvidia-smi conf-compute -srs 1",
)
def gpus_that_nobody_attested(plan: Document, snapshot: Document) -> None:
    refuses(snapshot, 802)
    data(snapshot, "smi")["nvml"].update(confidential=True, ready=False)


@fault(
    "driver.cuda",
    cause="this virtual machine has no NVSwitch",
    remedy="activate the fabric manager's partition",
)
def a_guest_whose_fabric_the_machine_below_sets_up(plan: Document, snapshot: Document) -> None:
    refuses(snapshot, 802)
    data(snapshot, "gpus")["hypervisor"] = True


@harmless
def a_guest_that_computes_confidentially_and_is_ready(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["hypervisor"] = True
    data(snapshot, "smi")["nvml"].update(confidential=True, ready=True, multi_gpu_mode=1)


# -- 803: versions ---------------------------------------------------------------------------------


@fault(
    "driver.cuda",
    cause="programs open the compatibility library /usr/local/cuda/compat/libcuda.so.550.54.15",
    remedy="take the directory of /usr/local/cuda/compat/libcuda.so.550.54.15 out of the linker's",
)
def a_compatibility_library_that_does_not_fit(plan: Document, snapshot: Document) -> None:
    refuses(snapshot, 803)
    data(snapshot, "driver")["library_path"] = "/usr/local/cuda/compat/libcuda.so.550.54.15"


@fault("driver.cuda", cause="are all 535.261.03", remedy="ldconfig -p | grep")
def a_mismatch_that_no_reboot_ends(plan: Document, snapshot: Document) -> None:
    refuses(snapshot, 803)


# -- 3, 100, 999 -----------------------------------------------------------------------------------


@fault("driver.cuda", cause="nvidia_uvm is not loaded", remedy="modprobe nvidia_uvm")
def a_driver_without_its_memory_module(plan: Document, snapshot: Document) -> None:
    refuses(snapshot, 999)
    data(snapshot, "driver")["modules"] = ["nvidia"]


@fault(
    "driver.cuda",
    cause="/etc/modprobe.d/no-uvm.conf keeps the module nvidia_uvm",
    remedy="take out of /etc/modprobe.d/no-uvm.conf",
)
@fault("driver.modules", cause="keeps the module nvidia_uvm", remedy="no-uvm.conf")
def a_memory_module_that_is_blocked(plan: Document, snapshot: Document) -> None:
    refuses(snapshot, 3)
    data(snapshot, "driver").update(
        modules=["nvidia"], blocked=[{"module": "nvidia_uvm", "by": "/etc/modprobe.d/no-uvm.conf"}]
    )


@fault("driver.cuda", cause="encrypts all memory (SME)", remedy="mem_encrypt=off")
def memory_that_the_processor_encrypts(plan: Document, snapshot: Document) -> None:
    refuses(snapshot, 999)
    event(snapshot, "memory-encryption")


@harmless
def encrypted_memory_with_which_cuda_starts(plan: Document, snapshot: Document) -> None:
    event(snapshot, "memory-encryption")


@fault("driver.cuda", cause="by their HMM", remedy="uvm_disable_hmm=1")
def open_modules_that_do_not_start_their_memory(plan: Document, snapshot: Document) -> None:
    plan["driver"]["module"] = None
    refuses(snapshot, 3)
    for module in kernel(snapshot)["modules"]:
        module["license"] = "Dual MIT/GPL"
