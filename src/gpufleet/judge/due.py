"""Keeps `plan` and `verify` in agreement: each change is a finding, each finding a change.

A change that no failing check names is a finding of `install.complete`; a failing check whose
remedy is to provision, and that no change answers, is a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from gpufleet.components.base.change import change
from gpufleet.components.base.host import Host
from gpufleet.components.base.remedies import Component, locally_found, person, provision
from gpufleet.components.changes import changes
from gpufleet.components.checks import Finding
from gpufleet.components.repairs import key, repairable
from gpufleet.documents.plan import Plan, PlanChange
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.verdict import HEALTHY_VERDICTS, CheckResult, Verdict

# The check that says it.
CHECK = "install.complete"
# Where this is not healthy, nothing says what the host is to have.
PLAN = "host.plan"
# The checks of these components judge what is there, whoever installed it and by whatever way a
# link leads there: beyond that a run would only write down that it is gpufleet's.
JUDGED_WHOLE = {"containers", "default_link", "driver", "network"}
# A part that was not read is INCONCLUSIVE in the checks that read it.
UNREAD = "unread"
# Kinds that a run removes where none of them is declared any more.
TAKEN_BACK = {"environment", "linker"}
FAILING = {Verdict.FAIL, Verdict.HUNG}


def findings(plan: Plan, snapshot: Snapshot, judged: Iterable[CheckResult]) -> Iterator[Finding]:
    """A finding for each change of the plan whose component no failing check names."""
    checks = {check["id"]: check for check in judged}
    undeclared = PLAN in checks and checks[PLAN]["verdict"] not in HEALTHY_VERDICTS
    if plan["problems"] or locally_found(plan) or undeclared:
        return
    failing = [check for check in checks.values() if check["verdict"] in FAILING]
    named = {
        key(part["component"], part["name"])
        for check in failing
        for part in check.get("repairs", ())
        if "component" in part and "name" in part
    }
    unfinished = any(check["id"] == CHECK for check in failing)
    for row in changes(_with_known_locks(plan, snapshot), snapshot):
        if key(row["what"], row["id"]) in named or not _is_a_fault(plan, row):
            continue
        # A refused change has a cause of its own, and so has a removal that was stopped.
        if (row["action"] == "refuse" and failing) or (row["action"] == "remove" and unfinished):
            continue
        yield Finding(
            f"{row['action']} of {row['what']} {row['id']} is due: {row['because']}",
            person("move away what is there, or do not declare it here; then ./gpufleet provision")
            if row["action"] == "refuse"
            else provision(plan, Component(row["what"], row["id"])),
        )


def agreed(plan: Plan, snapshot: Snapshot, judged: Iterable[CheckResult]) -> list[PlanChange]:
    """The changes of a host, and a repair for each failing check that none of them answers.

    The first component that a check names is the likely one. Its contents are compared first.
    """
    rows, known = changes(plan, snapshot), {key(*each): each for each in repairable(plan)}
    answered = {key(row["what"], row["id"]) for row in rows}
    for check in judged:
        if check["verdict"] not in FAILING or "explained_by" in check:
            continue
        named = components(check)
        likely = next((name for name in named if name in known), None)
        if likely is None or answered.intersection(named):
            continue
        because = f"{check['id']} fails: {check['cause']}"
        rows.append(change(*known[likely], "repair", because, "contents"))
        answered.add(likely)
    return rows


def components(check: CheckResult) -> list[str]:
    """The components that `provision` repairs for a check, the most likely one first."""
    return list(
        dict.fromkeys(
            key(part["component"], part["name"])
            for part in check.get("repairs", [])
            if part["by"] == "provision" and "component" in part and "name" in part
        )
    )


def _is_a_fault(plan: Plan, row: PlanChange) -> bool:
    """Return whether a verification answers for a change."""
    if row["action"] == UNREAD or row["what"] in JUDGED_WHOLE:
        return False
    # An inventory that declares no software says nothing about what others have declared.
    software = plan["toolkits"] or plan["stacks"] or plan["prune"]
    return bool(software) or row["what"] not in TAKEN_BACK


def _with_known_locks(plan: Plan, snapshot: Snapshot) -> Plan:
    """The plan; a lock that this machine does not have is the one that the stack was made of."""
    host = Host(snapshot)
    stacks = [
        row
        if row.get("lock_sha256")
        else {**row, "lock_sha256": (host.receipt("stack", row["name"]) or {}).get("lock_sha256")}
        for row in plan["stacks"]
    ]
    return cast(Plan, {**plan, "stacks": stacks})
