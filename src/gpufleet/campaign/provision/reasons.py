"""Decide why a host needs Ansible. Pure: documents in, sentences out.

The roles do exactly what `components.changes` lists, so its changes are reasons. The playbook also
removes the files that a killed installation left. What the probe could not read is none: nobody
knows that there is something to do.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from gpufleet.components.base.host import Host
from gpufleet.components.changes import changes
from gpufleet.components.repairs import key
from gpufleet.documents.plan import Plan
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.verdict import HostResult, Verdict
from gpufleet.fleet.session import HostRun


def why(plan: Plan, snapshot: Snapshot | None, *, kept: bool = False) -> list[str]:
    """Return each reason to run Ansible on a host; none if the host matches its plan.

    `kept`: artifacts stay on the host (`artifacts_keep`).
    """
    if plan["problems"] or snapshot is None:
        return []
    return [*differences(plan, snapshot), *([] if kept else left(plan, snapshot))]


def left_alone(host: HostRun) -> str:
    """Why Ansible could do nothing on a host; empty where nothing says so.

    It would not reach it either, would refuse what is refused here, or would have to do what nobody
    has read to be necessary.
    """
    if host.plan["problems"]:
        return "its declaration cannot be fulfilled there, see host.plan below"
    if host.snapshot is None:
        return "it is not reached, see host.reachable below"
    rows = changes(host.plan, host.snapshot)
    refused = [row for row in rows if row["action"] == "refuse"]
    if refused and len(refused) == len(rows):
        return f"{refused[0]['because']} ({refused[0]['what']})"
    if unread := [row["because"] for row in rows if row["action"] == "unread"]:
        return f"a part of it was not read: {unread[0]}"
    return ""


def differences(plan: Plan, snapshot: Snapshot) -> list[str]:
    """The work of the roles, a sentence for each change."""
    return [
        f"{row['action']} {row['what']} {row['id']}: {row['because']}"
        for row in changes(plan, snapshot)
        if row["action"] != "unread"
    ]


def differing(plan: Plan, snapshot: Snapshot | None) -> dict[str, str]:
    """The reasons of the plan's changes that repair components, by component."""
    if plan["problems"] or snapshot is None:
        return {}
    return {
        key(row["what"], row["id"]): row["because"]
        for row in changes(plan, snapshot)
        if row["action"] not in {"adopt", "remove", "refuse", "unread"}
    }


def left(plan: Plan, snapshot: Snapshot) -> list[str]:
    """The removals by the playbook: planned artifacts, and the installers' caches."""
    planned = {row["file"] for row in plan["artifacts"]}
    found = map(PurePosixPath, Host(snapshot).caches)
    return [
        f"clear {path}: an installation was stopped before its end"
        for path in found
        if path.parent.name != "artifacts" or path.name in planned
    ]


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
