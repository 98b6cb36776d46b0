"""The running driver: its versions, device files, services and MIG. All of it needs a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from gpufleet.catalog import pci
from gpufleet.catalog.versions import is_dotted, key
from gpufleet.components.base import cards
from gpufleet.components.base.driver_state import (
    Fault,
    installed,
    listed,
    managed,
    package_rows,
    part,
    provision,
    texts,
    upstream,
    without_card,
)
from gpufleet.components.base.host import Host, mapping, mappings
from gpufleet.documents.plan import Plan
from gpufleet.documents.text import quoted, shell
from gpufleet.on_host import pci_drivers

from . import not_loaded

PERSISTENCE = "nvidia-persistenced.service"
MODE_OFF = "--no-persistence-mode"
# The libraries of Windows' subsystem for Linux, where Windows has the kernel module.
WINDOWS_LIBRARIES = "/usr/lib/wsl/"
# Where packages have it; a copy is elsewhere.
PACKAGED = ("/usr/lib/", "/usr/lib64/", "/lib/", "/lib64/")
FABRIC = "nvidia-fabricmanager.service"
MIG_BOOT = "gpufleet-mig.service"
# What the NVLink subnet manager needs (NVIDIA Fabric Manager guide, DGX and HGX B200).
SUBNET_MODULES = ("ib_umad", "mlx5_ib")
# cuInit: CUDA_ERROR_SYSTEM_NOT_READY.
NOT_READY = 802


def nodes(plan: Plan, host: Host) -> Iterator[Fault]:
    """Each GPU of the loaded driver has its device file, and so have control and memory."""
    there = texts(part(host, "gpus").get("nodes"))
    if host.driver is None or not host.gpus:
        return
    count = len(cards.of_driver(host))
    # In a container they keep the numbers that they have on the machine.
    numbered = [name for name in there if re.fullmatch(r"/dev/nvidia\d+", name)]
    wanted = [f"/dev/nvidia{at}" for at in range(count)] if len(numbered) < count else []
    wanted += ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    # CUDA needs this file, and creates it: it exists wherever the probe could start CUDA.
    started = {"/dev/nvidia-uvm"} if part(host, "driver").get("cuinit") == 0 else set()
    if missing := [name for name in wanted if name not in {*there, *started}]:
        yield Fault(
            f"device files are missing, without which programs find no GPU: {listed(missing)}",
            "on the host, as root: nvidia-modprobe -u -c 0 (nvidia-smi creates those of the GPUs,"
            " and at each boot the persistence daemon: gpu_driver: {persistence: true})",
            "",
        )
    files = [
        str(row.get("path"))
        for row in mappings(part(host, "gpus").get("node_access"))
        if row.get("major") is None
    ]
    if files:
        yield Fault(
            f"in place of device files there are others: {listed(files)}",
            "on the host, as root: "
            + shell("rm -f", *files, instead=f"remove {', '.join(map(quoted, files))}")
            + "; nvidia-modprobe -u -c 0",
            "",
        )


def persistence(plan: Plan, host: Host) -> Iterator[Fault]:
    """The persistence daemon runs, and starts at boot, where it is declared."""
    if (
        mapping(plan["driver"]).get("persistence")
        and not without_card(plan, host)
        # Without a GPU of its own the daemon fails.
        and not given_away(host)
    ):
        yield from _service(plan, host, "persistence", PERSISTENCE)
        command = str(mapping(part(host, "driver").get("persistence")).get("command") or "")
        if MODE_OFF in command.split():
            yield Fault(
                f"service {PERSISTENCE} runs with {MODE_OFF}, as Ubuntu's packages start it, so"
                " persistence mode is off",
                provision(plan),
            )


def given_away(host: Host) -> bool:
    """Return whether the host passes all its GPUs to virtual machines."""
    return bool(host.gpus) and all(pci_drivers.given_away(card.get("driver")) for card in host.gpus)


def fabric(plan: Plan, host: Host) -> Iterator[Fault]:
    """The fabric manager runs exactly where an NVSwitch is, of the driver's very version."""
    state = mapping(part(host, "driver").get("fabric"))
    if not needs_fabric_manager(plan, host):
        # A running manager has found its NVSwitches. Those of a rack are managed elsewhere.
        idle = state.get("active") is not True and not _in_rack(host)
        # One image may be for machines with and without an NVSwitch: where CUDA starts, its unit
        # that fails is no fault of a host whose driver somebody else installs.
        judged = managed(plan) is not None or part(host, "driver").get("cuinit") != 0
        if state.get("enabled") and idle and judged and not _has_nvswitch(plan, host):
            yield Fault(
                f"service {FABRIC} starts at boot on a host without NVSwitch, and fails",
                f"if the host has no NVSwitch: {provision(plan)} (on the host: systemctl disable"
                f" {FABRIC}); if it has, it is not on the PCI bus: see kernel.log",
            )
        return
    have, version = host.driver or installed(plan, host), fabric_manager_version(host)
    if version and have and version != have:
        stopped = "" if state.get("active") is not False else ", and does not run"
        yield Fault(
            f"the fabric manager is {version}, the driver is {have}: CUDA starts only"
            f" where they are equal{stopped}",
            _fabric_remedy(plan, have),
        )
        return
    modules = _missing_modules(host)
    if modules and state.get("active") is False and not state.get("masked"):
        yield Fault(
            f"service {FABRIC} does not run, and the kernel modules by which it reaches the"
            f" NVSwitches are not loaded: {listed(modules)}",
            f"on the host: modprobe -a {' '.join(modules)} (at boot: a line for each in"
            f" /etc/modules-load.d), systemctl restart {FABRIC}",
            "",
        )
        return
    for fault in _service(plan, host, "fabric", FABRIC):
        install = not _planned_fabric(plan) and state.get("unit") is None
        yield replace(fault, remedy=_fabric_remedy(plan, have)) if install else fault


