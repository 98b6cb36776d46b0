"""The driver of two GPUs: modules, nodes, access, persistence, fabric, Secure Boot, MIG."""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, with_cards
from tests.support.host_parts import PROVISION, kernel

fault, harmless = faults_on(with_cards)


@fault("driver.nouveau", cause="module nouveau is loaded", remedy="reboot gpu01")
def nouveau_loaded(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["nouveau"]["loaded"] = True
    # It may have a card in a moment: one of them has no driver.
    data(snapshot, "gpus")["pci"][1]["driver"] = None


@harmless
def nouveau_without_a_card(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["nouveau"]["loaded"] = True


@fault("driver.loaded", cause="nouveau is bound to 0000:01:00.0", remedy="blacklist nouveau")
@fault("driver.pending", cause="reboot for the driver", remedy=PROVISION)
def nouveau_holds_one(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["pci"][1]["driver"] = "nouveau"


@fault(
    "driver.loaded",
    cause="is not loaded (on disk is 535.261.03, the libraries are 535.261.03)",
    remedy=PROVISION,
)
@fault("driver.pending", cause="must be reloaded", remedy=PROVISION)
def module_not_loaded(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver").update(loaded=None, modules=[])


@fault("driver.loaded", cause="libcuda.so, is not installed", remedy=PROVISION)
@fault(
    "driver.packages", cause="user-space library, libcuda.so, is not installed", remedy=PROVISION
)
def library_gone(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["library"] = None


@fault(
    "driver.loaded",
    cause="The loaded driver is 535.261.03, on disk is 535.261.03, programs open an older"
    " libcuda.so of 525.60.13: /opt/old/libcuda.so.1",
    remedy="remove /opt/old/libcuda.so.1, or correct the linker's paths",
)
@fault("driver.cuda", cause="cuInit returned 803", remedy="see driver.loaded")
def an_older_copy_of_the_library(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver").update(
        library="525.60.13", library_path="/opt/old/libcuda.so.1", cuinit=803
    )


@fault(
    "driver.loaded",
    cause="libraries are 525.60.13: they were downgraded while it was loaded",
    remedy=PROVISION,
)
@fault("driver.pending", cause="must be reloaded", remedy=PROVISION)
def downgraded_while_loaded(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver").update(library="525.60.13", on_disk="525.60.13")


@fault(
    "driver.loaded",
    cause="The loaded driver is 535.261.03, on disk is 550.163.01, its libraries are"
    " 550.163.01: they were upgraded while it was loaded; a reboot is pending"
    " since 12:00 (upgraded)",
    remedy=f"{PROVISION} (it reloads the driver",
)
@fault("driver.pending", cause="since 12:00: upgraded", remedy=PROVISION)
def upgraded_and_a_reboot_is_pending(plan: Document, snapshot: Document) -> None:
    plan["driver"]["branch"] = "550"
    data(snapshot, "driver").update(
        on_disk="550.163.01",
        library="550.163.01",
        reboot_pending={"since": "12:00", "because": "upgraded"},
    )
    for row in data(snapshot, "packages")["driver"]:
        row["version"] = "550.163.01-2"
    data(snapshot, "packages")["pins"][0]["pin"] = "version 550.163.01-2"
    kernel(snapshot)["modules"][0]["version"] = "550.163.01"
    data(snapshot, "receipts")["receipts"][-1].update(
        version="550.163.01", branch="550", packages={}
    )


@fault("driver.cuda", cause="450.80.02 or newer", remedy="newer driver branch")
def driver_too_old_for_the_toolkit(plan: Document, snapshot: Document) -> None:
    plan["driver"]["branch"] = "440"
    data(snapshot, "driver").update(loaded="440.33.01", library="440.33.01", on_disk="440.33.01")
    for name in ("smi", "smi_after"):
        data(snapshot, name)["driver_version"] = "440.33.01"
    for row in data(snapshot, "packages")["driver"]:
        row["version"] = "440.33.01-2"
    data(snapshot, "packages")["pins"][0]["pin"] = "version 440.33.01-2"
    kernel(snapshot)["modules"][0]["version"] = "440.33.01"
    data(snapshot, "receipts")["receipts"][-1].update(
        version="440.33.01", branch="440", packages={}
    )


@fault("driver.cuda", cause="cuInit returned 999 (unknown error)", remedy="nvidia-modprobe -u -c 0")
def driver_refuses_to_start(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["cuinit"] = 999


@fault(
    "driver.nodes", cause="no GPU: /dev/nvidia-uvm, /dev/nvidia1", remedy="nvidia-modprobe -u -c 0"
)
@fault("driver.cuda", cause="cuInit returned 100", remedy="driver.nodes")
def nodes_missing(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["nodes"] = ["/dev/nvidia0", "/dev/nvidiactl"]
    data(snapshot, "driver")["cuinit"] = 100


@fault(
    "driver.cuda",
    cause="cuInit returned 34 (a stub of the toolkit is loaded as libcuda.so.1):"
    " /opt/stub/libcuda.so.1",
    remedy="run ldconfig",
)
def a_stub_that_programs_load_first(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver").update(
        cuinit=34, cuda_version=None, capabilities=None, library_path="/opt/stub/libcuda.so.1"
    )


@fault(
    "driver.nodes",
    cause="CUDA was not started, which creates them",
    remedy="driver.cuda",
    verdict="INCONCLUSIVE",
)
@fault("driver.cuda", cause="could not be queried", remedy="driver.loaded", verdict="INCONCLUSIVE")
def nodes_that_nothing_has_created_since_the_boot(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["nodes"] = []
    data(snapshot, "driver")["cuinit"] = None


@harmless
def node_that_cuda_made_as_the_host_was_looked_at(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["nodes"].remove("/dev/nvidia-uvm")


@fault(
    "driver.nodes",
    cause="In place of device files there are others: /dev/nvidia0",
    remedy="rm -f /dev/nvidia0; nvidia-modprobe -u -c 0",
)
def node_that_is_a_regular_file(plan: Document, snapshot: Document) -> None:
    for row in data(snapshot, "gpus")["node_access"]:
        if row["path"] == "/dev/nvidia0":
            row["major"] = None


@fault("driver.persistence", cause="nvidia-persistenced.service is not installed", remedy=PROVISION)
def no_persistence_daemon(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["persistence"] = {"unit": None, "enabled": None, "active": None}


@fault(
    "driver.persistence",
    cause="does not start at boot",
    remedy="systemctl enable nvidia-persistenced",
)
def persistence_daemon_disabled(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["persistence"]["enabled"] = False


@fault(
    "driver.persistence",
    cause="runs with --no-persistence-mode, as Ubuntu's packages start it",
    remedy=PROVISION,
)
def persistence_daemon_with_the_mode_off(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["persistence"]["command"] = (
        "/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode --verbose"
    )


@fault("driver.persistence", cause="does not run", remedy="systemctl status nvidia-persistenced")
def persistence_daemon_stopped(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["persistence"]["active"] = False


@fault(
    "driver.persistence",
    verdict="INCONCLUSIVE",
    cause="It is unknown whether nvidia-persistenced.service runs",
    remedy="new snapshot",
)
def persistence_daemon_of_which_systemd_says_nothing(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["persistence"]["active"] = None


@fault("driver.fabric", cause="nvidia-fabricmanager.service is not installed", remedy=PROVISION)
def nvswitch_without_fabric_manager(plan: Document, snapshot: Document) -> None:
    plan["driver"]["fabric_manager"] = True
    data(snapshot, "gpus")["nvswitches"] = ["0000:c0:00.0"]


@fault(
    "driver.fabric",
    cause="The fabric manager is 535.216.03, the driver is 535.261.03",
    remedy=PROVISION,
)
def fabric_manager_of_another_version(plan: Document, snapshot: Document) -> None:
    fabric_manager(plan, snapshot, version="535.216.03")


def fabric_manager(plan: Document, snapshot: Document, **state: object) -> None:
    plan["driver"]["fabric_manager"] = True
    data(snapshot, "gpus")["nvswitches"] = ["0000:c0:00.0"]
    data(snapshot, "driver")["fabric"] = {
        "unit": "nvidia-fabricmanager.service",
        "enabled": True,
        "active": True,
        "version": "535.261.03",
        **state,
    }


@harmless
def fabric_manager_whose_version_shows_by_cuda(plan: Document, snapshot: Document) -> None:
    fabric_manager(plan, snapshot, version=None)


@fault(
    "driver.fabric",
    verdict="INCONCLUSIVE",
    cause="It is unknown whether nvidia-fabricmanager.service runs",
    remedy="new snapshot",
)
def fabric_manager_of_which_systemd_says_nothing(plan: Document, snapshot: Document) -> None:
    fabric_manager(plan, snapshot, active=None)


@fault(
    "driver.cuda",
    cause="cuInit returned 802",
    remedy="end all programs on the GPUs, systemctl restart nvidia-fabricmanager; if it ran before"
    " (Hopper and later), then reset all GPUs",
)
@fault(
    "driver.fabric",
    verdict="INCONCLUSIVE",
    cause="The version of the fabric manager is unknown",
    remedy="nv-fabricmanager --version",
)
def fabric_manager_of_an_unknown_version(plan: Document, snapshot: Document) -> None:
    fabric_manager(plan, snapshot, version=None)
    data(snapshot, "driver")["cuinit"] = 802


@fault(
    "driver.fabric", cause="starts at boot on a host without NVSwitch", remedy="systemctl disable"
)
def fabric_manager_without_nvswitch(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["fabric"] = {
        "unit": "nvidia-fabricmanager.service",
        "enabled": True,
        "active": False,
        "version": None,
    }


@fault("driver.secure-boot", cause="Secure Boot is on, and the key", remedy="mokutil --import")
@fault("driver.loaded", cause="not loaded", remedy=PROVISION)
@fault("driver.pending", cause="must be reloaded", remedy=PROVISION)
def secure_boot_without_the_key(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel")["secure_boot"] = {"enabled": True, "enrolled": False}
    data(snapshot, "driver").update(loaded=None, modules=[])


@fault("driver.secure-boot", cause="awaits its enrolment", remedy="choose Enroll MOK")
@fault("driver.loaded", cause="not loaded", remedy=PROVISION)
@fault("driver.pending", cause="must be reloaded", remedy=PROVISION)
def secure_boot_with_an_enrolment_that_was_not_confirmed(
    plan: Document, snapshot: Document
) -> None:
    data(snapshot, "kernel")["secure_boot"] = {
        **{"enabled": True, "refuses": True, "enrolled": False, "pending": True},
        "key": "/var/lib/dkms/mok.pub",
    }
    data(snapshot, "driver").update(loaded=None, modules=[])


@harmless
def secure_boot_with_a_driver_that_is_loaded(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel")["secure_boot"] = {"enabled": True, "enrolled": False}


@fault("gpu.mig", cause="GPU 1 has no MIG, declared is 3g.40gb, 3g.40gb", remedy=PROVISION)
def not_split_as_declared(plan: Document, snapshot: Document) -> None:
    plan["driver"]["mig"] = {"1": ["3g.40gb", "3g.40gb"]}


@fault("gpu.mig", cause="GPU 0 has 7g.80gb, declared is no MIG", remedy=PROVISION)
def split_and_not_declared(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["mig"][0].update(mode="on", instances=["7g.80gb"])


@fault("gpu.mig", cause="GPU 0 has MIG without instances, declared is no MIG", remedy=PROVISION)
def mig_on_and_empty(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["mig"][0]["mode"] = "on"


@fault("gpu.mig", cause="GPU 0 does not support MIG", remedy="remove GPU 0 from gpu_mig")
def mig_on_a_card_that_knows_none(plan: Document, snapshot: Document) -> None:
    plan["driver"]["mig"] = {"0": ["3g.40gb"]}
    data(snapshot, "gpus")["mig"][0]["mode"] = None


def _split(plan: Document, snapshot: Document, **boot: object) -> None:
    """GPU 0 has the instances that are declared for it; `boot` is what creates them at boot."""
    plan["driver"]["mig"] = {"0": ["4g.40gb", "3g.40gb"]}
    data(snapshot, "gpus")["mig"][0].update(mode="on", instances=["4g.40gb", "3g.40gb"])
    data(snapshot, "driver")["mig_boot"].update(boot)


@fault("gpu.mig", cause="No reboot keeps MIG instances", remedy=PROVISION)
def mig_that_no_unit_creates_at_boot(plan: Document, snapshot: Document) -> None:
    _split(plan, snapshot)


@fault("gpu.mig", cause="does not create those that are declared for GPU 0", remedy=PROVISION)
def mig_that_a_disabled_unit_creates(plan: Document, snapshot: Document) -> None:
    layout = {"0": ["3g.40gb", "4g.40gb"]}
    _split(plan, snapshot, unit="gpufleet-mig.service", enabled=False, layout=layout)


@fault("gpu.mig", cause="does not create those that are declared for GPU 0", remedy=PROVISION)
def mig_of_an_earlier_declaration_at_boot(plan: Document, snapshot: Document) -> None:
    layout = {"0": ["7g.80gb"]}
    _split(plan, snapshot, unit="gpufleet-mig.service", enabled=True, layout=layout)


@harmless
def mig_that_a_unit_creates_at_boot(plan: Document, snapshot: Document) -> None:
    layout = {"0": ["3g.40gb", "4g.40gb"]}
    _split(plan, snapshot, unit="gpufleet-mig.service", enabled=True, layout=layout)


@fault("gpu.mig", cause="There is no GPU 7", remedy=PROVISION)
def mig_of_a_card_that_is_not_there(plan: Document, snapshot: Document) -> None:
    plan["driver"]["mig"] = {"7": []}


@fault("gpu.mig", verdict="INCONCLUSIVE", cause="nvidia-smi did not answer", remedy="see gpu.smi")
def mig_not_known(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["mig"] = None


@fault(
    "driver.cuda",
    cause="libcuda.so.1 supports CUDA 10.2, too old for toolkit 11.8",
    remedy="newer driver",
)
def an_old_libcuda(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["cuda_version"] = "10.2"


@harmless
def minor_versions_go_together(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["cuda_version"] = "11.0"


def closed(snapshot: Document, mode: str, group: int) -> None:
    for row in data(snapshot, "gpus")["node_access"]:
        row.update(mode=mode, gid=group, kind="permission", error="permission denied")


@fault(
    "driver.access",
    cause="An ordinary account cannot open /dev/nvidiactl (mode 0600, 0:0)",
    remedy="NVreg_DeviceFileMode=0666",
)
def device_files_of_root_alone(plan: Document, snapshot: Document) -> None:
    closed(snapshot, "0600", 0)


@fault(
    "driver.access",
    verdict="INCONCLUSIVE",
    cause="Only a group may open",
    remedy="declare gpu_service_user",
)
def device_files_of_a_group(plan: Document, snapshot: Document) -> None:
    closed(snapshot, "0660", 44)


@fault("driver.access", cause="Account slurm cannot open", remedy="to the group")
def device_files_of_another_group(plan: Document, snapshot: Document) -> None:
    plan["service_user"] = "slurm"
    closed(snapshot, "0660", 44)


@fault("driver.access", cause="there is no account slrum", remedy="correct gpu_service_user")
def service_user_that_is_no_account(plan: Document, snapshot: Document) -> None:
    plan["service_user"] = "slrum"
    for row in data(snapshot, "gpus")["node_access"]:
        row.update(kind="no-account", error="there is no account slrum")


@fault("driver.access", cause="was not tested", remedy="ansible_become", verdict="INCONCLUSIVE")
def access_not_tried(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["node_access"][0]["tried"] = False
