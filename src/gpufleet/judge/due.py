"""What provision would do on a host and no check has found, so that `plan` and `verify` agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpufleet.checks import Finding
from gpufleet.checks.base.remedies import Component, locally_found, person, provision
from gpufleet.diff import changes
from gpufleet.diff.repairs import key
from gpufleet.model.plan import Plan
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.verdict import HEALTHY_VERDICTS, CheckResult

# The check that says it.
CHECK = "install.complete"
# Where this is not healthy, nothing says what the host is to have.
PLAN = "host.plan"
# The areas of checks that find what is due of a component; of others each has its own name.
AREAS = {"network": "network", "driver": "driver", "containers": "containers"}
# What of a part was not read is INCONCLUSIVE in the checks that read it. Whether a driver needs a
# restart is for its own checks: where it runs, only a marker is left to remove.
FOUND_ELSEWHERE = {"restart", "unread"}


def findings(plan: Plan, snapshot: Snapshot, judged: Iterable[CheckResult]) -> Iterator[Finding]:
    """A finding for each change of the plan whose component no unhealthy check names."""
    judged = list(judged)
    undeclared = any(
        check["id"] == PLAN and check["verdict"] not in HEALTHY_VERDICTS for check in judged
    )
    if plan["problems"] or locally_found(plan) or undeclared:
        return
    repairs = [
        (check["id"].partition(".")[0], part)
        for check in judged
        if check["verdict"] not in HEALTHY_VERDICTS
        for part in check.get("repairs", ())
    ]
    named = {
        key(part["component"], part["name"])
        for _, part in repairs
        if "component" in part and "name" in part
    }
    areas = {area for area, part in repairs if part["by"] == "provision"}
    for row in changes(plan, snapshot):
        if row["action"] in FOUND_ELSEWHERE or key(row["what"], row["id"]) in named:
            continue
        # What is refused is a fault of what is there, with a cause of its own.
        if row["action"] == "refuse" and repairs:
            continue
        if AREAS.get(row["what"]) in areas:
            continue
        cause = f"{row['action']} of {row['what']} {row['id']} is due: {row['because']}"
        yield Finding(
            cause,
            person("move away what is there, or do not declare it here; then ./gpufleet provision")
            if row["action"] == "refuse"
            else provision(plan, Component(row["what"], row["id"])),
        )
