"""Leftovers: what gpufleet installed on a host and the plan no longer declares.

They go when the plan says so (`gpu_prune`), and are named otherwise. What has neither a receipt
nor a journal entry is nobody's leftover. A toolkit that an environment of somebody else is bound
to stays, with its cuDNN; stacks of ours are never bound to one, since the plan has each stack's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from . import driver_state
from .host import Host

Row = dict[str, Any]

KINDS = ("stack", "cudnn", "toolkit")  # in the order in which they can go


@dataclass(frozen=True)
class Leftover:
    """`begun` tells since when it is being removed, `users` what else is bound to its toolkit."""

    kind: str
    id: str
    path: str
    begun: str | None
    users: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.kind} {self.id} in {self.path}"


def found(plan: Mapping[str, Any], host: Host) -> list[Leftover]:
    """The leftovers in the order in which they can go; none where the host could not tell."""
    if host.unseen(("receipts", "stacks")):
        return []
    declared = {("toolkit", row["short"]) for row in plan["toolkits"]}
    declared |= {("cudnn", row["id"]) for row in plan["cudnn"]}
    declared |= {("stack", row["name"]) for row in plan["stacks"]}
    rows = [*host.entries("receipts"), *host.entries("journal")]
    entries = {(str(row.get("kind")), str(row.get("id"))): row for row in rows}
    return [
        _leftover(host, row)
        for wanted in KINDS
        for (kind, identity), row in sorted(entries.items())
        if kind == wanted and (kind, identity) not in declared
    ]


def _leftover(host: Host, row: Row) -> Leftover:
    kind, identity, path = str(row.get("kind")), str(row.get("id")), str(row.get("path"))
    entry = host.journal(kind, identity) or {}
    begun = str(entry.get("started")) if entry.get("state") == "removing" else None
    users = [
        str(stack.get("venv"))
        for stack in host.foreign_stacks
        if kind != "stack" and str(stack.get("bound_to")).startswith(f"{path}/")
    ]
    return Leftover(kind, identity, path, begun, tuple(users))


def removals(plan: Mapping[str, Any], host: Host) -> list[Row]:
    """What the next run takes away, and why, as rows of `changes`."""
    undeclared = "nothing declares it any more (gpu_prune)"
    rows, paths = [], []
    for each in found(plan, host):
        if each.begun:
            because = f"its removal was begun at {each.begun} and not finished"
        elif plan.get("prune") and not each.users:
            because = f"{each.path} has it, and {undeclared}"
        else:
            continue
        rows.append({"what": each.kind, "id": each.id, "action": "remove", "because": because})
        paths += [each.path] if each.kind == "toolkit" else []
    if plan.get("prune") and plan["default_link"] is None:
        rows += _default_link(host, paths)
    return rows


def _default_link(host: Host, gone: list[str]) -> list[Row]:
    """The default link, where it leads to a toolkit that goes, or went in a run that was killed."""
    link = host.default_link or {}
    if link.get("state") != "link":
        return []
    path = PurePosixPath(str(link.get("path")))
    target = path.parent / str(link.get("target"))
    dangles = not link.get("realpath") and target.match(f"{path}-[0-9]*")
    if str(target) not in gone and not dangles:
        return []
    because = f"it leads to {target}, and no toolkit is declared any more (gpu_prune)"
    return [{"what": "default_link", "id": str(path), "action": "remove", "because": because}]


def notes(plan: Mapping[str, Any], host: Host) -> Iterator[str]:
    """What stays though nothing declares it, and what would take it away."""
    driver = host.receipt(*driver_state.RECEIPT)
    if driver and not driver_state.managed(plan):
        yield (
            f"driver {driver.get('version')}, which gpufleet installed, is managed no longer "
            "(gpu_driver): it stays as it is, held, and gpu_prune does not touch it"
        )
    for each in found(plan, host):
        if each.begun:
            continue
        if not plan["prune"]:
            yield f"{each.name} is declared no longer; gpu_prune: true removes it"
        elif each.users:
            yield (
                f"{each.name} is declared no longer, but stays: {' and '.join(each.users)}, which "
                "gpufleet did not install, is bound to it"
            )
