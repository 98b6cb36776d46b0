"""Faults that appeared while the verification used the GPUs: second readings against the first.

The checks of the first reading judge the second one as well; what they find only there was caused,
or brought to light, by the load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from gpufleet.catalog import xids
from gpufleet.components.base.holders import holders
from gpufleet.components.base.registry import (
    CHECKS,
    HARDWARE,
    Check,
    Evidence,
    Finding,
    check,
    no_gpus_declared,
)
from gpufleet.components.base.sections import Sections, by_name
from gpufleet.components.host.host import unreadable_section
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.host import Event, KernelLog
from gpufleet.documents.snapshot import Section, Snapshot
from gpufleet.documents.verdict import Verdict

from .card_state import driver_branch
from .growth import between, slowdowns
from .kernel_log import judged

# The lookbehind begins once in a row of digits, which may be long.
TEMPERATURE = re.compile(r"(?<!\d)-?\d+ °C")
DURING = "new during the verification's own load"
# Checks of values that no load changes: a person sets settings, and a link that has just
# become idle slows down. Its lanes and its errors are compared by themselves.
UNRELATED = ("gpu.settings", "gpu.pcie")


@check("gpu.after-load", reads=("smi_after",), repair=HARDWARE, skip_reason=no_gpus_declared)
def cards_after_load(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """No GPU has a fault after the verification's own load that it did not have before."""
    before = observed.snapshot
    after = _with(before, "smi", by_name(before)["smi_after"])
    for each in list(CHECKS.values()):
        if (
            each.id.startswith("gpu.")
            and "smi" in each.reads
            and each.id not in UNRELATED
            and not each.skip_reason(plan)
            and (found := _findings(each, plan, after))
        ):
            known = {_comparable(finding) for finding in _findings(each, plan, before)}
            yield from (
                _caused_by_load(finding)
                for finding in found
                if _comparable(finding) not in known and not _clocks_fall(each, finding)
            )
    if not unreadable_section(before, "smi"):
        yield from map(_caused_by_load, between(observed))
        yield from slowdowns(observed)
    yield Evidence(f"{len(observed.data['smi_after']['devices'])} GPUs read again after all work")


def _with(snapshot: Snapshot, name: str, section: Section[object]) -> Snapshot:
    """The snapshot with another section in the place of one."""
    return cast(Snapshot, {**snapshot, "sections": {**by_name(snapshot), name: section}})


def _findings(each: Check, plan: Plan, snapshot: Snapshot) -> list[Finding]:
    """The findings of a check in a snapshot; none where a section that it reads is unreadable."""
    if any(unreadable_section(snapshot, name) for name in each.reads):
        return []
    results = each.function(plan, Sections(snapshot, each.reads))
    return [item for item in results if isinstance(item, Finding)]


def _comparable(finding: Finding) -> tuple[Verdict, str]:
    """A finding without its temperatures, which differ from moment to moment."""
    return finding.verdict, TEMPERATURE.sub("°C", finding.cause)


def _clocks_fall(each: Check, finding: Finding) -> bool:
    """Return whether a finding only reports that a GPU's clocks fell after the load."""
    return each.id == "gpu.throttle" and finding.verdict is Verdict.INCONCLUSIVE


def _caused_by_load(finding: Finding) -> Finding:
    return replace(finding, cause=f"{finding.cause} ({DURING})")


@check(
    "kernel.after-load",
    reads=("kernel_log", "kernel_log_after", "gpus"),
    repair=HARDWARE,
    skip_reason=no_gpus_declared,
)
def log_after_load(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The kernel logged no failure of a GPU or the driver during the verification's own load."""
    before, after = observed.data["kernel_log"], observed.data["kernel_log_after"]
    if before["source"] is None or after["source"] is None:
        yield Finding(
            "It is unknown what the kernel logged during the verification's own load: its log was"
            " not read before and after it",
            "see kernel.log",
            verdict=Verdict.INCONCLUSIVE,
            about=("kernel-log",),
        )
        return
    events = list(_new_events(before, after))
    branch = driver_branch(observed.read_elsewhere())
    alone = holders(observed) == [] and not _was_ended(observed)
    for event in events:
        found = [
            item
            for item in judged(observed, [event], during_probe=True)
            if isinstance(item, Finding)
        ]
        yield from map(_caused_by_load, found)
        # The probe ends its own processes where they hang, which the driver records.
        if found or not alone or event["kind"] != "xid" or event["code"] == xids.PROGRAM_ENDED:
            continue
        known = xids.meaning(event["code"] or 0, event["text"], branch)
        if known.effect == "program" or known.action == "RESTART_APP":
            yield Finding(
                f"Xid {event['code']} of {event['address']} ({DURING}): {known.name}; no other"
                " program used the GPUs, and the verification's own are correct",
                "./gpufleet verify --deep; if it returns, drain the host and replace the GPU",
                event["text"],
                Verdict.INCONCLUSIVE,
            )
    yield Evidence(
        f"{after['source']}, {len(events)} new events; "
        + ("; ".join(event["text"] for event in events[:4]) or "nothing of note")
    )


def _new_events(before: KernelLog, after: KernelLog) -> Iterator[Event]:
    """The events that were logged after the first reading, each with its new messages' number.

    A number has several events where its texts ask for different things: those that came after the
    last one of the first reading are new.
    """
    first: dict[tuple[str, int | None, str | None], list[Event]] = {}
    for event in before["events"]:
        first.setdefault((event["kind"], event["code"], event["address"]), []).append(event)
    for event in after["events"]:
        old = first.get((event["kind"], event["code"], event["address"]), [])
        same = next((each for each in old if len(old) == 1 or each["text"] == event["text"]), None)
        last = max((each["uptime_s"] or 0 for each in old), default=0.0)
        known = same["count"] if same else 0
        if (
            not old
            or (event["uptime_s"] or 0) > last
            or (event["uptime_s"] is None and event["count"] > known)
        ):
            yield {**event, "count": max(1, event["count"] - known)}


def _was_ended(observed: Sections) -> bool:
    """Return whether a program of the probe hung and was ended, which the driver records."""
    data = observed.read_elsewhere()
    runs = data["compute"]["runs"] if "compute" in data else []
    stacks = data["stacks"]["stacks"] if "stacks" in data else []
    frameworks = [stack["framework"] for stack in stacks if stack["framework"]]
    return (
        "compute" not in data
        or "stacks" not in data
        or any(run["state"] == "hung" for run in (*runs, *frameworks))
    )
