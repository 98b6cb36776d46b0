"""Each check of the driver catches the break that it is for, names cause and remedy.

A row breaks a healthy host (with two GPUs, or with none) in one way and lists every check that
then is not as before.
"""

from __future__ import annotations

import pytest

from gpufleet.checks import CHECKS, Sections, judge
from gpufleet.host_state.host import Host
from tests.support.healthy_host import (
    DRIVER,
    Break,
    Document,
    Row,
    data,
    document,
    registering,
    verdicts,
    with_cards,
    with_driver,
)

PROVISION = "./gpufleet provision --limit gpu01"
RUNNING, LATER = "6.1.0-27-amd64", "6.1.0-50-amd64"
CARDS = "cards"

FAULTS: list[Row] = []
fault = registering(FAULTS)


def package(snapshot: Document, name: str) -> Document:
    rows = data(snapshot, "packages")["driver"]
    found: Document = next(row for row in rows if row["name"] == name)
    return found


def kernel(snapshot: Document) -> Document:
    found: Document = data(snapshot, "kernel")["installed"][0]
    return found


def from_nvidia(plan: Document, snapshot: Document) -> None:
    """The driver is from NVIDIA's repository."""
    plan["driver"]["source"] = "nvidia_repo"
    data(snapshot, "receipts")["receipts"][-1]["source"] = "nvidia_repo"


def later_kernel(snapshot: Document, **fields: object) -> None:
    """A kernel package was installed; its image boots next, DKMS did not build for it."""
    data(snapshot, "kernel").update(next_boot=LATER)
    data(snapshot, "kernel")["installed"].append(
        {"version": LATER, "image": True, "headers": False, "modules": [],
         "initramfs": f"/boot/initrd.img-{LATER}", "initramfs_nouveau": False, **fields})


# -- packages -------------------------------------------------------------------------------------


@fault(driver__packages=("Package nvidia-kernel-dkms is half-configured: dpkg did not finish",
                         "dpkg --configure -a"))
def package_half_configured(plan: Document, snapshot: Document) -> None:
    package(snapshot, "nvidia-kernel-dkms")["status"] = "half-configured"
    data(snapshot, "packages")["broken"] = [
        {"name": "nvidia-kernel-dkms", "status": "half-configured"}]


@fault(driver__files=("files changed under /: etc/apt/preferences.d/gpufleet-driver (mtime)",
                      PROVISION))
def file_of_ours_that_was_edited(plan: Document, snapshot: Document) -> None:
    data(snapshot, "receipts")["receipts"][-1]["changed"] = [
        {"path": "etc/apt/preferences.d/gpufleet-driver", "what": "mtime"}]


