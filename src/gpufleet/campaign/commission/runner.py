"""Commission hosts side by side: each stage on all hosts that have come to it, then certificates.

Changes hosts (through `provision`), their scheduler's states, the history's states of hosts, and
the directory of the commissionings. A host that a stage stops stays there; the others go on.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from rich.console import Console
from rich.text import Text

from gpufleet.components.base.holders import holders
from gpufleet.components.base.sections import Sections
from gpufleet.documents.clock import utc_now
from gpufleet.documents.commission import CommissionedHost, HostState, StageRecord
from gpufleet.documents.verdict import SYMBOLS, Verdict
from gpufleet.errors import bounded
from gpufleet.fleet.inventory import InventoryHost
from gpufleet.fleet.judging import plan_of, result_of
from gpufleet.fleet.schedulers import SchedulerError
from gpufleet.fleet.session import HostRun
from gpufleet.watch import host_states
from gpufleet.watch.history import History

from .ages import too_old
from .attempts import Attempt, attempt_of, fabric_options, run_stage, session_of
from .candidates import FAILED, MARK, NOT_JUDGED, OWNER, PASSED, RUNNING, Candidate, Request
from .conclusion import conclude, other_than_certified
from .decision import reason
from .identity import BURN_IN, NAMES, identity_of
from .records import CERTIFICATES, Store
from .requirements import ports_are_set_up, unmet
from .stages import (
    COLLECTIVES,
    PREFLIGHT,
    READING,
    RESUMED,
    SIBLINGS,
    STAGES,
    Stage,
    before_provisioning,
    changed_inputs,
    contradicted,
    duration,
    lacking,
    still_valid,
)

# The most reasons of a host that the terminal shows.
MOST_SHOWN = 4


class Commission:
    """One run; the caller holds the locks of the hosts."""

    def __init__(self, hosts: Sequence[InventoryHost], request: Request, store: Store) -> None:
        self.request, self.settings, self.store = request, request.settings, store
        self.console: Console = request.settings.console
        self.candidates = [
            Candidate(host, store.read(host.name), plan_of(host, None)) for host in hosts
        ]

    def run(self) -> dict[str, CommissionedHost]:
        """Run every stage that is due, and conclude; the outcome of each host."""
        self.identify(self.candidates)
        self.leave_production()
        self.stop_without_collectives()
        self.show_begin()
        self.take_out_of_service()
        for number, stage in enumerate(STAGES, 1):
            if due := [each for each in self.candidates if each.needs(stage)]:
                self.run_stage(number, stage, due)
        self.console.print()
        states = self.set_by_persons()
        for each in self.candidates:
            self.confirm(each, states[each.name])
            conclude(each, self.request, self.store, self.log)
        return {each.name: each.row() for each in self.candidates}

    # -- before the first stage --------------------------------------------------------------------

    def identify(self, candidates: Sequence[Candidate]) -> None:
        """Read what each host is; nothing computes, and nothing changes.

        A host that is not read is not judged: what it has passed stays in its record as it is.
        """
        how = replace(self.settings.probe, mode="full", computes=False)
        session = session_of("Reading", [each.host for each in candidates], how, self.console)
        runs = {run.name: run for run in session.hosts}
        states = self.set_by_persons()
        for each in candidates:
            each.seen, each.set_by_person = runs[each.name], states[each.name]
            each.identity = self.identity(each, each.seen)
            each.valid = self.still_valid(each, self.passed(each), RESUMED)
            if each.seen.snapshot is None:
                each.stop(PREFLIGHT, NOT_JUDGED, attempt_of(PREFLIGHT, each.seen).decision.reasons)
                self.show_reasons(each)

    def still_valid(
        self, each: Candidate, passed: dict[str, dict[str, str]], stages: Sequence[Stage]
    ) -> tuple[str, ...]:
        """The names of the given stages whose proof holds for the host and the request of today."""
        return still_valid(
            passed, each.identity, self.settings.burn_in_s, stages, self.sibling_names()
        )

    def sibling_names(self) -> list[str]:
        """The siblings that are requested, in their order."""
        return sorted(host.name for host in self.settings.siblings)

    def passed(self, each: Candidate) -> dict[str, dict[str, str]]:
        """The inputs of each stage that a host has passed, recent and with its evidence.

        A stage in which the host failed later takes those with it that it contradicts.
        """
        void = {name for failed in each.failed_stages for name in contradicted(failed)}
        return {
            name: stage["inputs"]
            for name, stage in each.record["stages"].items()
            if stage["outcome"] == PASSED
            and name not in void
            and not too_old(name, stage, each.record, utc_now())
            and self.store.intact(stage["evidence"])
        }

    def set_by_persons(self) -> dict[str, HostState | None]:
        """The last state of each host that a person set."""
        with History(self.settings.history) as history:
            return {
                each.name: host_states.last_by_person(history, each.name)
                for each in self.candidates
            }

    def identity(self, each: Candidate, seen: HostRun) -> dict[str, str]:
        """The identity of a host; a defect of gpufleet makes its stages invalid, and no other's."""
        return bounded(
            "identified this host",
            lambda: identity_of(each.declared, seen.snapshot, each.set_by_person),
            lambda defect: {},
        )

    def leave_production(self) -> None:
        """Stop the hosts in production that would be loaded; the others go on.

        One that fails what was read now is refused: it would stay in service, and certified.
        """
        begin = [each for each in self.candidates if each.begins]
        with History(self.settings.history) as history:
            known = {row["host"]: row for row in host_states.fleet(history, names_of(begin))}
        for each in begin:
            row = known[each.name]
            if row["state"] != "production":
                continue
            found = preflight(each)
            if found.decision.outcome == FAILED:
                self.end(each, PREFLIGHT, utc_now(), found)
                self.show_reasons(each)
                continue
            why = reason(
                "state",
                Verdict.INCONCLUSIVE,
                f"{self.void(each)}It is in production since {row['since']}, by {row['by']}"
                f" ({row['why']}), and"
                " commissioning loads all of its GPUs: nothing was changed on it.",
                f"Drain the host, then: {self.command_for_new([each.name])}",
            )
            each.stop(PREFLIGHT, NOT_JUDGED, [why])
            self.show_reasons(each)

    def void(self, each: Candidate) -> str:
        """Withdraw a certificate that speaks of other parts, and say so; otherwise say nothing."""
        others = other_than_certified(each, self.store)
        if not others:
            return ""
        self.withdraw(each)
        self.store.write(each.record)
        return (
            f"{'; '.join(others[:MOST_SHOWN])}: its certificate, which speaks of another machine,"
            " is withdrawn, and it has to be commissioned. "
        )

    def command_for_new(self, names: Iterable[str]) -> str:
        """The command that sets the state of hosts to `new`, as a person types it."""
        inventories = [word for each in self.settings.selector.inventories for word in ("-i", each)]
        words = ["./gpufleet", "fleet", *inventories, "--database", str(self.settings.history)]
        return shlex.join([*words, "--limit", ",".join(names), "--set", "new", "--why", "TEXT"])

    def stop_without_collectives(self) -> None:
        """Stop the hosts whose collectives certainly lack something, before anything is loaded."""
        due = [each for each in self.candidates if each.begins and each.needs(COLLECTIVES)]
        hosts, siblings = [each.host for each in due], self.settings.siblings
        measure = fabric_options(len(hosts) + len(siblings)).measure
        seen = {each.name: each.seen for each in due if each.seen}
        missing = unmet(hosts, siblings, seen, measure)
        for each in due:
            if each.name in missing:
                each.stop(PREFLIGHT, NOT_JUDGED, [missing[each.name]])
                self.show_reasons(each)

    def show_begin(self) -> None:
        """Print the stages with their estimates, and where each host begins."""
        burn_in_s = self.settings.burn_in_s
        due = [stage for stage in STAGES if any(c.needs(stage) for c in self.candidates)]
        if due:
            estimates = [f"{s.name} ({s.announced(burn_in_s)})" for s in due]
            total = sum(stage.estimate(burn_in_s) for stage in due)
            self.log(f"Stages: {', '.join(estimates)}; about {duration(total)} in all.")
        for each in self.candidates:
            if each.stopped:
                continue
            if each.complete:
                self.log(f"{each.name}: every stage is still valid")
            elif why := self.why_again(each):
                self.log(f"{each.name} {why}")

    def why_again(self, each: Candidate) -> str:
        """Where a host resumes, and why not later; empty for a host without a stage."""
        stage = next(stage for stage in RESUMED if each.needs(stage))
        known: StageRecord | None = each.record["stages"].get(stage.name)
        if not known:
            return f"resumes with {stage.name}" if each.valid else ""
        if known["outcome"] == RUNNING:
            return f"resumes with {stage.name}, which was interrupted"
        if known["outcome"] != PASSED:
            return f"resumes with {stage.name}, which did not pass"
        if failed := [name for name in each.failed_stages if stage.name in contradicted(name)]:
            return f"resumes with {stage.name}, since it has failed in {failed[0]}"
        changed = named(changed_inputs(stage, known["inputs"], each.identity))
        if not changed and (others := lacking(stage, known["inputs"], self.sibling_names())):
            return f"resumes with {stage.name}: they were run without {', '.join(others)}"
        old = too_old(stage.name, known, each.record, utc_now())
        why = f"{changed} changed" if changed else old or "it was shorter, or has lost evidence"
        return f"resumes with {stage.name}: {why}"

    def take_out_of_service(self) -> None:
        """Drain the hosts with a stage to run, if a scheduler is named, and record their state.

        What stops the run here gives back what it has drained; so does what stops a host.
        """
        begin, scheduler = [each for each in self.candidates if each.begins], self.request.scheduler
        drained: list[str] = []
        try:
            self.drain(begin, drained)
            late = scheduler.not_idle(names_of(begin), self.request.drain_wait_s, self.log)
            for each in begin:
                if each.name in late:
                    self.leave(each, late[each.name])
            left = [each for each in begin if each.begins]
            if drained and left:
                # Jobs may have used them when they were read.
                self.identify(left)
            for each in begin:
                if each.begins:
                    self.request.set_state(each.name, "commissioning", "its stages run")
                    self.withdraw(each)
                    # Without its certificate a stage is as old as it is today.
                    each.valid = self.still_valid(each, self.passed(each), RESUMED)
        except BaseException:
            self.give_back(drained)
            raise
        self.give_back([each.name for each in begin if each.stopped and each.name in drained])

    def drain(self, begin: Sequence[Candidate], drained: list[str]) -> None:
        """Drain the hosts that are in service, and add them to `drained`; stop the others."""
        scheduler = self.request.scheduler
        if not scheduler.commands:
            return
        states = scheduler.states(names_of(begin), known_only=True)
        for each in begin:
            try:
                if each.name not in states:
                    raise scheduler.unknown(each.name)
                if not states[each.name].unschedulable:
                    scheduler.drain(each.name, f"{MARK} under way since {utc_now()}")
                    drained.append(each.name)
            except SchedulerError as error:
                self.leave(each, error)

    def leave(self, each: Candidate, error: SchedulerError) -> None:
        """Stop a host that its scheduler does not hand over; the others go on."""
        why = reason("scheduler", Verdict.INCONCLUSIVE, error.message, error.remedy)
        each.stop(PREFLIGHT, NOT_JUDGED, [why])
        self.show_reasons(each)

    def give_back(self, drained: Sequence[str]) -> None:
        """Resume hosts that this run has drained, and on which it has run nothing."""
        scheduler = self.request.scheduler
        for name in drained:
            try:
                if scheduler.states([name])[name].ours(OWNER):
                    scheduler.resume(name)
            except SchedulerError as error:
                command = scheduler.resume_command(name)
                self.log(f"{name} stays drained: {error} By hand: {command}", "yellow")

    def withdraw(self, each: Candidate) -> None:
        """Take the certificate of a host back, if it has one; the file stays beside the others."""
        self.store.set_aside(CERTIFICATES, each.name)
        each.record.pop("certificate", None)

    # -- stages ------------------------------------------------------------------------------------

    def run_stage(self, number: int, stage: Stage, due: list[Candidate]) -> None:
        """Run a stage on hosts; each outcome is recorded when all have ended."""
        began, begin = utc_now(), time.monotonic()
        self.head(number, stage, due)
        if stage is PREFLIGHT:
            # It takes no time, and what was read is judged: it is not recorded before it ends.
            found = {each.name: preflight(each) for each in due}
        else:
            for each in due:
                each.ran = True
                self.forget(each)
                self.record(each, stage, began, None)
            found = run_stage(stage, [each.host for each in due], self.settings)
        for each in due:
            attempt = found[each.name]
            if attempt.seen:
                each.seen = attempt.seen
                each.identity = self.identity(each, attempt.seen)
            self.end(each, stage, began, attempt)
            self.show_end(each, time.monotonic() - begin)

    def head(self, number: int, stage: Stage, due: list[Candidate]) -> None:
        """Print what begins, and about when it ends."""
        burn_in_s = self.settings.burn_in_s
        end = datetime.now(UTC) + timedelta(seconds=stage.estimate(burn_in_s))
        text = (
            f"\n[{number}/{len(STAGES)}] {stage.name} on {', '.join(c.name for c in due)}:"
            f" {stage.title}; {stage.announced(burn_in_s, 'about ')}, until {end:%H:%M} UTC"
        )
        self.console.print(Text(text, style="bold"), soft_wrap=True)

    def end(self, each: Candidate, stage: Stage, began: str, attempt: Attempt) -> None:
        """Record how a stage ended on a host."""
        decision = attempt.decision
        if stage is not PREFLIGHT:
            self.record(each, stage, began, attempt)
        elif self.tells(each, decision.outcome):
            if decision.outcome != NOT_JUDGED or PREFLIGHT.name in each.failed_stages:
                self.forget(each)
            if decision.outcome == FAILED:
                self.withdraw(each)
            self.record(each, stage, began, attempt)
        if decision.outcome == PASSED:
            each.valid = (*each.valid, stage.name)
        else:
            each.stop(stage, decision.outcome, decision.reasons)

    def forget(self, each: Candidate) -> None:
        """Drop what a host has passed, and what counts no more."""
        known = each.record["stages"]
        each.record["stages"] = {name: known[name] for name in each.valid if name in known}

    def tells(self, each: Candidate, outcome: str) -> bool:
        """Return whether to record a preflight's outcome: an earlier pass stays as it was.

        The certificate names its evidence; and what was not judged now was judged then.
        """
        known = self.passed(each).get(PREFLIGHT.name)
        if outcome == FAILED or known is None:
            return True
        return outcome == PASSED and bool(changed_inputs(PREFLIGHT, known, each.identity))

    def record(self, each: Candidate, stage: Stage, began: str, attempt: Attempt | None) -> None:
        """Write the record of a host with a stage that runs, or that has ended."""
        decision = attempt.decision if attempt else None
        each.record["stages"][stage.name] = {
            "outcome": decision.outcome if decision else "running",
            "inputs": self.inputs(each, stage),
            "started": began,
            "finished": utc_now() if decision else None,
            "by": self.request.by,
            "program": self.request.program,
            "reasons": decision.reasons if decision else [],
            "notes": decision.notes if decision else [],
            "figures": decision.figures if decision else [],
            "evidence": self.store.keep(each.name, stage.name, attempt.documents)
            if attempt
            else [],
        }
        self.store.write(each.record)

    def inputs(self, each: Candidate, stage: Stage) -> dict[str, str]:
        """The inputs of a stage, by the host as it was seen last."""
        found = {name: each.identity[name] for name in stage.inputs if name in each.identity}
        if BURN_IN in stage.inputs:
            found[BURN_IN] = f"{self.settings.burn_in_s:g}"
        if SIBLINGS in stage.inputs:
            found[SIBLINGS] = ",".join(self.sibling_names())
        return found

    def confirm(self, each: Candidate, set_by_person: HostState | None) -> None:
        """Stop a host that has passed, if its stages are not all of what it is now.

        Hours pass while stages run: a part may be replaced, and a person may take the host out.
        """
        if each.stopped or each.seen is None:
            return
        each.set_by_person = set_by_person
        each.identity, passed = self.identity(each, each.seen), self.passed(each)
        valid = self.still_valid(each, passed, STAGES)
        if valid == tuple(stage.name for stage in STAGES):
            return
        stage = STAGES[len(valid)]
        changed = {
            name
            for known in STAGES
            if known.name in passed
            for name in changed_inputs(known, passed[known.name], each.identity)
        }
        what = named([name for name in NAMES if name in changed]) or "its evidence"
        old = too_old(stage.name, each.record["stages"][stage.name], each.record, utc_now())
        why = reason(
            stage.name,
            Verdict.INCONCLUSIVE,
            f"{stage.name} is repeated: {old}"
            if old
            else f"{what} changed while it was commissioned",
            "the same command repeats what was proven before that",
        )
        each.stop(stage, NOT_JUDGED, [why])
        self.show_reasons(each)

    def show_end(self, each: Candidate, seconds: float) -> None:
        """Print how a stage ended on a host."""
        if each.stopped:
            self.show_reasons(each)
        else:
            self.log(f"{SYMBOLS[Verdict.PASS]} {each.name} passed in {duration(seconds)}", "green")

    def show_reasons(self, each: Candidate) -> None:
        """Print why a host is stopped."""
        failed = each.outcome == FAILED
        symbol = SYMBOLS[Verdict.FAIL if failed else Verdict.INCONCLUSIVE]
        for why in each.reasons[:MOST_SHOWN]:
            style = "bold red" if failed else "yellow"
            self.log(f"{symbol} {each.name}: {why['check']}: {why['cause']}", style)
            self.log(f"  {why['remedy']}", "cyan")
        if (more := len(each.reasons) - MOST_SHOWN) > 0:
            self.log(f"  and {more} more")

    def log(self, text: str, style: str = "") -> None:
        """Print a line for the person who watches."""
        self.console.print(Text(f"  {text}", style=style), soft_wrap=True)


