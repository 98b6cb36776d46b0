"""The NVMe drives of the machine, by the health log that each drive keeps.

Judged is what the standard calls a warning, and the endurance that the maker rates: NVM Express
Base Specification 2.0, "SMART / Health Information (Log Identifier 02h)". Lifetime counts, such as
media errors, are no fault by themselves: a part of all healthy drives has some. A manifest compares
them with the group's.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base.registry import AS_ROOT, HARDWARE, Evidence, Finding, check
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.machine import Drive, DriveHealth
from gpufleet.documents.verdict import Verdict

from .drives import unlike_siblings

# By bit of the critical warning: what it means, and what to do.
REPLACE = "back up what is on it and replace the drive"
WARNINGS = {
    0: ("its spare capacity is below the threshold", REPLACE),
    1: ("its temperature is beyond a threshold", "check its cooling"),
    2: ("it is not reliable any more, after media or internal errors", REPLACE),
    3: ("it has become read-only", REPLACE),
    4: ("the backup of its volatile memory has failed", REPLACE),
    5: ("its persistent memory is read-only or not reliable", REPLACE),
}
# The kernel's state of a controller that it has given up.
DEAD = "dead"
USED_UP = 100
# The statuses of a drive that does not know the log: invalid opcode, field or log page. Each has a
# bit that says whether a repetition may succeed. Emulated drives need not keep one.
UNKNOWN_LOG, STATUS_CODE = {0x001, 0x002, 0x109}, 0x7FF


@check("host.nvme", reads=("machine", "kernel"), repair=HARDWARE, severity="major")
def sound(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """No NVMe drive warns, is worn out, or has a slower link than its siblings."""
    drives = observed.data["machine"]["drives"]
    if observed.data["kernel"]["container"]:
        yield Finding(
            "the drives are the machine's, not this container's",
            "verify the machine itself",
            verdict=Verdict.NOT_DECLARED,
        )
        return
    gpus = observed.read_elsewhere().get("gpus")
    emulated = bool(gpus and gpus.get("hypervisor"))
    for drive in drives:
        health = drive["health"]
        if drive["state"] == DEAD:
            yield Finding(
                f"{_named(drive)} is dead: the kernel has given it up",
                "on the host: see dmesg; seat the drive and reboot, or replace it",
            )
        elif emulated and drive["refused"] and drive["refused"] & STATUS_CODE in UNKNOWN_LOG:
            yield Evidence(f"{_named(drive)}: emulated, it keeps no health log")
        elif health is None:
            yield Finding(
                f"The health of {_named(drive)} cannot be read: {drive['error'] or 'no answer'}",
                AS_ROOT
                if observed.snapshot.get("euid")
                else "on the host: read it by hand (smartctl -x, or nvme smart-log)",
                verdict=Verdict.INCONCLUSIVE,
            )
        else:
            yield from _judged(drive, health)
    yield from unlike_siblings(observed.data["machine"], plan)
    yield Evidence("\n".join(map(_line, drives)) or "no NVMe drive")


def _judged(drive: Drive, health: DriveHealth) -> Iterator[Finding]:
    shown = _line(drive)
    bits = [bit for bit in range(8) if health["critical_warning"] >> bit & 1]
    for bit in bits:
        meaning, act = WARNINGS.get(bit, (f"bit {bit} of its critical warning is set", REPLACE))
        yield Finding(f"{_named(drive)} warns: {meaning}", _on_host(act), shown)
    if health["spare_percent"] < health["spare_threshold_percent"] and 0 not in bits:
        yield Finding(
            f"{_named(drive)} has {health['spare_percent']} % of its spare capacity, below its"
            f" threshold of {health['spare_threshold_percent']} %",
            _on_host(REPLACE),
            shown,
        )
    if health["used_percent"] >= USED_UP:
        yield Finding(
            f"{_named(drive)} is worn out: {health['used_percent']} % of the endurance that its"
            " maker rates is used. It may work on for a time",
            _on_host(REPLACE),
            shown,
        )
    works = health["power_on_hours"] and (health["reads"] or health["writes"])
    moved = health["units_read"] or health["units_written"]
    if works and not moved and not health["power_cycles"]:
        yield Finding(
            f"The health log of {_named(drive)} cannot be right: it counts hours and commands, but"
            " neither a power cycle nor any data",
            _on_host("update its firmware or replace it, and compare with smartctl -x"),
            shown,
            Verdict.INCONCLUSIVE,
        )


def _on_host(act: str) -> str:
    return f"on the host: {act}"


def _named(drive: Drive) -> str:
    return f"{drive['name']} ({drive['model'] or 'model not read'})"


def _line(drive: Drive) -> str:
    health = drive["health"]
    if health is None:
        return f"{_named(drive)}: not read"
    return (
        f"{_named(drive)}: warnings {health['critical_warning']:#04x}, spare"
        f" {health['spare_percent']} %, used {health['used_percent']} %, media errors"
        f" {health['media_errors']}"
    )
