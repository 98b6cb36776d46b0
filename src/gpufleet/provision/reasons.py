"""Why provisioning has something to do on a host. Pure: documents in, sentences out.

Each role does what `compat.changes` says and nothing else, so that is the first half of the
answer. The playbook does one thing beside it: it clears away what an installation needed while it
lasted, which a killed run has left. The other half is what the look could not tell: Ansible is run
there, and finds out by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from gpufleet.checks.judge import points_to
from gpufleet.diff import changes
from gpufleet.host_state.host import Host
from gpufleet.model.verdict import Verdict

Document = Mapping[str, Any]

UNJUDGED = {Verdict.HUNG, Verdict.UNREACHABLE, Verdict.INCONCLUSIVE}


def why(
    plan: Document, snapshot: Document | None, result: Document, *, kept: bool = False
) -> list[str]:
    """Each reason to run Ansible on a host; none where it is what its plan says.

    `kept`: artifacts are to stay on the host (`artifacts_keep`).
    """
    if plan["problems"]:
        return [f"{each['where']}: {each['message']}" for each in plan["problems"]]
    if snapshot is None:
        return unjudged(result)
    return [*differences(plan, snapshot), *([] if kept else left(plan, snapshot)),
            *unjudged(result)]


def differences(plan: Document, snapshot: Document) -> list[str]:
    """What the roles would do, in words."""
    return [f"{row['action']} {row['what']} {row['id']}: {row['because']}"
            for row in changes(plan, snapshot)]


def left(plan: Document, snapshot: Document) -> list[str]:
    """What the playbook would clear away: planned artifacts, and the installers' caches."""
    planned = {row["file"] for row in plan["artifacts"]}
    found = map(PurePosixPath, Host(snapshot).caches)
    return [f"clear {path}: an installation was stopped before its end" for path in found
            if path.parent.name != "artifacts" or path.name in planned]


def unjudged(result: Document) -> list[str]:
    """What the look could not tell, each cause once."""
    bad = {check["id"] for check in result["checks"] if check["verdict"] == Verdict.FAIL}
    causes = [check["cause"] for check in result["checks"]
              if check["verdict"] in UNJUDGED and not points_to(check, bad)]
    return [f"not judged: {cause}" for cause in dict.fromkeys(causes)]


def beyond(plan: Document, snapshot: Document | None, result: Document) -> list[str]:
    """The failed checks of a host on which provisioning has nothing to do: it mends none."""
    if plan["problems"] or snapshot is None or differences(plan, snapshot):
        return []
    return [check["id"] for check in result["checks"] if check["verdict"] == Verdict.FAIL]