def names_of(candidates: Sequence[Candidate]) -> list[str]:
    """The names of those that are not stopped."""
    return [each.name for each in candidates if not each.stopped]


def named(inputs: Sequence[str]) -> str:
    """The parts of an identity, as a message names them."""
    return ", ".join(NAMES[name] for name in inputs)


def preflight(each: Candidate) -> Attempt:
    """The decision of the first reading of a host, before anything was computed.

    Where nothing is left to be installed it is judged by all checks that need no computing.
    """
    assert each.seen is not None
    snapshot = each.seen.snapshot
    if snapshot is None:
        return attempt_of(PREFLIGHT, each.seen)
    if each.is_installed:
        found = attempt_of(READING, each.seen)
    else:
        # Otherwise provisioning installs the drivers of the ports first.
        ports = ports_are_set_up(each.seen)
        plan = before_provisioning(each.seen.plan, ports=ports)
        found = attempt_of(
            PREFLIGHT,
            HostRun(each.name, snapshot, plan, result_of(plan, snapshot, each.seen.result)),
        )
        if not ports:
            found.decision.reasons = [
                why for why in found.decision.reasons if why["check"] != "network.ports"
            ]
    if used := holders(Sections(snapshot, ())):
        # Jobs fill disks, and what they hold is not read as it is: nothing else is decided beside
        # them. The verdicts stay in the evidence.
        found.decision.reasons = [
            reason(
                PREFLIGHT.name,
                Verdict.INCONCLUSIVE,
                f"others compute on its GPUs: {', '.join(used[:4])}",
                "drain the host, and wait until these processes end",
            )
        ]
    return found
