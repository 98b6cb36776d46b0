"""Trays and superchips with Grace: IMEX, and what manages the memory that CPU and GPU share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from gpufleet.components.base import driver_state
from gpufleet.components.base.registry import INSPECT, Evidence, Finding, check, shortened
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import ExpectedImex, Plan
from gpufleet.documents.sections.gpu import Imex
from gpufleet.documents.text import quoted
from gpufleet.documents.verdict import Verdict

MEMORY_MODES = ("driver", "numa")
SERVICE, NODES = "nvidia-imex.service", "/etc/nvidia-imex/nodes_config.cfg"
CHANNELS = "/dev/nvidia-caps-imex-channels"
# CDMM came with this branch (NVIDIA driver release notes 580).
FIRST_BRANCH = 580
PROBE_AGAIN = "take a new snapshot with this release's probe"


def _no_imex(plan: Plan) -> str | None:
    return None if plan["expect"].get("imex") else "gpu_expect.imex: not set"


def _no_mode(plan: Plan) -> str | None:
    return None if plan["expect"].get("memory_mode") else "gpu_expect.memory_mode: not set"


@check(
    "driver.imex",
    reads=("driver", "packages"),
    repair=INSPECT,
    severity="major",
    skip_reason=_no_imex,
)
def imex(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """IMEX runs in the driver's version, with the declared nodes and channels."""
    wanted = cast(ExpectedImex, plan["expect"].get("imex"))
    row = observed.data["driver"].get("imex")
    if row is None:
        yield Finding("IMEX was not observed", PROBE_AGAIN, verdict=Verdict.INCONCLUSIVE)
        return
    loaded = observed.data["driver"]["loaded"]
    if row["unit"] is None:
        yield Finding(f"{SERVICE} is not installed", _install(loaded))
        return
    # driver.packages compares every package of a driver that gpufleet installs.
    for package in [] if driver_state.managed(plan) else observed.data["packages"]["driver"]:
        version = package["version"] or ""
        if package["name"].startswith("nvidia-imex") and loaded and loaded not in version:
            yield Finding(
                f"{package['name']} is {version}, the driver is {loaded}",
                _install(loaded),
            )
    if wanted["nodes"]:
        yield from _service(row)
        yield from _nodes(wanted["nodes"], row["nodes"])
    least = wanted["channels"]
    if least is not None and row["channels"] < least:
        yield Finding(
            f"{row['channels']} IMEX channels are in {CHANNELS}, declared are {least}",
            "on the host: the driver makes channel 0 at boot with the option"
            " NVreg_CreateImexChannel0=1 of the module nvidia (/etc/modprobe.d); others a job's"
            " prolog makes: they are gone after a reboot",
        )
    yield Evidence(
        f"{SERVICE}: enabled {row['enabled']}, active {row['active']}; nodes:"
        f" {shortened(row['nodes'] or []) or 'none'}; channels: {row['channels']}"
    )


def _install(loaded: str | None) -> str:
    version = f", {quoted(loaded)}" if loaded else ""
    return f"on the host: install nvidia-imex of the driver version{version}"


def _service(row: Imex) -> Iterator[Finding]:
    """A service whose nodes are those of the rack runs all the time."""
    if row["enabled"] is False:
        yield Finding(
            f"{SERVICE} does not start at boot", f"on the host: systemctl enable {SERVICE}"
        )
    if row["active"] is False:
        yield Finding(
            f"{SERVICE} does not run",
            f"on the host: systemctl start {SERVICE}; journalctl -u {SERVICE} shows why it fails;"
            " gpu_expect.imex: {per_job: true} declares that a job starts it",
        )
    if row["active"] is None:
        yield Finding(
            f"It is unknown whether {SERVICE} runs",
            "take a new snapshot, as root and outside containers",
            verdict=Verdict.INCONCLUSIVE,
        )


def _nodes(wanted: list[str], found: list[str] | None) -> Iterator[Finding]:
    remedy = (
        f"on the host: write the rack's trays into {NODES}, one address a line, the same on each of"
        f" them, and systemctl restart {SERVICE}; or correct gpu_expect.imex.nodes"
    )
    if found is None:
        yield Finding(f"{NODES} is missing", remedy)
        return
    lacking = [each for each in wanted if each not in found]
    foreign = [each for each in found if each not in wanted]
    differ = [f"it lacks {shortened(lacking)}"] if lacking else []
    differ += [f"it has also {shortened([quoted(each) for each in foreign])}"] if foreign else []
    if differ:
        yield Finding(f"{NODES} is not as declared: {'; '.join(differ)}", remedy)


@check(
    "driver.memory-mode",
    reads=("driver",),
    repair=INSPECT,
    severity="major",
    skip_reason=_no_mode,
)
def memory_mode(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """What manages the memory that CPU and GPU share is as declared."""
    wanted = str(plan["expect"].get("memory_mode"))
    row = observed.data["driver"].get("coherent_memory")
    if row is None:
        cause = "The memory's mode was not observed"
        yield Finding(cause, PROBE_AGAIN, verdict=Verdict.INCONCLUSIVE)
        return
    shown = (
        f"CoherentGPUMemoryMode: {row['mode'] or 'not reported'}; NUMA nodes without a CPU:"
        f" {', '.join(map(str, row['nodes'])) or 'none'}"
    )
    # Without the driver's word, nodes without a CPU are the GPUs' own; 615 has another default.
    reported = row["mode"] if row["mode"] in MEMORY_MODES else None
    found = reported or ("numa" if row["nodes"] else None)
    if found is None:
        yield Finding(
            "Neither the loaded driver nor a NUMA node tells what manages the GPUs' memory",
            "load the driver with NVreg_CoherentGPUMemoryMode set, and verify again; for a host"
            " whose CPU and GPU share no memory, remove gpu_expect.memory_mode",
            shown,
            Verdict.INCONCLUSIVE,
        )
    elif found != wanted:
        branch = int((observed.data["driver"]["loaded"] or "0").partition(".")[0])
        older = f" (from branch {FIRST_BRANCH} on)" if branch < FIRST_BRANCH else ""
        yield Finding(
            f"The {'driver' if found == 'driver' else 'kernel'} manages the GPUs' memory"
            f" ({found}), declared is {wanted}",
            f"on the host: set the option NVreg_CoherentGPUMemoryMode={wanted} of the module"
            f" nvidia{older} in /etc/modprobe.d, rebuild the initramfs, and reboot",
            shown,
        )
    yield Evidence(shown)
