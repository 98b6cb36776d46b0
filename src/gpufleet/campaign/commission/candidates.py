"""The hosts of a commissioning, and what is requested for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpufleet.documents.clock import utc_now
from gpufleet.documents.commission import (
    Certificate,
    CommissionedHost,
    CommissionRecord,
    HostState,
    HostStateName,
    Reason,
)
from gpufleet.documents.plan import Plan
from gpufleet.documents.verdict import Verdict
from gpufleet.fleet.inventory import InventoryHost
from gpufleet.fleet.schedulers import Scheduler
from gpufleet.fleet.session import HostRun
from gpufleet.watch import host_states
from gpufleet.watch.history import History

from .attempts import Settings
from .decision import reason
from .identity import PLAN, STATE
from .stages import PREFLIGHT, RESUMED, Stage

OWNER: Final = "commission"
# The beginning of each of our reasons in a scheduler.
MARK = f"gpufleet {OWNER}:"
RUNNING, PASSED, FAILED, NOT_JUDGED = "running", "passed", "failed", "not-judged"

Log = Callable[..., None]


@dataclass(frozen=True)
class Request:
    """The request of the command line.

    `key` signs; None: nothing is signed. `signer`: the fingerprint of the key.
    """

    settings: Settings
    scheduler: Scheduler
    drain_wait_s: float
    key: Path | None
    by: str
    program: str
    signer: str = ""

    def set_state(self, host: str, state: HostStateName, why: str) -> None:
        """Record the state of a host in the history."""
        found: HostState = {
            "state": state,
            "since": utc_now(),
            "by": self.by,
            "why": why,
            "command": OWNER,
        }
        with History(self.settings.history) as history:
            host_states.set_state(history, host, found)


def not_issued(error: str) -> Reason:
    """Why a host whose stages are judged has no certificate or refusal."""
    again = "the same command issues what the host has earned"
    return reason("conclusion", Verdict.INCONCLUSIVE, error, again)


@dataclass
class Candidate:
    """A host that is being commissioned.

    `set_by_person`: the last state that a person set; what was proven before counts no more.
    `valid`: the stages that need not be repeated. `stopped`: the stage that did not pass, which
    `ended` so. `ran`: whether a stage after the preflight was run now.
    """

    host: InventoryHost
    record: CommissionRecord
    declared: Plan
    seen: HostRun | None = None
    set_by_person: HostState | None = None
    identity: dict[str, str] = field(default_factory=dict)
    valid: tuple[str, ...] = ()
    stopped: str = ""
    ended: str = PASSED
    reasons: list[Reason] = field(default_factory=list)
    ran: bool = False
    # Its certificate or refusal, and the file.
    document: Certificate | None = None
    issued: Path | None = None
    # Why it has neither, though its stages are judged.
    error: str = ""

    @property
    def name(self) -> str:
        """The host's name."""
        return self.host.name

    @property
    def complete(self) -> bool:
        """True if no stage is left to run, but the preflight of each run."""
        return all(stage.name in self.valid for stage in RESUMED)

    @property
    def begins(self) -> bool:
        """True if stages after the preflight are left to run, and nothing speaks against them."""
        return not self.stopped and not self.complete

    @property
    def failed_stages(self) -> list[str]:
        """The stages in which the host has failed, and that were not repeated since."""
        return [name for name, row in self.record["stages"].items() if row["outcome"] == FAILED]

    @property
    def is_installed(self) -> bool:
        """True if all that the host declares was installed and proven, so that all is read.

        A certificate is in force where neither the declaration nor a person has changed the host.
        """
        if self.complete:
            return True
        known = self.record["stages"].get(PREFLIGHT.name)
        return (
            "certificate" in self.record
            and known is not None
            and all(known["inputs"].get(name) == self.identity.get(name) for name in (PLAN, STATE))
        )

    def stop(self, stage: Stage, outcome: str, reasons: list[Reason]) -> None:
        """Run no more stages on this host."""
        self.stopped, self.ended, self.reasons = stage.name, outcome, reasons

    def needs(self, stage: Stage) -> bool:
        """Return whether a stage is due."""
        return not self.stopped and stage.name not in self.valid

    @property
    def outcome(self) -> str:
        """The outcome of the stage that stopped it, or `passed`."""
        return self.ended if self.stopped else PASSED

    def row(self) -> CommissionedHost:
        """The host's row of the command's document."""
        # A host that failed is refused, whatever keeps its refusal from being issued.
        judged = self.outcome == FAILED or (self.outcome == PASSED and not self.error)
        return {
            "outcome": "not-judged"
            if not judged
            else "certified"
            if self.outcome == PASSED
            else "refused",
            "stage": self.stopped,
            "reasons": [*self.reasons, *([not_issued(self.error)] if self.error else ())],
            "faulty": self.document["faulty"] if self.document else [],
            "document": str(self.issued) if self.issued else None,
        }
