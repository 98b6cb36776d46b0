"""Driver sources: the branches in a distribution's repository, in NVIDIA's, and as runfiles.

From catalog/data/driver_offers.yml, which names the source of each fact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from gpufleet.catalog import facts, versions
from gpufleet.catalog.records import Branch
from gpufleet.components.base.host import Host
from gpufleet.documents.types import Row

SOURCES = ("distro", "nvidia_repo", "runfile")  # in the order in which they are proposed


@dataclass(frozen=True)
class Offer:
    """A branch that a source has: its kernel modules, and whether it has a fabric manager."""

    branch: Branch
    version: str | None
    modules: tuple[str, ...]
    fabric_manager: bool


@dataclass(frozen=True)
class System:
    """One release of a distribution."""

    row: Row

    @property
    def name(self) -> str:
        return str(self.row["name"])

    @property
    def family(self) -> str:
        return str(self.row["family"])

    def offers(self, source: str, arch: str = facts.X86_64) -> list[Offer]:
        """The branches that a source has for it, oldest first."""
        if source == "runfile":
            return runfiles()
        there = self.row if arch == facts.X86_64 else self.row[arch]
        if source == "distro":
            names = [
                row if isinstance(row, str) else row["branch"] for row in there["distro"] or ()
            ]
            return [_measured(row) for row in self.row["distro"] if row["branch"] in names]
        if not there["nvidia_repo"]:
            return []
        rule = self.row["nvidia_repo"]
        first, last = rule["from"], rule["to"]
        return [
            Offer(each, None, modules(each), rule.get("fabric_manager", True))
            for each in facts.branches().values()
            if int(first) <= int(each.number) <= int(last or each.number)
        ]

    def is_read(self, source: str, arch: str) -> bool:
        """Return whether the catalog has a source's offers for an architecture; False: unknown."""
        if arch == facts.X86_64 or source == "runfile":
            return True
        found = self.row[arch][source]
        return found is not None and found is not False

    def source_name(self, source: str) -> str:
        """A source of this system, for messages."""
        return {
            "distro": f"{self.name}'s own repository",
            "nvidia_repo": f"NVIDIA's repository for {self.name}",
            "runfile": "NVIDIA's runfile",
        }[source]


def system_of(host: Host) -> System | None:
    """The host's system; None when it was not probed, or is not known."""
    about = host.os
    if about is None:
        return None
    for row in facts.document("driver_offers.yml")["systems"]:
        version = str(about["version_id"])
        if about["id"] in row["ids"] and versions.has_prefix(version, row["version"]):
            return System(row)
    return None


def describe(host: Host) -> Row | None:
    """The host's system as the plan carries it; None when it was not probed."""
    if not host.os:
        return None
    system = system_of(host)
    return {**host.os, "family": system.family if system else None}


def known() -> str:
    """The names of the known systems, for messages."""
    return ", ".join(str(row["name"]) for row in facts.document("driver_offers.yml")["systems"])


@cache
def modules(branch: Branch) -> tuple[str, ...]:
    """The kernel modules that a branch has."""
    first: Any = facts.document("driver_offers.yml")["open_only_from"]
    if int(branch.number) >= int(first):
        return ("open",)
    return ("open", "proprietary") if branch.has_open_module else ("proprietary",)


def runfiles() -> list[Offer]:
    """Every branch as a runfile, which has no fabric manager."""
    return [
        Offer(each, each.latest, modules(each), fabric_manager=False)
        for each in facts.branches().values()
    ]


def anywhere() -> list[Offer]:
    """Every branch, for a host that was not probed."""
    return [Offer(each.branch, None, each.modules, fabric_manager=True) for each in runfiles()]


def _measured(row: Row) -> Offer:
    return Offer(
        facts.branches()[row["branch"]],
        row["version"],
        tuple(row["modules"]),
        row.get("fabric_manager", False),
    )
