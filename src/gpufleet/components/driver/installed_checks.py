"""The driver: installed, held, built for every kernel, loaded, and served by its daemons.

Faults come from `kernels`, `packages` and `running`, which `provision` uses as well. Checks that
need a GPU are skipped by `gpu_expect: {count: 0}`, those of a driver that gpufleet installs where
it does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpufleet.catalog import resets
from gpufleet.components.base import cards, driver_state, subjects
from gpufleet.components.base.host import Host
from gpufleet.components.base.registry import (
    AS_ROOT,
    INSPECT,
    REBOOT,
    Evidence,
    Finding,
    check,
    driver_findings,
    files_unchanged,
    no_gpus,
    no_gpus_declared,
    required,
    shortened,
)
from gpufleet.components.base.remedies import DRIVER
from gpufleet.components.base.sections import Sections
from gpufleet.components.driver import kernels as driver_kernels
from gpufleet.components.driver import not_loaded
from gpufleet.components.driver import packages as driver_packages
from gpufleet.components.driver import running as driver_running
from gpufleet.documents.plan import Plan, PlannedDriver
from gpufleet.documents.sections.gpu import Driver, FabricManager, Unit
from gpufleet.documents.verdict import Verdict
from gpufleet.on_host.pci_drivers import OWN_DRIVER

# -- skip reasons ---------------------------------------------------------------------------------


def _not_managed(plan: Plan) -> str | None:
    if driver_state.managed(plan):
        return None
    return _source(plan) if _preinstalled(plan) else "gpu_driver: not set"


def _not_installed_by_packages(plan: Plan) -> str | None:
    skip_reason = _not_managed(plan)
    packaged = skip_reason or _declared(plan)["source"] in driver_state.PACKAGED
    return skip_reason if packaged else _source(plan)


def _not_declared(plan: Plan) -> str | None:
    return None if _preinstalled(plan) else _not_managed(plan)


def _preinstalled(plan: Plan) -> bool:
    driver = plan["driver"]
    return driver is not None and driver.get("source") == "preinstalled"


def _source(plan: Plan) -> str:
    return f"gpu_driver: {{source: {_declared(plan)['source']}}}"


def _declared(plan: Plan) -> PlannedDriver:
    return required(plan["driver"], "the plan's driver")


def card_not_expected(plan: Plan) -> str | None:
    """The skip reason of checks that need a GPU: neither a GPU nor a driver is declared."""
    if skip_reason := no_gpus(plan):
        return skip_reason
    return "gpu_driver: not set" if not plan["driver"] and no_gpus_declared(plan) else None


def _managed_without_gpu(plan: Plan) -> str | None:
    return _not_managed(plan) or no_gpus(plan)


def _no_persistence(plan: Plan) -> str | None:
    if skip_reason := _managed_without_gpu(plan):
        return skip_reason
    return None if _declared(plan)["persistence"] else "gpu_driver: {persistence: false}"


# -- the installed driver -------------------------------------------------------------------------


@check("driver.packages", reads=("packages", "driver", "receipts"), skip_reason=_not_managed)
def packages(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The planned driver is installed completely, in one version and from one repository."""
    section = observed.data["driver"]
    entails: subjects.Subjects = ("libcuda",) if section["library"] is None else ()
    if section["loaded"] is None and section["on_disk"] is None:
        entails += (subjects.DRIVER,)
    for finding in driver_findings(driver_packages.packages, plan, observed):
        yield replace(finding, entails=entails)
    core = driver_state.core(Host(observed.snapshot))
    versions = shortened(sorted(set(core.values()))) or "none"
    yield Evidence(f"{len(core)} packages of version {versions}, libraries {section['library']}")