def _planned_fabric(plan: Plan) -> bool:
    return bool(mapping(plan["driver"]).get("fabric_manager"))


def _fabric_remedy(plan: Plan, version: str | None) -> str:
    """How the fabric manager of a driver is installed: what no plan has, provision leaves alone."""
    if managed(plan) and _planned_fabric(plan):
        return provision(plan)
    return (
        f"install the fabric manager of exactly {quoted(version or 'the driver')}"
        " (nvidia-fabricmanager), hold its package, and on the host: systemctl enable --now"
        f" {FABRIC}"
    )


def fabric_manager_version(host: Host) -> str | None:
    """The version that the fabric manager tells, else that of its package."""
    told = mapping(part(host, "driver").get("fabric")).get("version")
    rows = package_rows(host)
    packaged = (
        upstream(row.get("version"))
        for name, row in rows.items()
        if re.fullmatch(r"(?:nvidia|cuda)-fabric-?manager(?:-\d+)?", name)
    )
    return str(told) if told else next(packaged, None)


def _missing_modules(host: Host) -> list[str]:
    """The modules that the subnet manager of these boards needs, and that are not loaded."""
    state = mapping(part(host, "driver").get("nvlsm"))
    listed_models = mappings(host.evidence("smi").get("devices"))
    hidden = behind_hidden_nvswitch(host) or any(
        pci.model_behind_nvswitch(str(row.get("name"))) for row in listed_models
    )
    if not hidden or "modules" not in state or host.is_image:
        return []
    return [name for name in SUBNET_MODULES if name not in texts(state["modules"])]


def waits_for_fabric(host: Host) -> bool:
    """Return whether CUDA says that a fabric is to be set up, and this machine may have to do it.

    Its NVSwitches may be hidden, or their driver gone. In a guest the machine below sets it up, in
    a rack another one; with confidential computing CUDA waits for the ready state.
    """
    return (
        part(host, "driver").get("cuinit") == NOT_READY
        and not part(host, "gpus").get("hypervisor")
        and not mapping(host.evidence("smi").get("nvml")).get("confidential")
        and not _in_rack(host)
    )


def needs_fabric_manager(plan: Plan, host: Host) -> bool:
    """Return whether this host has NVSwitches, and manages them itself."""
    return _has_nvswitch(plan, host) and not _managed_below(plan, host)


def _managed_below(plan: Plan, host: Host) -> bool:
    """Return whether the machine below manages a guest's NVSwitches, or they serve no other GPU.

    In a guest that has all GPUs of a board the fabric manager may have failed after CUDA started,
    so there a unit that is enabled has to run.
    """
    if not may_lack_fabric(host):
        return False
    if managed(plan):
        return not mapping(plan["driver"]).get("fabric_manager")
    enabled = mapping(part(host, "driver").get("fabric")).get("enabled")
    starts = part(host, "driver").get("cuinit") == 0
    return starts and (len(host.gpus) == 1 or not enabled)


