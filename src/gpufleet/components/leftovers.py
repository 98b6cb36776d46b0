"""Leftovers: what gpufleet installed on a host and the plan no longer declares.

A run removes them where the plan has `prune`; otherwise notes name them. Only what has a receipt or
a journal entry is a leftover. A toolkit that a foreign environment is bound to stays, with its
cuDNN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from gpufleet.documents.plan import Plan
from gpufleet.documents.types import Row

from .base import driver_state
from .base.host import Host

Kind = Literal["stack", "cudnn", "toolkit"]

KINDS: tuple[Kind, ...] = ("stack", "cudnn", "toolkit")  # in the order of removal


@dataclass(frozen=True)
class Leftover:
    """An installed component that is no longer declared.

    `removing_since`: when its removal started; `users`: foreign environments that use its toolkit.
    """

    kind: Kind
    id: str
    path: str
    removing_since: str | None
    users: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.kind} {self.id} in {self.path}"


def found(plan: Plan, host: Host) -> list[Leftover]:
    """The leftovers in the order of removal; empty where receipts or stacks were not probed."""
    if host.unobserved(("receipts", "stacks")):
        return []
    declared = {("toolkit", row["short"]) for row in plan["toolkits"]}
    declared |= {("cudnn", row["id"]) for row in plan["cudnn"]}
    declared |= {("stack", row["name"]) for row in plan["stacks"]}
    rows = [*host.entries("receipts"), *host.entries("journal")]
    entries = {(str(row.get("kind")), str(row.get("id"))): row for row in rows}
    users: dict[str, list[str]] = {}
    for stack in host.foreign_stacks:
        for directory in PurePosixPath(str(stack.get("bound_to"))).parents:
            users.setdefault(str(directory), []).append(str(stack.get("venv")))
    return [
        _leftover(host, wanted, row, users)
        for wanted in KINDS
        for (kind, identity), row in sorted(entries.items())
        if kind == wanted and (kind, identity) not in declared
    ]


def _leftover(host: Host, kind: Kind, row: Row, users: Mapping[str, list[str]]) -> Leftover:
    """`users`: the foreign environments that are bound to something in a directory."""
    identity, path = str(row.get("id")), str(row.get("path"))
    entry = host.journal(kind, identity) or {}
    since = str(entry.get("started")) if entry.get("state") == "removing" else None
    bound = users.get(path, []) if kind != "stack" else []
    return Leftover(kind, identity, path, since, tuple(bound))


def notes(plan: Plan, host: Host) -> Iterator[str]:
    """Notes on installed components that are not declared, and on the command that removes them."""
    driver = host.receipt(*driver_state.RECEIPT)
    if driver and not driver_state.managed(plan):
        yield (
            f"driver {driver.get('version')}, which gpufleet installed, is no longer managed "
            "(gpu_driver): it stays installed and held, and gpu_prune does not remove it"
        )
    for each in found(plan, host):
        if each.removing_since:
            continue
        if not plan["prune"]:
            yield f"{each.name} is no longer declared; gpu_prune: true removes it"
        elif each.users:
            yield (
                f"{each.name} is no longer declared, but stays: {' and '.join(each.users)}, which "
                "gpufleet did not install, is bound to it"
            )
