"""Decide why a host needs Ansible. Pure: documents in, sentences out.

The roles do exactly what `diff` lists, so its changes are reasons. The playbook also removes the
files that a killed installation left. What the probe could not determine is a reason, too: Ansible
runs on the host and finds out.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from gpufleet.checks.host.booted import BOOTED
from gpufleet.diff import changes
from gpufleet.diff.repairs import key
from gpufleet.host_state.host import Host
from gpufleet.model.plan import Plan
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.verdict import HostResult, Verdict

UNJUDGED = {Verdict.HUNG, Verdict.UNREACHABLE, Verdict.INCONCLUSIVE}


def why(
    plan: Plan, snapshot: Snapshot | None, result: HostResult, *, kept: bool = False
) -> list[str]:
    """Return each reason to run Ansible on a host; none if the host matches its plan.

    `kept`: artifacts stay on the host (`artifacts_keep`).
    """
    if plan["problems"]:
        return [f"{each['where']}: {each['message']}" for each in plan["problems"]]
    if snapshot is None:
        return unjudged(result)
    return [
        *differences(plan, snapshot),
        *([] if kept else left(plan, snapshot)),
        *unjudged(result),
    ]


def differences(plan: Plan, snapshot: Snapshot) -> list[str]:
    """What the roles would do, a sentence each."""
    return [
        f"{row['action']} {row['what']} {row['id']}: {row['because']}"
        for row in changes(plan, snapshot)
    ]


def differing(plan: Plan, snapshot: Snapshot | None) -> dict[str, str]:
    """{component: why} of what the plan's changes repair."""
    if plan["problems"] or snapshot is None:
        return {}
    return {
        key(row["what"], row["id"]): row["because"]
        for row in changes(plan, snapshot)
        if row["action"] not in {"adopt", "remove", "refuse"}
    }


def left(plan: Plan, snapshot: Snapshot) -> list[str]:
    """What the playbook would remove: planned artifacts, and the installers' caches."""
    planned = {row["file"] for row in plan["artifacts"]}
    found = map(PurePosixPath, Host(snapshot).caches)
    return [
        f"clear {path}: an installation was stopped before its end"
        for path in found
        if path.parent.name != "artifacts" or path.name in planned
    ]


def unjudged(result: HostResult) -> list[str]:
    """What the probe could not determine, each cause once, without what a finding explains.

    That an image has not booted is no reason: Ansible does not boot it.
    """
    causes = [
        check["cause"]
        for check in result["checks"]
        if check["verdict"] in UNJUDGED and "explained_by" not in check and check["id"] != BOOTED
    ]
    return [f"not judged: {cause}" for cause in dict.fromkeys(causes)]


def beyond(plan: Plan, snapshot: Snapshot | None, result: HostResult) -> list[str]:
    """The failed checks of a host on which provisioning has nothing to do, so cannot fix them."""
    failed = [
        check["id"]
        for check in result["checks"]
        if check["verdict"] == Verdict.FAIL
        and not any(part["by"] == "provision" for part in check.get("repairs", []))
    ]
    if not failed or plan["problems"] or snapshot is None or differences(plan, snapshot):
        return []
    return failed