def may_lack_fabric(host: Host) -> bool:
    """Return whether this is a guest with hidden NVSwitches and no running fabric manager."""
    return (
        bool(part(host, "gpus").get("hypervisor"))
        and behind_hidden_nvswitch(host)
        and not host.nvswitches
        and mapping(part(host, "driver").get("fabric")).get("active") is not True
    )


def _has_nvswitch(plan: Plan, host: Host) -> bool:
    # The plan has nothing of an undeclared driver.
    planned = mapping(plan["driver"]).get("fabric_manager")
    switches = part(host, "gpus").get("nvswitches")
    return bool(planned or switches or behind_hidden_nvswitch(host) or waits_for_fabric(host))


def subnet_manager(plan: Plan, host: Host) -> Iterator[Fault]:
    """The subnet manager that a fabric manager needs is installed, and its modules are loaded."""
    planned = mapping(mapping(plan["driver"]).get("subnet_manager"))
    state = part(host, "driver").get("nvlsm")
    # A subnet manager that runs has all that it needs.
    if not planned or not isinstance(state, dict) or state.get("running"):
        return
    if planned["packages"] and not state.get("program"):
        yield Fault("the NVLink subnet manager (nvlsm) is not installed", provision(plan))
    loaded = texts(state.get("modules"))
    missing = [name for name in planned["modules"] if name not in loaded]
    if missing and "modules" in state and not host.is_image:
        yield Fault(
            f"kernel modules that the NVLink subnet manager (nvlsm) needs are not loaded:"
            f" {listed(missing)}",
            provision(plan),
        )


def behind_hidden_nvswitch(host: Host) -> bool:
    """Return whether a GPU's model is always behind hidden NVSwitches (HGX B200 and B300)."""
    return any(pci.behind_nvswitch(pci.digits(str(card.get("device")))) for card in host.gpus)


def _in_rack(host: Host) -> bool:
    """Return whether the GPUs are of a rack (GB200, GB300), whose switches are separate hosts."""
    return any(pci.in_rack(pci.digits(str(card.get("device")))) for card in host.gpus)


def _service(plan: Plan, host: Host, key: str, unit: str) -> Iterator[Fault]:
    state = mapping(part(host, "driver").get(key))
    if state.get("unit") is None:
        yield Fault(f"service {unit} is not installed", provision(plan))
    elif state.get("masked"):
        yield Fault(
            f"service {unit} is masked, so that nothing can start it",
            f"on the host: systemctl unmask {unit}; then"
            f" {provision(plan) if managed(plan) else f'systemctl enable --now {unit}'}",
            "",
        )
    elif not state.get("enabled"):
        yield Fault(
            f"service {unit} does not start at boot",
            f"{provision(plan)} (on the host: systemctl enable {unit})",
        )
    # Without the driver, or beside libraries of another one, it cannot run: that is another fault.
    elif (
        state.get("active") is False
        and host.driver is not None
        and host.driver_library in {None, host.driver}
    ):
        yield Fault(
            f"service {unit} does not run",
            f"{provision(plan)} (on the host: systemctl status {unit} shows why)",
        )


