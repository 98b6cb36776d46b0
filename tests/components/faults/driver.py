"""The driver's packages and kernel modules, on a host without GPUs."""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.healthy_host import DRIVER, PIN, Document, data, with_driver
from tests.support.host_parts import PROVISION, RUNNING, from_nvidia, kernel, later_kernel, package

fault, harmless = faults_on(with_driver)


@fault(
    "driver.packages",
    cause="Package nvidia-kernel-dkms is half-configured: dpkg did not finish",
    remedy="dpkg --configure -a",
)
def package_half_configured(plan: Document, snapshot: Document) -> None:
    package(snapshot, "nvidia-kernel-dkms")["status"] = "half-configured"
    data(snapshot, "packages")["broken"] = [
        {"name": "nvidia-kernel-dkms", "status": "half-configured"}
    ]


@fault(
    "driver.files",
    cause="files changed under /: etc/apt/preferences.d/gpufleet-driver (mtime)",
    remedy=PROVISION,
)
def file_of_ours_that_was_edited(plan: Document, snapshot: Document) -> None:
    data(snapshot, "receipts")["receipts"][-1]["changed"] = [
        {"path": "etc/apt/preferences.d/gpufleet-driver", "what": "mtime"}
    ]


@fault(
    "driver.packages",
    cause="Package linux-headers-6.1.0-50-amd64 is half-configured",
    remedy=PROVISION,
)
def kernel_package_that_could_not_build_the_module(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["broken"] = [
        {"name": "linux-headers-6.1.0-50-amd64", "status": "half-configured"}
    ]


@harmless
def another_package_that_is_broken_is_not_the_drivers_fault(
    plan: Document, snapshot: Document
) -> None:
    data(snapshot, "packages")["broken"] = [{"name": "nginx", "status": "unpacked"}]


@fault(
    "driver.packages", cause="several versions: 525.147.05 (libcuda1); 535.261.03", remedy=PROVISION
)
def versions_mixed(plan: Document, snapshot: Document) -> None:
    package(snapshot, "libcuda1")["version"] = "525.147.05-7~deb12u1"


@harmless
def helpers_may_be_of_another_version(plan: Document, snapshot: Document) -> None:
    row = package(snapshot, "libcuda1")
    data(snapshot, "packages")["driver"] += [
        {**row, "name": "nvidia-persistenced", "version": "535.171.04-1~deb12u1"},
        {**row, "name": "nvidia-support", "version": "20220217+3~deb12u1"},
    ]


@fault("driver.packages", cause="No package of the driver is installed", remedy=PROVISION)
def no_package(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["driver"] = []
    data(snapshot, "driver")["library"] = None


@fault(
    "driver.packages",
    cause="535.261.03 (libcuda.so) belongs to no package",
    remedy="nvidia-uninstall",
)
def driver_of_a_runfile(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["driver"] = []


@fault(
    "driver.packages",
    cause="Driver 535.261.03 is installed, branch 550 is planned",
    remedy=PROVISION,
)
def another_branch_is_planned(plan: Document, snapshot: Document) -> None:
    plan["driver"]["branch"] = "550"


@fault(
    "driver.packages",
    cause="Driver 535.261.03 is installed, 535.216.03 is planned",
    remedy=PROVISION,
)
def another_version_is_planned(plan: Document, snapshot: Document) -> None:
    plan["driver"]["version"] = "535.216.03"


@fault(
    "driver.packages",
    cause="changed by somebody else: libcuda1 535.261.03-2 (was 535.261.03-1)",
    remedy=PROVISION,
)
def package_exchanged_since(plan: Document, snapshot: Document) -> None:
    package(snapshot, "libcuda1")["version"] = f"{DRIVER}-2"


@fault("driver.packages", cause="are missing: libnvidia-ml1", remedy=PROVISION)
def package_removed_since(plan: Document, snapshot: Document) -> None:
    data(snapshot, "receipts")["receipts"][-1]["packages"]["libnvidia-ml1"] = f"{DRIVER}-1"


@fault(
    "driver.packages",
    cause="defined with different keys, in /etc/apt/sources.list.d/cuda.list,"
    " /etc/apt/sources.list.d/gpufleet-nvidia.sources",
    remedy="what is not gpuf",
)
def two_definitions_of_one_repository(plan: Document, snapshot: Document) -> None:
    from_nvidia(plan, snapshot)
    row = {"uris": ["https://nvidia.example/debian12/x86_64/"], "suites": ["/"]}
    data(snapshot, "packages")["sources"] = [
        {**row, "path": "/etc/apt/sources.list.d/cuda.list", "signed_by": None, "format": "list"},
        {
            **row,
            "path": "/etc/apt/sources.list.d/gpufleet-nvidia.sources",
            "format": "deb822",
            "signed_by": "/etc/apt/keyrings/gpufleet-nvidia.asc",
        },
    ]


@fault(
    "driver.packages",
    cause="defined with different keys",
    remedy="remove what does not belong there",
)
def two_definitions_that_no_run_takes_away(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["sources"] = [
        {
            "path": f"/etc/apt/sources.list.d/{name}.list",
            "uris": ["https://nvidia.example/r"],
            "suites": ["/"],
            "signed_by": name,
            "format": "list",
        }
        for name in "ab"
    ]


@fault("driver.packages", cause="defined with different keys", remedy=PROVISION)
def sources_of_the_same_repository_with_another_key(plan: Document, snapshot: Document) -> None:
    two_definitions_of_one_repository(plan, snapshot)
    data(snapshot, "packages")["sources"][0]["source_only"] = True


@harmless
def sources_of_another_repository(plan: Document, snapshot: Document) -> None:
    two_repositories_of_nvidia(plan, snapshot)
    data(snapshot, "packages")["sources"][1]["source_only"] = True


@fault("driver.packages", cause="come from several repositories", remedy=PROVISION)
def two_repositories_of_nvidia(plan: Document, snapshot: Document) -> None:
    from_nvidia(plan, snapshot)
    data(snapshot, "packages")["sources"] = [
        {"path": path, "uris": [uri], "suites": ["/"], "signed_by": None, "format": "list"}
        for path, uri in (
            ("/etc/apt/sources.list.d/gpufleet-nvidia.sources", "https://mirror.example/nvidia"),
            ("/etc/apt/sources.list", "https://nvidia.example/compute/cuda/repos/debian12/x86_64"),
        )
    ]


@fault(
    "driver.packages",
    cause="come from several repositories",
    remedy="remove what does not belong there, of /etc/apt/sources.list.d/nvidia-a.list",
)
def two_repositories(plan: Document, snapshot: Document) -> None:
    from_nvidia(plan, snapshot)
    data(snapshot, "packages")["sources"] = [
        {
            "path": f"/etc/apt/sources.list.d/{name}.list",
            "uris": [f"https://{name}.example/r"],
            "suites": ["/"],
            "signed_by": None,
            "format": "list",
        }
        for name in ("nvidia-a", "nvidia-b", "libnvidia-container")
    ]


@fault(
    "driver.held",
    cause="not held, and can be upgraded under the running driver: libcuda1",
    remedy=PROVISION,
)
def hold_taken_away(plan: Document, snapshot: Document) -> None:
    package(snapshot, "libcuda1")["held"] = False


@fault(
    "driver.held",
    cause="Dnf ignores version locks, and its next upgrade exchanges the driver:"
    " /etc/dnf/dnf.conf: plugins=0",
    remedy="on the host: remove that line",
)
def locks_are_switched_off(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["locking"] = {
        "plugin": True,
        "switched_off": ["/etc/dnf/dnf.conf: plugins=0"],
    }


@fault("driver.held", cause="dnf has no plugin that applies version locks", remedy=PROVISION)
def plugin_for_locks_is_missing(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["locking"] = {"plugin": False, "switched_off": []}


@harmless
def locks_of_dnf_apply(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["locking"] = {"plugin": True, "switched_off": []}


@fault("driver.held", cause="No pin of the driver's version", remedy=PROVISION)
def pin_removed(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["pins"] = []


@fault(
    "driver.held",
    cause=f"{PIN} does not keep the installed version of libcuda1, nvidia-kernel-dkms, nvidia-smi",
    remedy=PROVISION,
)
def pin_of_another_version(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["pins"][0]["pin"] = "version 999*"


@fault("driver.held", cause=f"{PIN} does not keep the installed version", remedy=PROVISION)
def pin_that_apt_prefers_nothing_by(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["pins"][0]["priority"] = -1


@fault("driver.held", cause="does not keep the installed version of libcuda1", remedy=PROVISION)
def pin_that_lacks_a_package(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["pins"][0]["packages"].remove("libcuda1")


@fault(
    "driver.held",
    cause="/etc/apt/preferences does not keep the installed version of libcuda1,"
    f" and apt reads it before {PIN}",
    remedy="on the host: remove that entry of /etc/apt/preferences",
)
def pin_behind_another(plan: Document, snapshot: Document) -> None:
    row = {"packages": ["libcuda*"], "pin": "version *", "priority": 500}
    data(snapshot, "packages")["pins"].insert(0, {"path": "/etc/apt/preferences", **row})


@harmless
def pins_that_change_nothing(plan: Document, snapshot: Document) -> None:
    pins = data(snapshot, "packages")["pins"]
    every = {"packages": ["*"], "pin": "release l=NVIDIA CUDA", "priority": 600}
    older = {"packages": ["libcuda*"], "pin": "version 1*", "priority": -1}
    pins[:] = [{"path": "/etc/apt/preferences", **row} for row in (every, older)] + pins
    pins.append({"path": "/etc/apt/preferences.d/z", **older, "pin": "version *"})


@fault(
    "driver.held",
    verdict="INCONCLUSIVE",
    cause="It is unknown whether unattended upgrades exclude the driver's packages",
    remedy="apt-config dump",
)
def apt_does_not_tell_what_is_excluded(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["unattended"]["excluded"] = None


@harmless
def nothing_is_excluded_where_nothing_upgrades(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["unattended"] = {"installed": False, "excluded": None}


@fault("driver.held", cause="Unattended upgrades do not exclude", remedy=PROVISION)
def upgraded_at_night(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["unattended"] = {"installed": True, "excluded": False}


@fault(
    "driver.modules",
    cause="Kernel 6.1.0-50-amd64 (it boots next) has no NVIDIA module, and no headers"
    " (linux-headers-6.1.0-50-amd64) to build it with: a host that boots it has no GPU",
    remedy=f"{PROVISION} (on the host: apt-get install linux-headers-6.1.0-50-amd64;"
    " dkms autoinstall -k 6.1.0-50-amd64",
)
def kernel_installed_later(plan: Document, snapshot: Document) -> None:
    later_kernel(snapshot)


@fault(
    "driver.modules",
    cause="Kernel 6.1.0-50-amd64 (it boots next) has no NVIDIA module: a host",
    remedy="(on the host: dkms autoinstall -k 6.1.0-50-amd64",
)
def kernel_installed_later_with_its_headers(plan: Document, snapshot: Document) -> None:
    later_kernel(snapshot, headers=True)


@fault(
    "driver.modules",
    cause="no headers (kernel-devel-6.1.0-50-amd64)",
    remedy="dnf install kernel-devel-6.1.0-50-amd64",
)
def kernel_installed_later_by_rpm(plan: Document, snapshot: Document) -> None:
    later_kernel(snapshot)
    data(snapshot, "packages")["manager"] = "rpm"


@fault(
    "driver.modules",
    cause=f"Kernel {RUNNING} (it runs, it boots next) has no NVIDIA module",
    remedy=f"dkms remove -k {RUNNING} nvidia/535.261.03 && dkms install --force -k {RUNNING}",
)
def module_of_the_running_kernel_deleted(plan: Document, snapshot: Document) -> None:
    kernel(snapshot)["modules"] = []


@fault(
    "driver.modules",
    cause=f"Kernel {RUNNING} (it runs, it boots next) cannot load"
    f" /lib/modules/{RUNNING}/updates/dkms/nvidia.ko: it is empty",
    remedy=f"dkms remove -k {RUNNING} nvidia/535.261.03 && dkms install --force -k {RUNNING}",
)
def module_that_a_power_failure_left_empty(plan: Document, snapshot: Document) -> None:
    kernel(snapshot)["modules"][0].update(version=None, license=None, error="it is empty")


@fault(
    "driver.modules",
    cause="nvidia-uvm.ko.xz: modules.dep does not list it",
    remedy=f"reinstall the package that has the module, then depmod {RUNNING}",
)
def module_for_cuda_that_modprobe_does_not_find(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["dkms"] = []
    kernel(snapshot)["modules"].append(
        {
            "name": "nvidia-uvm",
            "path": "/lib/modules/x/extra/nvidia-uvm.ko.xz",
            "version": None,
            "license": None,
            "error": "modules.dep does not list it, so modprobe does not find it",
        }
    )


@fault(
    "driver.modules",
    verdict="INCONCLUSIVE",
    cause=f"unknown of which version the module of kernel {RUNNING} is",
    remedy="modinfo shows why",
)
def packed_module_that_nothing_could_unpack(plan: Document, snapshot: Document) -> None:
    kernel(snapshot)["modules"][0].update(version=None, license=None)


@fault(
    "driver.modules",
    cause="/etc/modprobe.d/vfio.conf keeps the module nvidia from being loaded",
    remedy="take out of /etc/modprobe.d/vfio.conf what is there about nvidia",
)
def module_that_modprobe_never_loads(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["blocked"] = [
        {"module": "nvidia", "by": "/etc/modprobe.d/vfio.conf"},
    ]


@fault(
    "driver.modules",
    cause="/proc/cmdline keeps the module nvidia_uvm from being loaded",
    remedy="take module_blacklist=nvidia_uvm out of the boot loader's configuration",
)
def module_that_the_kernel_never_loads(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["blocked"] = [{"module": "nvidia_uvm", "by": "/proc/cmdline"}]


@harmless
def modules_that_nothing_loads_or_that_cuda_does_not_need(
    plan: Document, snapshot: Document
) -> None:
    row = {**kernel(snapshot)["modules"][0], "version": None, "error": "it is empty"}
    kernel(snapshot)["modules"] += [row, {**row, "name": "nvidia-drm"}]
    gone = {**kernel(snapshot), "version": "5.10.0-1-amd64", "image": False, "modules": [row]}
    data(snapshot, "kernel")["installed"].append(gone)


@harmless
def a_container_does_not_load_the_driver(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel")["container"] = "podman"
    data(snapshot, "driver")["blocked"] = [
        {"module": "nvidia", "by": "/etc/modprobe.d/vfio.conf"},
    ]


@fault("driver.modules", cause="is 525.147.05, the driver is 535.261.03", remedy=PROVISION)
def module_of_another_version(plan: Document, snapshot: Document) -> None:
    kernel(snapshot)["modules"][0]["version"] = "525.147.05"


@fault("driver.modules", cause="is open, planned is proprietary", remedy=PROVISION)
def module_of_the_other_flavour(plan: Document, snapshot: Document) -> None:
    kernel(snapshot)["modules"][0]["license"] = "Dual MIT/GPL"


@fault(
    "driver.modules",
    cause="has no headers (linux-headers-6.1.0-27-amd64): the next driver cannot",
    remedy="apt-get install linux-headers-6.1.0-27-amd64",
)
def headers_removed(plan: Document, snapshot: Document) -> None:
    kernel(snapshot)["headers"] = False


@harmless
def prebuilt_modules_need_no_headers(plan: Document, snapshot: Document) -> None:
    kernel(snapshot)["headers"] = False
    data(snapshot, "driver")["dkms"] = []


@harmless
def leftovers_of_kernels_that_cannot_boot(plan: Document, snapshot: Document) -> None:
    row = {**kernel(snapshot), "headers": False, "modules": []}
    data(snapshot, "kernel")["installed"] += [
        {**row, "version": "5.10.0-1-amd64", "image": False},
        {**row, "version": "0-rescue-abc", "initramfs_nouveau": True},
    ]


@fault(
    "driver.modules",
    cause="Kernel 6.18.0 (it runs) has no NVIDIA module",
    remedy="linux-headers-6.18.0",
)
def running_kernel_of_which_nothing_is_installed(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel")["running"] = "6.18.0"


@harmless
def a_container_runs_a_kernel_that_is_not_its_own(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel").update(running="6.18.0", container="podman")


@fault(
    "driver.nouveau",
    cause="Nothing keeps the module nouveau from being loaded at boot",
    remedy=PROVISION,
)
def blacklist_removed(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["nouveau"]["blacklisted"] = False


@fault(
    "driver.nouveau",
    cause=f"/boot/initrd.img-{RUNNING} has the module nouveau",
    remedy=f"update-initramfs -u -k {RUNNING}",
)
def initramfs_with_nouveau(plan: Document, snapshot: Document) -> None:
    kernel(snapshot)["initramfs_nouveau"] = True
