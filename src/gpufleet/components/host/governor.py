"""The CPU frequency governor: between their kernels GPUs wait for CPUs that clock low."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpufleet.components.base.registry import AS_ROOT, INSPECT, Evidence, Finding, check
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.verdict import Verdict

# Drivers whose hardware selects the frequency. Their powersave follows the load, as schedutil does
# elsewhere; they have no third governor.
OWN_SCALING = {"intel_pstate", "amd-pstate-epp"}
THEIR_GOVERNORS = ("performance", "powersave")


def named_cpus(cpus: Iterable[int]) -> str:
    """`CPUs 0-3, 8`, or `CPU 4`."""
    found: list[list[int]] = []
    for cpu in sorted(cpus):
        if found and cpu == found[-1][1] + 1:
            found[-1][1] = cpu
        else:
            found.append([cpu, cpu])
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in found)
    return f"CPU {text}" if text.isdigit() else f"CPUs {text}"


def _undeclared(plan: Plan) -> str | None:
    return None if plan["expect"].get("governor") else "gpu_expect.governor: not set"


def _remedy(wanted: str, drivers: set[str | None]) -> str:
    own = sorted(driver for driver in drivers if driver in OWN_SCALING)
    if own and wanted not in THEIR_GOVERNORS:
        return (
            f"declare performance or powersave in gpu_expect.governor: {own[0]} has no {wanted};"
            " its powersave follows the load"
        )
    return (
        f"on the host: cpupower frequency-set -g {wanted}; it lasts until the next reboot: let the"
        " distribution's service set it at each boot (tuned, or cpupower.service)"
    )


@check(
    "host.governor", reads=("kernel",), repair=INSPECT, severity="major", skip_reason=_undeclared
)
def governed(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every CPU has the declared frequency governor."""
    wanted = str(plan["expect"].get("governor"))
    rows = observed.data["kernel"].get("frequency")
    if rows is None:
        yield Finding(
            "The CPUs' frequency governors were not observed",
            "take a new snapshot with this release's probe, where /sys is mounted",
            verdict=Verdict.INCONCLUSIVE,
        )
        return
    if not rows:
        yield Finding(
            "The kernel sets no CPU's frequency here (no cpufreq), so that no CPU has a governor",
            "in a virtual machine, remove gpu_expect.governor for this host; on hardware, let its"
            " firmware leave the CPUs' frequency to the operating system",
            verdict=Verdict.INCONCLUSIVE,
        )
    groups: dict[tuple[str | None, str | None], list[int]] = {}
    for row in rows:
        groups.setdefault((row["governor"], row["driver"]), []).append(row["cpu"])
    shown = [
        f"{named_cpus(cpus)}: {governor or 'not read'} ({driver or 'driver not read'})"
        for (governor, driver), cpus in groups.items()
    ]
    others = {key: cpus for key, cpus in groups.items() if key[0] is not None and key[0] != wanted}
    if others:
        named = [
            f"{named_cpus(cpus)} {'has' if len(cpus) == 1 else 'have'} {governor}"
            + (f", which follows the load under {driver}" if _follows(governor, driver) else "")
            for (governor, driver), cpus in others.items()
        ]
        yield Finding(
            f"Not every CPU has the governor {wanted}: {'; '.join(named)}",
            _remedy(wanted, {driver for _, driver in others}),
            "\n".join(shown),
        )
    unread = [cpu for (governor, _), cpus in groups.items() if governor is None for cpu in cpus]
    if unread:
        yield Finding(
            f"The governor of {named_cpus(unread)} cannot be read",
            AS_ROOT,
            "\n".join(shown),
            Verdict.INCONCLUSIVE,
        )
    if shown:
        yield Evidence("; ".join(shown))


def _follows(governor: str | None, driver: str | None) -> bool:
    return governor == "powersave" and driver in OWN_SCALING