@fault(driver__packages=("Package linux-headers-6.1.0-50-amd64 is half-configured", PROVISION))
def kernel_package_that_could_not_build_the_module(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["broken"] = [
        {"name": "linux-headers-6.1.0-50-amd64", "status": "half-configured"}]


@fault()
def another_package_that_is_broken_is_not_the_drivers_fault(
    plan: Document, snapshot: Document
) -> None:
    data(snapshot, "packages")["broken"] = [{"name": "nginx", "status": "unpacked"}]


@fault(driver__packages=("several versions: 525.147.05 (libcuda1); 535.261.03", PROVISION))
def versions_mixed(plan: Document, snapshot: Document) -> None:
    package(snapshot, "libcuda1")["version"] = "525.147.05-7~deb12u1"


@fault()
def helpers_may_be_of_another_version(plan: Document, snapshot: Document) -> None:
    row = package(snapshot, "libcuda1")
    data(snapshot, "packages")["driver"] += [
        {**row, "name": "nvidia-persistenced", "version": "535.171.04-1~deb12u1"},
        {**row, "name": "nvidia-support", "version": "20220217+3~deb12u1"}]


@fault(driver__packages=("No package of the driver is installed", PROVISION))
def no_package(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["driver"] = []
    data(snapshot, "driver")["library"] = None


@fault(driver__packages=("535.261.03 (libcuda.so) belongs to no package",
                         "nvidia-uninstall"))
def driver_of_a_runfile(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["driver"] = []


@fault(driver__packages=("Driver 535.261.03 is installed, branch 550 is planned", PROVISION))
def another_branch_is_planned(plan: Document, snapshot: Document) -> None:
    plan["driver"]["branch"] = "550"


@fault(driver__packages=("Driver 535.261.03 is installed, 535.216.03 is planned", PROVISION))
def another_version_is_planned(plan: Document, snapshot: Document) -> None:
    plan["driver"]["version"] = "535.216.03"


@fault(driver__packages=("changed by somebody else: libcuda1 535.261.03-1 (was 535.261.03-0)",
                         PROVISION))
def package_exchanged_since(plan: Document, snapshot: Document) -> None:
    data(snapshot, "receipts")["receipts"][-1]["packages"]["libcuda1"] = f"{DRIVER}-0"


@fault(driver__packages=("are missing: libnvidia-ml1", PROVISION))
def package_removed_since(plan: Document, snapshot: Document) -> None:
    data(snapshot, "receipts")["receipts"][-1]["packages"]["libnvidia-ml1"] = f"{DRIVER}-1"


@fault(driver__packages=("defined with different keys, in /etc/apt/sources.list.d/cuda.list,"
                         " /etc/apt/sources.list.d/gpufleet-nvidia.sources", "what is not gpuf"))
def two_definitions_of_one_repository(plan: Document, snapshot: Document) -> None:
    from_nvidia(plan, snapshot)
    row = {"uris": ["https://nvidia.example/debian12/x86_64/"], "suites": ["/"]}
    data(snapshot, "packages")["sources"] = [
        {**row, "path": "/etc/apt/sources.list.d/cuda.list", "signed_by": None, "format": "list"},
        {**row, "path": "/etc/apt/sources.list.d/gpufleet-nvidia.sources", "format": "deb822",
         "signed_by": "/etc/apt/keyrings/gpufleet-nvidia.asc"}]


@fault(driver__packages=("defined with different keys", "remove what does not belong there"))
def two_definitions_that_no_run_takes_away(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["sources"] = [
        {"path": f"/etc/apt/sources.list.d/{name}.list", "uris": ["https://nvidia.example/r"],
         "suites": ["/"], "signed_by": name, "format": "list"} for name in "ab"]


@fault(driver__packages=("come from several repositories", PROVISION))
def two_repositories_of_nvidia(plan: Document, snapshot: Document) -> None:
    from_nvidia(plan, snapshot)
    data(snapshot, "packages")["sources"] = [
        {"path": path, "uris": [uri], "suites": ["/"], "signed_by": None, "format": "list"}
        for path, uri in (
            ("/etc/apt/sources.list.d/gpufleet-nvidia.sources", "https://mirror.example/nvidia"),
            ("/etc/apt/sources.list", "https://nvidia.example/compute/cuda/repos/debian12/x86_64"))]


@fault(driver__packages=("come from several repositories",
                         "remove what does not belong there, of"
                         " /etc/apt/sources.list.d/nvidia-a.list"))
def two_repositories(plan: Document, snapshot: Document) -> None:
    from_nvidia(plan, snapshot)
    data(snapshot, "packages")["sources"] = [
        {"path": f"/etc/apt/sources.list.d/{name}.list", "uris": [f"https://{name}.example/r"],
         "suites": ["/"], "signed_by": None, "format": "list"}
        for name in ("nvidia-a", "nvidia-b", "libnvidia-container")]


@fault(driver__held=("not held, and can be upgraded under the running driver: libcuda1", PROVISION))
def hold_taken_away(plan: Document, snapshot: Document) -> None:
    package(snapshot, "libcuda1")["held"] = False


@fault(driver__held=("No pin of the driver's version", PROVISION))
def pin_removed(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["pins"] = []


@fault(driver__held=("Unattended upgrades do not exclude", PROVISION))
def upgraded_at_night(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["unattended"] = {"installed": True, "excluded": False}


# -- kernels --------------------------------------------------------------------------------------


@fault(driver__modules=(
    "Kernel 6.1.0-50-amd64 (it boots next) has no NVIDIA module, and no headers"
    " (linux-headers-6.1.0-50-amd64) to build it with: a host that boots it has no GPU",
    f"{PROVISION} (on the host: apt-get install linux-headers-6.1.0-50-amd64;"
    " dkms autoinstall -k 6.1.0-50-amd64"))
def kernel_installed_later(plan: Document, snapshot: Document) -> None:
    later_kernel(snapshot)


@fault(driver__modules=("Kernel 6.1.0-50-amd64 (it boots next) has no NVIDIA module: a host",
                        "(on the host: dkms autoinstall -k 6.1.0-50-amd64"))
def kernel_installed_later_with_its_headers(plan: Document, snapshot: Document) -> None:
    later_kernel(snapshot, headers=True)


@fault(driver__modules=("no headers (kernel-devel-6.1.0-50-amd64)",
                        "dnf install kernel-devel-6.1.0-50-amd64"))
def kernel_installed_later_by_rpm(plan: Document, snapshot: Document) -> None:
    later_kernel(snapshot)
    data(snapshot, "packages")["manager"] = "rpm"


@fault(driver__modules=(f"Kernel {RUNNING} (it runs, it boots next) has no NVIDIA module",
                        "dkms autoinstall"))
def module_of_the_running_kernel_deleted(plan: Document, snapshot: Document) -> None:
    kernel(snapshot)["modules"] = []


@fault(driver__modules=("is 525.147.05, the driver is 535.261.03", PROVISION))
def module_of_another_version(plan: Document, snapshot: Document) -> None:
    kernel(snapshot)["modules"][0]["version"] = "525.147.05"


@fault(driver__modules=("is open, planned is proprietary", PROVISION))
def module_of_the_other_flavour(plan: Document, snapshot: Document) -> None:
    kernel(snapshot)["modules"][0]["license"] = "Dual MIT/GPL"


@fault(driver__modules=("has no headers (linux-headers-6.1.0-27-amd64): the next driver cannot",
                        "apt-get install linux-headers-6.1.0-27-amd64"))
def headers_removed(plan: Document, snapshot: Document) -> None:
    kernel(snapshot)["headers"] = False


@fault()
def prebuilt_modules_need_no_headers(plan: Document, snapshot: Document) -> None:
    kernel(snapshot)["headers"] = False
    data(snapshot, "driver")["dkms"] = []


@fault()
def leftovers_of_kernels_that_cannot_boot(plan: Document, snapshot: Document) -> None:
    row = {**kernel(snapshot), "headers": False, "modules": []}
    data(snapshot, "kernel")["installed"] += [
        {**row, "version": "5.10.0-1-amd64", "image": False},
        {**row, "version": "0-rescue-abc", "initramfs_nouveau": True}]


@fault(driver__modules=("Kernel 6.18.0 (it runs) has no NVIDIA module", "linux-headers-6.18.0"))
def running_kernel_of_which_nothing_is_installed(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel")["running"] = "6.18.0"


@fault()
def a_container_runs_a_kernel_that_is_not_its_own(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel").update(running="6.18.0", container="podman")


@fault(driver__nouveau=("Nothing keeps the module nouveau from being loaded at boot", PROVISION))
def blacklist_removed(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["nouveau"]["blacklisted"] = False


@fault(driver__nouveau=(f"/boot/initrd.img-{RUNNING} has the module nouveau",
                        f"update-initramfs -u -k {RUNNING}"))
def initramfs_with_nouveau(plan: Document, snapshot: Document) -> None:
    kernel(snapshot)["initramfs_nouveau"] = True


# -- what needs a card ----------------------------------------------------------------------------


@fault(driver__nouveau=("module nouveau is loaded", "reboot gpu01"))
def cards_nouveau_loaded(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["nouveau"]["loaded"] = True


@fault(driver__loaded=("nouveau is bound to 0000:01:00.0", "blacklist nouveau"),
       driver__pending=("reboot for the driver", PROVISION))
def cards_nouveau_holds_one(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["pci"][1]["driver"] = "nouveau"


@fault(driver__loaded=("is not loaded (on disk is 535.261.03, the libraries are 535.261.03)",
                       PROVISION),
       driver__pending=("must be reloaded", PROVISION))
def cards_module_not_loaded(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver").update(loaded=None, modules=[])


@fault(driver__loaded=("libcuda.so, is not installed", PROVISION),
       driver__packages=("user-space library, libcuda.so, is not installed", PROVISION))
def cards_library_gone(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["library"] = None


@fault(driver__loaded=("The loaded driver is 535.261.03, on disk is 550.163.01, its libraries are"
                       " 550.163.01: they were upgraded while it was loaded; a reboot is pending"
                       " since 12:00 (upgraded)", f"{PROVISION} (it reloads the driver"),
       driver__pending=("since 12:00: upgraded", PROVISION))
def cards_upgraded_and_a_reboot_is_pending(plan: Document, snapshot: Document) -> None:
    plan["driver"]["branch"] = "550"
    data(snapshot, "driver").update(
        on_disk="550.163.01", library="550.163.01",
        reboot_pending={"since": "12:00", "because": "upgraded"})
    for row in data(snapshot, "packages")["driver"]:
        row["version"] = "550.163.01-2"
    kernel(snapshot)["modules"][0]["version"] = "550.163.01"
    data(snapshot, "receipts")["receipts"][-1].update(
        version="550.163.01", branch="550", packages={})


@fault(driver__cuda=("450.80.02 or newer", "newer driver branch"))
def cards_driver_too_old_for_the_toolkit(plan: Document, snapshot: Document) -> None:
    plan["driver"]["branch"] = "440"
    data(snapshot, "driver").update(loaded="440.33.01", library="440.33.01", on_disk="440.33.01")
    data(snapshot, "smi")["driver_version"] = "440.33.01"
    for row in data(snapshot, "packages")["driver"]:
        row["version"] = "440.33.01-2"
    kernel(snapshot)["modules"][0]["version"] = "440.33.01"
    data(snapshot, "receipts")["receipts"][-1].update(
        version="440.33.01", branch="440", packages={})


@fault(driver__cuda=("cuInit returned 999 (unknown error)", "nvidia-modprobe -u -c 0"))
def cards_driver_refuses_to_start(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["cuinit"] = 999


@fault(driver__nodes=("no GPU: /dev/nvidia-uvm, /dev/nvidia1", "nvidia-modprobe -u -c 0"),
       driver__cuda=("could not be queried", "driver.loaded"))
def cards_nodes_missing(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["nodes"] = ["/dev/nvidia0", "/dev/nvidiactl"]
    data(snapshot, "driver")["cuinit"] = None


@fault()
def cards_node_that_cuda_made_as_the_host_was_looked_at(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["nodes"].remove("/dev/nvidia-uvm")


@fault(driver__persistence=("nvidia-persistenced.service is not installed", PROVISION))
def cards_no_persistence_daemon(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["persistence"] = {"unit": None, "enabled": None, "active": None}


@fault(driver__persistence=("does not start at boot", "systemctl enable nvidia-persistenced"))
def cards_persistence_daemon_disabled(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["persistence"]["enabled"] = False


@fault(driver__persistence=("does not run", "systemctl status nvidia-persistenced"))
def cards_persistence_daemon_stopped(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["persistence"]["active"] = False


@fault(driver__fabric=("nvidia-fabricmanager.service is not installed", PROVISION))
def cards_nvswitch_without_fabric_manager(plan: Document, snapshot: Document) -> None:
    plan["driver"]["fabric_manager"] = True
    data(snapshot, "gpus")["nvswitches"] = ["0000:c0:00.0"]


@fault(driver__fabric=("The fabric manager is 535.216.03, the driver is 535.261.03", PROVISION))
def cards_fabric_manager_of_another_version(plan: Document, snapshot: Document) -> None:
    plan["driver"]["fabric_manager"] = True
    data(snapshot, "gpus")["nvswitches"] = ["0000:c0:00.0"]
    data(snapshot, "driver")["fabric"] = {
        "unit": "nvidia-fabricmanager.service", "enabled": True, "active": True,
        "version": "535.216.03"}


@fault(driver__fabric=("starts at boot on a host without NVSwitch", "systemctl disable"))
def cards_fabric_manager_without_nvswitch(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["fabric"] = {
        "unit": "nvidia-fabricmanager.service", "enabled": True, "active": False, "version": None}


@fault(driver__secure_boot=("Secure Boot is on, and the key", "mokutil --import"),
       driver__loaded=("not loaded", PROVISION), driver__pending=("must be reloaded", PROVISION))
def cards_secure_boot_without_the_key(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel")["secure_boot"] = {"enabled": True, "enrolled": False}
    data(snapshot, "driver").update(loaded=None, modules=[])


@fault()
def cards_secure_boot_with_a_driver_that_is_loaded(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel")["secure_boot"] = {"enabled": True, "enrolled": False}


@fault(gpu__mig=("GPU 1 has no MIG, declared is 3g.40gb, 3g.40gb", PROVISION))
def cards_not_split_as_declared(plan: Document, snapshot: Document) -> None:
    plan["driver"]["mig"] = {"1": ["3g.40gb", "3g.40gb"]}


@fault(gpu__mig=("GPU 0 has 7g.80gb, declared is no MIG", PROVISION))
def cards_split_and_not_declared(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["mig"][0].update(mode="on", instances=["7g.80gb"])


@fault(gpu__mig=("GPU 0 has MIG without instances, declared is no MIG", PROVISION))
def cards_mig_on_and_empty(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["mig"][0]["mode"] = "on"


@fault(gpu__mig=("GPU 0 does not support MIG", "remove GPU 0 from gpu_mig"))
def cards_mig_on_a_card_that_knows_none(plan: Document, snapshot: Document) -> None:
    plan["driver"]["mig"] = {"0": ["3g.40gb"]}
    data(snapshot, "gpus")["mig"][0]["mode"] = None


@fault(gpu__mig=("There is no GPU 7", PROVISION))
def cards_mig_of_a_card_that_is_not_there(plan: Document, snapshot: Document) -> None:
    plan["driver"]["mig"] = {"7": []}


@fault(gpu__mig=("no driver could be queried", "driver.loaded"))
def cards_mig_not_known(plan: Document, snapshot: Document) -> None:
    data(snapshot, "gpus")["mig"] = None


# -- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "break_it", "caught"), FAULTS, ids=[row[0] for row in FAULTS])
def test_a_fault_of_the_driver_is_caught_by_its_checks_alone(
    name: str, break_it: Break, caught: dict[str, tuple[str, str]]
) -> None:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    (with_cards if name.startswith(CARDS) else with_driver)(plan, snapshot)
    before = verdicts(plan, snapshot)
    assert {name: verdict for name, verdict in before.items()
            if verdict not in {"PASS", "NOT-DECLARED"} and not name.startswith("stack.")} == {}
    break_it(plan, snapshot)
    after = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert {name for name in before if after[name]["verdict"] != before[name]} == set(caught)
    for check_id, (cause, remedy) in caught.items():
        assert cause in after[check_id]["cause"]
        assert remedy in after[check_id]["remedy"]


# -- declarations that excuse ---------------------------------------------------------------------

OF_A_CARD = {"driver.loaded", "driver.nodes", "driver.persistence", "driver.fabric",
             "driver.secure-boot", "driver.cuda", "driver.access", "gpu.smi", "gpu.identity",
             "gpu.visible", "gpu.memory-errors", "gpu.pcie", "gpu.throttle", "gpu.settings",
             "gpu.throughput", "gpu.bandwidth", "gpu.sustained", "gpu.peer"}
MANAGED = {"driver.files", "driver.packages", "driver.held", "driver.modules", "driver.nouveau"}


def excused(plan: Document, snapshot: Document) -> dict[str, str]:
    """{check: the declaration} of the driver's checks that do not apply."""
    return {check["id"]: check["cause"] for check in judge.judge(plan, snapshot)["checks"]
            if check["verdict"] == "NOT-DECLARED"
            and check["id"].startswith(("driver.", "gpu."))}


def test_without_a_gpu_only_what_needs_a_card_is_excused(
    plan: Document, snapshot: Document
) -> None:
    with_driver(plan, snapshot)
    found = excused(plan, snapshot)
    assert {name for name, why in found.items() if why == "gpu_expect: {count: 0}"} == OF_A_CARD
    assert found.pop("gpu.mig") == "gpu_mig: not set"
    assert MANAGED.isdisjoint(found)
    plan["driver"]["mig"] = {"all": []}
    assert excused(plan, snapshot)["gpu.mig"] == "gpu_expect: {count: 0}"


def test_of_a_driver_that_is_not_managed_nothing_of_packages_is_demanded(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    plan["driver"].update(managed=False, source=None, branch=None, module=None)
    assert excused(plan, snapshot) == dict.fromkeys(
        {*MANAGED, "driver.persistence", "driver.secure-boot", "driver.pending"},
        "gpu_driver: not set")


def test_a_preinstalled_driver_is_checked_for_every_kernel_and_never_touched(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    plan["driver"].update(managed=False, source="preinstalled", branch=None, module=None)
    assert excused(plan, snapshot) == dict.fromkeys(
        {*MANAGED - {"driver.modules"}, "driver.persistence", "driver.secure-boot",
         "driver.pending"},
        "gpu_driver: {source: preinstalled}")
    later_kernel(snapshot)
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["driver.modules"]["verdict"] == "FAIL"
    assert "whoever installs the driver of gpu01" in found["driver.modules"]["remedy"]
    for row in data(snapshot, "kernel")["installed"]:
        row["modules"] = []
    assert verdicts(plan, snapshot)["driver.modules"] == "INCONCLUSIVE"


def test_a_runfile_s_driver_is_held_by_nobody(plan: Document, snapshot: Document) -> None:
    with_driver(plan, snapshot)
    plan["driver"]["source"] = "runfile"
    data(snapshot, "packages").update(driver=[], pins=[])
    data(snapshot, "receipts")["receipts"][-1].update(packages={}, source="runfile")
    found = verdicts(plan, snapshot)
    assert (found["driver.packages"], found["driver.modules"]) == ("PASS", "PASS")
    assert excused(plan, snapshot)["driver.held"] == "gpu_driver: {source: runfile}"


def test_persistence_may_be_declared_away(plan: Document, snapshot: Document) -> None:
    with_cards(plan, snapshot)
    plan["driver"]["persistence"] = False
    assert excused(plan, snapshot) == {"driver.persistence": "gpu_driver: {persistence: false}"}


@pytest.mark.parametrize("section", ["kernel", "driver", "packages", "gpus"])
def test_a_section_that_hung_never_makes_the_driver_healthy(
    plan: Document, snapshot: Document, section: str
) -> None:
    with_cards(plan, snapshot)
    snapshot["sections"][section] = {
        "state": "hung", "seconds": 20, "error": "no answer within 20 s", "data": None}
    found = verdicts(plan, snapshot)
    readers = {"kernel": {"driver.modules", "driver.nouveau", "driver.secure-boot",
                          "driver.pending"},
               "packages": {"driver.packages", "driver.held", "driver.modules", "driver.fabric"},
               "gpus": {"driver.loaded", "driver.nodes", "driver.fabric", "gpu.mig", "gpu.count",
                        "driver.pending", "driver.cuda", "driver.access", "gpu.visible",
                        "kernel.log", "toolkit.device-query", "driver.nouveau",
                        "driver.persistence"},
               "driver": {"driver.cuda", "gpu.smi", "gpu.settings",
                          "driver.packages", "driver.modules", "driver.nouveau", "driver.loaded",
                          "driver.secure-boot", "driver.nodes", "driver.persistence",
                          "driver.fabric", "gpu.mig", "driver.pending"}}[section]
    assert {name for name, verdict in found.items() if verdict == "HUNG"} == {
        "host.probe", *readers}


def test_a_fabric_manager_of_a_driver_that_nobody_declares_runs_where_a_switch_is(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    plan["driver"] = None
    running = {"unit": "nvidia-fabricmanager.service", "enabled": True, "active": True,
               "version": DRIVER}
    data(snapshot, "driver")["fabric"] = running
    assert verdicts(plan, snapshot)["driver.fabric"] == "FAIL"
    data(snapshot, "gpus")["nvswitches"] = ["0000:07:00.0"]
    assert verdicts(plan, snapshot)["driver.fabric"] == "PASS"
    running["active"] = False
    assert verdicts(plan, snapshot)["driver.fabric"] == "FAIL"


@pytest.mark.parametrize("count", [None, 2])
def test_a_check_uses_no_section_that_it_does_not_name(
    plan: Document, snapshot: Document, count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cards(plan, snapshot)
    plan["expect"]["count"] = count
    data(snapshot, "gpus")["nvswitches"] = ["0000:07:00.0"]
    used: set[str] = set()
    found = Host.section

    def told(host: Host, name: str) -> Document | None:
        used.add(name)
        return found(host, name)
    monkeypatch.setattr(Host, "section", told)
    for check in CHECKS.values():
        used.clear()
        if not check.skip_reason(plan):
            list(check.function(plan, Sections(snapshot, check.reads)))
        assert used <= {*check.reads}, check.id


def test_a_driver_begun_and_not_finished_is_named(plan: Document, snapshot: Document) -> None:
    with_driver(plan, snapshot)
    data(snapshot, "receipts")["journal"] = [
        {"schema": 1, "kind": "driver", "id": "driver", "path": "/", "version": "550.163.01",
         "state": "installing", "fresh": False, "started": "now"}]
    remedies = {}
    for managed in (True, False):
        plan["driver"]["managed"] = managed
        found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
        remedies[managed] = found["install.complete"]["remedy"]
    assert remedies[True].startswith(PROVISION)
    assert remedies[False].startswith("restore gpu_driver, then")
