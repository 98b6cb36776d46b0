"""The hosts of one verification with their snapshots, plans and verdicts; everything in memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import cast

from gpufleet.components.base.consensus import Group
from gpufleet.components.gpu.nvlink_domain import Place
from gpufleet.documents.clock import utc_now
from gpufleet.documents.plan import Plan
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.verdict import HostResult, Verdicts
from gpufleet.fleet.transport.compression import compressed, compressed_field
from gpufleet.judge import judge
from gpufleet.paths import PROGRAM

from .host_fabric import HostFabric
from .host_versions import HostVersions

# The name of the program in the remedies of documents: a checkout's.
WRITTEN_PROGRAM = "./gpufleet"


@dataclass(frozen=True)
class Beside:
    """The values that are compared with other hosts, read from a snapshot while it is in memory."""

    # Where its GPUs are in the NVLink fabric; None if they are not in one place.
    place: Place | None
    # The sums of random products of each GPU, by those that must agree.
    sums: Mapping[Group, Sequence[tuple[str, ...]]]
    # The boot of a machine and the UUIDs of its GPUs; empty for a container, which shares both.
    cards: frozenset[tuple[str, str]] = frozenset()
    # The answer to the challenge of this run, which is the same under each name of one machine; and
    # where ssh reaches the host. None where it is not known.
    answer: str | None = None
    endpoint: tuple[str | int | None, ...] | None = None

    def is_machine_of(self, other: Beside) -> bool:
        """Return whether both are one machine, by values that no other machine can claim."""
        return any(
            own is not None and own == others
            for own, others in ((self.answer, other.answer), (self.endpoint, other.endpoint))
        )


@compressed_field("snapshot")
@dataclass
class HostRun:
    """One host of a verification: snapshot, plan and verdicts."""

    name: str
    snapshot: Snapshot | None
    plan: Plan
    result: HostResult
    # Read from the snapshot while it is in memory; where they were not, the report reads them.
    versions: HostVersions | None = None
    fabric: HostFabric | None = None
    beside: Beside | None = None
    # A defect of gpufleet kept it from being compared with its plan: nobody knows what differs.
    not_compared: bool = False

    def with_result(self, result: HostResult) -> HostRun:
        """The same host with another result; its snapshot stays compressed."""
        other = copy(self)
        other.result = result
        return other

    @property
    def snapshot_text(self) -> str | None:
        """The snapshot as JSON in one line."""
        kept = compressed(self, "snapshot")
        return kept.text() if kept else None


@dataclass
class Session:
    """All hosts of a verification, and the document of their verdicts."""

    hosts: list[HostRun] = field(default_factory=list)
    started: str = field(default_factory=utc_now)
    finished: str = ""
    seconds: float = 0.0
    # When the saved snapshots were taken that are judged again; empty where hosts were probed.
    taken: str = ""
    # Assumptions made where nothing is declared.
    notes: list[str] = field(default_factory=list)
    # The arguments that select these hosts again, as in `-i INVENTORY`.
    inventory_args: str = ""
    # How the reader of the remedies calls gpufleet.
    program: str = PROGRAM
    # The machine and the account from which hosts were reached, where the reader uses others.
    reached_from: tuple[str, str] | None = None
    # Further arguments of `provision`, as in `--chroot DIR`.
    provision_args: str = ""
    # The hosts that are not in production, each with its recorded state in a sentence.
    states: list[str] = field(default_factory=list)
    # Where Ansible ran before the last probe, and why: {host: reasons}.
    provisioned: dict[str, list[str]] | None = None

    @property
    def document(self) -> Verdicts:
        """The verdicts as printed by `--json`."""
        verdicts = judge.document(
            {host.name: host.result for host in self.hosts}, self.started, self.finished
        )
        if self.provisioned is not None:
            verdicts["provisioned"] = self.provisioned
        return verdicts

    def for_display(self) -> Session:
        """The same session with remedies as a person calls gpufleet; documents do not have them."""
        args = self.inventory_args or self.provision_args
        if not (args or self.reached_from) and self.program == WRITTEN_PROGRAM:
            return self
        return replace(
            self, hosts=[host.with_result(self._as_called(host.result)) for host in self.hosts]
        )

    def _as_called(self, result: HostResult) -> HostResult:
        checks = [
            {**check, "remedy": self.as_called(check["remedy"])} for check in result["checks"]
        ]
        return cast(HostResult, {**result, "checks": checks})

    def as_called(self, remedy: str) -> str:
        """A remedy whose commands have the name of the program, and the arguments of the call."""
        called = remedy.replace(f"{WRITTEN_PROGRAM} ", f"{self.program} ")
        for verbs, args in (
            ("provision", self.provision_args),
            ("plan|provision|remove|verify", self.inventory_args),
        ):
            if args:
                called = re.sub(
                    rf"(?<!\S)({re.escape(self.program)} (?:{verbs}))\b",
                    lambda command, args=args: f"{command[1]} {args}",  # type: ignore[misc]
                    called,
                )
        if self.reached_from:
            machine, account = self.reached_from
            called = re.sub(
                r": (?=ssh(?:-keygen)? )", f", on {machine}: sudo -u {account} -H ", called
            )
        return called
