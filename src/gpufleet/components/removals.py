"""The removals of the next run: undeclared leftovers, if `gpu_prune` is set. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath

from gpufleet.components import leftovers
from gpufleet.components.base.host import Host
from gpufleet.documents.plan import Plan, PlanChange

from .base.change import change


def removals(plan: Plan, host: Host) -> list[PlanChange]:
    """The removals of the next run, with their reasons, as rows of `changes`."""
    undeclared = "no longer declared (gpu_prune)"
    rows, paths = [], []
    for each in leftovers.found(plan, host):
        if each.removing_since:
            because = f"its removal started at {each.removing_since} and did not finish"
        elif plan.get("prune") and not each.users:
            because = f"it is in {each.path} and {undeclared}"
        else:
            continue
        rows.append(change(each.kind, each.id, "remove", because))
        paths += [each.path] if each.kind == "toolkit" else []
    if plan.get("prune") and plan["default_link"] is None:
        rows += _default_link(host, paths)
    return rows


def _default_link(host: Host, gone: list[str]) -> list[PlanChange]:
    """The default link, if it points to a toolkit that is removed now or was by a killed run."""
    link = host.default_link
    if link is None or link["state"] != "link":
        return []
    path = PurePosixPath(link["path"])
    target = path.parent / str(link["target"])
    dangles = not link["realpath"] and target.match(f"{path}-[0-9]*")
    if str(target) not in gone and not dangles:
        return []
    because = f"it points to {target}, and no toolkit is declared any longer (gpu_prune)"
    return [change("default_link", str(path), "remove", because)]
