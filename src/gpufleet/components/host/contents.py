"""The nightly reading of all installed files, in time; `*.files` report the differences."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from gpufleet.components.base import subjects
from gpufleet.components.base.contents import last_read
from gpufleet.components.base.registry import Evidence, Finding, check, shortened
from gpufleet.components.base.remedies import person
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.cuda import ContentsRead
from gpufleet.documents.verdict import Verdict

DAY_S = 86400


@check("install.contents", reads=("receipts",), repair="raise scrub_seconds", severity="major")
def contents(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The nightly run has compared the contents of what is installed within scrub_days."""
    scrub = observed.data["receipts"].get("scrub")
    if scrub is None:
        yield Finding(
            "scrub_days: a share of the contents is read by the nightly run",
            "./gpufleet verify --deep",
            verdict=Verdict.NOT_DECLARED,
        )
        return
    if observed.snapshot.get("clock_offset_s"):
        yield Finding(
            "It is unknown since when the contents were not read: the host's clock is wrong",
            person("see host.probe: set the clock of the host; then ./gpufleet verify"),
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.CLOCK,),
        )
        return
    # One night without an answer is made up for by the next: a disk may be busy.
    tonight = f"nothing was read tonight: {scrub['error']}" if scrub["error"] else ""
    late = [
        _age(entry, scrub["at"])
        for entry in scrub["components"]
        if not 0 <= scrub["at"] - last_read(entry) <= scrub["days"] * DAY_S
    ]
    # Every library has a checksum to be compared with.
    known = {(entry["component"], entry["installed"]) for entry in scrub["components"]}
    late += [
        f"{name} (not read at all)"
        for receipt in observed.data["receipts"]["receipts"]
        if (name := f"{receipt['kind']}-{receipt['id']}")
        and receipt["libraries"]
        and (name, receipt["installed"]) not in known
    ]
    if late:
        slow = [path for entry in scrub["components"] for path in entry["slow"]]
        short = f"{scrub['seconds']:g} s are too short for {shortened(slow)}" if slow else ""
        yield Finding(
            "; ".join(
                filter(
                    None,
                    (f"Not read within {scrub['days']:g} days: {shortened(late)}", short, tonight),
                )
            ),
            person(
                (
                    "on the host: find what keeps its disks busy (iostat -x 5 3), and disk errors"
                    " in the kernel log (dmesg -T); or "
                    if tonight
                    else ""
                )
                + f"raise scrub_seconds, now {scrub['seconds']:g}, or scrub_days in the"
                " nightly's settings; pull_verify_scrub_* of a host that verifies itself"
            ),
            "\n".join([*late, *slow, *filter(None, [tonight])]),
            Verdict.INCONCLUSIVE,
        )
    if tonight:
        yield Evidence(tonight)
    for entry in scrub["components"]:
        yield Evidence(
            f"{entry['component']}: {entry['files']} files,"
            f" {int(entry['bytes']) >> 20} MiB, {_when(entry)}"
        )


def _age(entry: ContentsRead, now: int) -> str:
    days = (now - last_read(entry)) // DAY_S
    if entry["read"] is None:
        return f"{entry['component']} (not yet read whole, started {days} days ago)"
    return f"{entry['component']} (last read whole {days} days ago)"


def _when(entry: ContentsRead) -> str:
    try:
        moment = datetime.fromtimestamp(last_read(entry), UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, OSError, ValueError):
        moment = "at no possible time"
    return f"reading started {moment}" if entry["read"] is None else f"read whole {moment}"