def mismatch(plan: Plan, host: Host) -> Iterator[Fault]:
    """The module that runs, the one on disk and the libraries are of one version."""
    loaded, library = host.driver, host.driver_library
    on_disk = part(host, "driver").get("on_disk")
    if without_card(plan, host):
        return
    pending = host.reboot_pending
    opened = str(part(host, "driver").get("library_path") or "")
    if opened.startswith(WINDOWS_LIBRARIES) and part(host, "driver").get("cuinit") == 0:
        return
    if library is None and opened:
        # Installed, without a version in its name.
        library = loaded
    remedy = (
        f"{provision(plan)} (it reloads the driver, or reboots where gpu_driver_reboot allows it)"
        if managed(plan)
        else f"reboot {plan['host']}; if it stays so, install the driver again"
    )
    own = str(on_disk or "") if loaded is None else loaded
    if without := cards.ended(host, own or library):
        cause, remedy = without[0], not_loaded.other_branch(plan, without[1])
    elif loaded is None:
        cause = (
            f"the NVIDIA kernel module is not loaded (on disk is {on_disk or 'none'}, the libraries"
            f" are {library or 'none'})"
        )
        if why := not_loaded.reason(plan, host):
            cause, remedy = f"{cause}: {why.cause}", why.remedy
    elif library is None:
        cause = "the driver's user-space library, libcuda.so, is not installed"
    elif library != loaded or on_disk not in {None, loaded}:
        versions = f"the loaded driver is {loaded}, on disk is {on_disk or 'none'}"
        older = is_dotted(library) and is_dotted(loaded) and key(library) < key(loaded)
        if older and on_disk in {None, loaded}:
            # An upgrade leaves newer libraries than the module that runs.
            cause = f"{versions}, programs open an older libcuda.so of {library}" + (
                f": {opened}" if opened else ""
            )
            if opened and not opened.startswith(PACKAGED):
                remedy = (
                    f"it is a second copy, or one that is mounted: remove {quoted(opened)}, or"
                    " correct the linker's paths (LD_LIBRARY_PATH, /etc/ld.so.conf.d), and run"
                    f" ldconfig; where packages were downgraded: {remedy}"
                )
            elif not managed(plan):
                remedy = (
                    f"install the driver's libraries of {loaded} (in a container: in its image);"
                    f" where packages were downgraded: {remedy}"
                )
        else:
            change = "downgraded" if older else "upgraded"
            cause = (
                f"{versions}, its libraries are {library}: they were {change} while it was loaded"
            )
    else:
        return
    if pending:
        cause += f"; a reboot is pending since {pending.get('since')} ({pending.get('because')})"
    yield Fault(cause, remedy, "")


def mig(plan: Plan, host: Host) -> Iterator[Fault]:
    """Each GPU is split into the declared instances, and no others."""
    layout, observed = mapping(mapping(plan["driver"]).get("mig")), part(host, "gpus").get("mig")
    if not layout or observed is None or without_card(plan, host):
        return
    by_index = {str(row.get("gpu")): row for row in mappings(observed)}
    for index in [*by_index, *(each for each in layout if each not in {"all", *by_index})]:
        wanted = layout.get(index, layout.get("all"))
        if wanted is None:
            continue
        row, again = by_index.get(index), provision(plan)
        if row is None:
            yield Fault(f"there is no GPU {index} to split as gpu_mig declares", again, "")
            continue
        have = sorted(texts(row.get("instances")))
        if wanted and row.get("mode") is None:
            yield Fault(
                f"GPU {index} does not support MIG, declared is {', '.join(wanted)}",
                f"remove GPU {quoted(index)} from gpu_mig",
                "",
            )
        elif have != sorted(map(str, wanted)) or (row.get("mode") == "on") != bool(wanted):
            there = ", ".join(have) or (
                "MIG without instances" if row.get("mode") == "on" else "no MIG"
            )
            yield Fault(
                f"GPU {index} has {there}, declared is {', '.join(wanted) or 'no MIG'}", again
            )


def mig_boot(plan: Plan, host: Host) -> Iterator[Fault]:
    """The declared MIG instances, which no reboot keeps, are created at boot, and no others."""
    layout, observed = mapping(mapping(plan["driver"]).get("mig")), part(host, "gpus").get("mig")
    state = part(host, "driver").get("mig_boot")
    # Whoever installs an undeclared driver creates its instances too.
    if not isinstance(state, dict) or managed(plan) is None:
        return
    at_boot = {
        gpu: sorted(texts(names))
        for gpu, names in mapping(state.get("layout")).items()
        if state.get("enabled")
    }
    if not layout:
        if state.get("unit"):
            yield Fault(
                f"service {MIG_BOOT} creates MIG instances at boot that are no longer declared",
                provision(plan),
            )
        return
    if observed is None or without_card(plan, host):
        return
    by_gpu = {
        index: sorted(map(str, wanted))
        for row in mappings(observed)
        if (wanted := layout.get(index := str(row.get("gpu")), layout.get("all")))
    }
    if by_gpu != at_boot:
        different = sorted(
            gpu for gpu in {*by_gpu, *at_boot} if by_gpu.get(gpu) != at_boot.get(gpu)
        )
        yield Fault(
            f"no reboot keeps MIG instances, and service {MIG_BOOT} does not create those that are"
            f" declared for GPU {', '.join(different)}",
            provision(plan),
        )