@check(
    "driver.files",
    reads=("receipts",),
    severity="major",
    deep=True,
    skip_reason=_not_installed_by_packages,
)
def files(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every file that gpufleet wrote for the driver is unchanged."""
    yield from files_unchanged(plan, observed.data["receipts"], *DRIVER, "/")


@check(
    "driver.held",
    reads=("packages", "receipts"),
    severity="major",
    skip_reason=_not_installed_by_packages,
)
def held(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The driver's packages are held and pinned, and unattended upgrades skip them."""
    yield from driver_findings(driver_packages.holds, plan, observed)
    unattended = observed.data["packages"]["unattended"]
    if unattended["installed"] and unattended["excluded"] is None:
        yield Finding(
            "It is unknown whether unattended upgrades exclude the driver's packages: apt does not"
            " tell its settings",
            "on the host: apt-config dump Unattended-Upgrade::Package-Blacklist",
            verdict=Verdict.INCONCLUSIVE,
        )
    rows = observed.data["packages"]["driver"]
    yield Evidence(
        f"{sum(row['held'] for row in rows)} of {len(rows)} packages are held, pinned by"
        f" {shortened([row['path'] for row in observed.data['packages']['pins']]) or 'nothing'}"
    )


@check("driver.modules", reads=("kernel", "driver", "packages"), skip_reason=_not_declared)
def modules(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every bootable kernel has the driver's module, and the headers to build it again."""
    kernels = driver_kernels.judged_kernels(Host(observed.snapshot))
    found = [row["path"] for kernel in kernels for row in kernel["modules"]]
    if not driver_state.managed(plan) and not found and observed.data["driver"].get("of_container"):
        yield Finding(
            "The driver's container builds its modules when it starts, for the kernel that runs",
            "",
            verdict=Verdict.NOT_DECLARED,
        )
        return
    if not driver_state.managed(plan) and not found:
        yield Finding(
            "It is unknown whether each kernel has the preinstalled driver's module: none is in the"
            " usual directories",
            "on the host: modinfo -F filename nvidia",
            verdict=Verdict.INCONCLUSIVE,
        )
        return
    running = [
        kernel for kernel in kernels if kernel["version"] == observed.data["kernel"]["running"]
    ]
    absent = observed.data["driver"]["loaded"] is None and any(
        not kernel["modules"] for kernel in running
    )
    host = Host(observed.snapshot)
    absent |= driver_kernels.keeps_out(host)
    for finding in driver_findings(driver_kernels.modules, plan, observed):
        # Without its memory module the driver is loaded, and CUDA does not start.
        without = driver_kernels.keeps_memory_out(host)
        yield replace(finding, entails=(subjects.DRIVER,) * absent + (subjects.GPUS,) * without)
    for kernel in kernels if driver_state.managed(plan) else []:
        module = driver_kernels.loaded_module(kernel, "nvidia")
        if module and not module["version"] and not module.get("error"):
            yield Finding(
                f"It is unknown of which version the module of kernel {kernel['version']} is, and"
                f" whether it can be loaded: {module['path']}",
                f"{AS_ROOT}; on the host, modinfo shows why it cannot be read",
                verdict=Verdict.INCONCLUSIVE,
            )
    names = [kernel["version"] for kernel in kernels]
    yield Evidence(
        f"{shortened(names) or 'no kernel of its own'}; next boot:"
        f" {observed.data['kernel']['next_boot']} ({observed.data['kernel']['next_boot_source']})"
    )


@check("driver.nouveau", reads=("driver", "kernel", "gpus"), skip_reason=_not_managed)
def nouveau(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """nouveau is not loaded, is blacklisted, and no initramfs loads it before the blacklist."""
    state = observed.data["driver"]["nouveau"]
    entails: subjects.Subjects = ("nouveau",) if state and state["loaded"] else ()
    if entails and observed.data["driver"]["loaded"] is None:
        entails += (subjects.DRIVER,)
    for finding in driver_findings(driver_kernels.nouveau, plan, observed):
        yield replace(finding, entails=entails)
    idle = entails and not any(card["driver"] == "nouveau" for card in observed.data["gpus"]["pci"])
    yield Evidence(f"{state}{', holds no GPU' if idle else ''}")


@check(
    "driver.secure-boot",
    reads=("kernel", "driver"),
    repair=INSPECT,
    skip_reason=_managed_without_gpu,
)
def secure_boot(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Where the kernel refuses unsigned modules, the key that signs the driver's is enrolled."""
    entails = ("key",) if observed.data["driver"]["loaded"] else ("key", subjects.DRIVER)
    for finding in driver_findings(driver_kernels.key_enrolled, plan, observed):
        yield replace(finding, entails=entails)
    yield Evidence(str(observed.data["kernel"]["secure_boot"]))


# From Hopper on, GPUs need a reset after their fabric manager was restarted (NVIDIA/nccl#1488).
RESTART_FABRIC = resets.with_steps(
    "end all programs on the GPUs, systemctl restart nvidia-fabricmanager; if it ran before (Hopper"
    " and later), then reset all GPUs: {reset_all}"
)

# -- the running driver ---------------------------------------------------------------------------


@check("driver.loaded", reads=("driver", "gpus"), repair=REBOOT, skip_reason=card_not_expected)
def loaded(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The driver is loaded, in the same version as its user-space libraries."""
    section = observed.data["driver"]
    version, library = section["loaded"], section["library"]
    section_cards = observed.data["gpus"]["pci"]
    held = cards.held_by_another(observed.data["gpus"]["pci"])
    for holder, taken in held.items():
        others = len(observed.data["gpus"]["pci"]) - len(taken)
        yield Finding(
            f"{holder} is bound to {shortened(taken, 8)}: CUDA cannot use these GPUs",
            "blacklist nouveau, rebuild the initramfs, reboot"
            if holder == "nouveau"
            else cards.release(holder),
            about=("nouveau",),
            entails=(
                "pending",
                *(f"card/{address}" for address in taken),
                *subjects.missing_gpus(others, others + len(taken)),
            ),
        )
    about: subjects.Subjects = (subjects.DRIVER,)
    entails: subjects.Subjects = ("pending", subjects.SMI, subjects.BRANCH)
    # Where CUDA starts, a program that sees no GPU has another cause.
    if section["cuinit"] != 0:
        entails += (subjects.GPUS,)
    if version is None:
        entails += (subjects.NODES, *(("libcuda",) if library is None else ()))
        if why := not_loaded.reason(plan, Host(observed.snapshot)):
            entails += why.entails
    elif library is None:
        about = ("libcuda",)
    # NVIDIA's module does not stay where another driver has each card: no load of it helps.
    of_others = {card["driver"] not in {None, OWN_DRIVER} for card in section_cards} == {True}
    waits = version is None and library is not None and library == section["on_disk"]
    if not (of_others and waits):
        for finding in driver_findings(driver_running.mismatch, plan, observed):
            yield replace(finding, about=about, entails=entails)
    yield Evidence(
        f"loaded {version}, on disk {section['on_disk']}, libraries {library}, modules:"
        f" {', '.join(section['modules']) or 'none'}"
    )


@check("driver.nodes", reads=("gpus", "driver"), repair=INSPECT, skip_reason=card_not_expected)
def nodes(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each GPU of the loaded driver has a device file."""
    missing = list(driver_findings(driver_running.nodes, plan, observed))
    if observed.data["driver"].get("of_container"):
        # Only root creates those of the host, by the first program that starts CUDA.
        missing = [
            Finding(
                f"{finding.cause}; the driver's container has its own",
                f"{AS_ROOT}: CUDA then creates them",
                verdict=Verdict.INCONCLUSIVE,
            )
            for finding in missing
        ]
    elif observed.data["driver"]["cuinit"] is None:
        # The first program that starts CUDA creates them, and none may have since the boot.
        missing = [
            Finding(
                f"{finding.cause}; CUDA was not started, which creates them",
                f"see driver.cuda; {finding.remedy}",
                verdict=Verdict.INCONCLUSIVE,
            )
            for finding in missing
        ]
    count = len(cards.of_driver(Host(observed.snapshot)))
    there = set(observed.data["gpus"]["nodes"])
    numbered = sum(name.removeprefix("/dev/nvidia").isdigit() for name in there)
    # CUDA starts only with both, and creates the second one.
    starts = (
        observed.data["driver"]["cuinit"] == 0 or {"/dev/nvidiactl", "/dev/nvidia-uvm"} <= there
    )
    entails = subjects.missing_gpus(numbered, count) if starts else (subjects.GPUS,)
    for finding in missing:
        yield replace(finding, about=(subjects.NODES,), entails=entails)
    yield Evidence(shortened(observed.data["gpus"]["nodes"], 12) or "no device file")


@check(
    "driver.persistence", reads=("driver", "gpus"), severity="major", skip_reason=_no_persistence
)
def persistence(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The persistence daemon runs, and starts at boot."""
    yield from driver_findings(driver_running.persistence, plan, observed)
    driver = observed.data["driver"]
    if not driver_state.without_card(plan, Host(observed.snapshot)):
        yield from _unknown_service(driver_running.PERSISTENCE, driver["persistence"], driver)
    yield Evidence(str(driver["persistence"]))


def _unknown_service(unit: str, state: Unit | FabricManager, driver: Driver) -> Iterator[Finding]:
    """A finding where nobody knows whether a service that is there runs beside the driver."""
    if state["unit"] and state["active"] is None and driver["loaded"]:
        yield Finding(
            f"It is unknown whether {unit} runs",
            "take a new snapshot, as root and outside containers",
            verdict=Verdict.INCONCLUSIVE,
        )


@check("driver.fabric", reads=("driver", "gpus", "packages"), skip_reason=card_not_expected)
def fabric(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The fabric manager runs, in the driver's version, exactly where there is an NVSwitch."""
    for finding in driver_findings(driver_running.fabric, plan, observed):
        state = observed.data["driver"]["fabric"]
        # A manager that runs, and only does not start at boot, leaves no GPU unregistered.
        only_at_boot = state["active"] and not state["enabled"]
        yield replace(finding, entails=() if only_at_boot else ("fabric",))
    host = Host(observed.snapshot)
    driver, switches = observed.data["driver"], observed.data["gpus"]["nvswitches"]
    if driver_running.behind_hidden_nvswitch(host):
        yield from _subnet_manager(plan, observed)
    if driver_running.needs_fabric_manager(plan, host):
        yield from _unknown_service(driver_running.FABRIC, driver["fabric"], driver)
        # CUDA starts only with the fabric manager of the driver's version.
        if driver["fabric"]["active"] and not driver["fabric"]["version"] and driver["cuinit"] != 0:
            yield Finding(
                "The version of the fabric manager is unknown",
                "on the host: nv-fabricmanager --version prints it, else install it again",
                verdict=Verdict.INCONCLUSIVE,
            )
    yield Evidence(
        f"{len(switches)} NVSwitches, {driver['fabric']}, subnet manager: {driver.get('nvlsm')}"
    )


def _subnet_manager(plan: Plan, observed: Sections) -> Iterator[Finding]:
    """The NVLink subnet manager runs beside the fabric manager, which starts it."""
    section = observed.data["driver"]
    state = section.get("nvlsm")
    if section["fabric"]["active"] is not True or (state and state["running"]):
        return  # without the fabric manager that is the finding
    if state is None or state["running"] is None:
        yield Finding(
            "It is unknown whether the NVLink subnet manager (nvlsm) runs",
            "take a new snapshot, as root and outside containers",
            verdict=Verdict.INCONCLUSIVE,
        )
        return
    faults = list(driver_running.subnet_manager(plan, Host(observed.snapshot)))
    by_hand = (
        f"on the host{'' if state['program'] else ', install the package nvlsm;'} load the modules"
        f" mlx5_ib and ib_umad; {RESTART_FABRIC}; journalctl -u nvidia-fabricmanager shows why it"
        " fails"
    )
    yield Finding(
        "The NVLink subnet manager (nvlsm), by which the fabric manager reaches the NVSwitches of"
        f" these GPUs, {'does not run' if state['program'] else 'is not installed'}",
        f"{faults[0].remedy}; if it stays so, {by_hand}" if faults else by_hand,
        # Where CUDA starts, the fabric has been set up.
        verdict=Verdict.INCONCLUSIVE if section["cuinit"] == 0 else Verdict.FAIL,
        entails=("fabric",),
    )
