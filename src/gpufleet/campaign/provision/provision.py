"""Provision hosts: probe each one, run Ansible where one differs from its plan, probe those again,
and repair further what a check still fails for (`ladder`).

What documents can refuse is refused first, for all hosts, before any host is reached. Then one
probe decides; its verdicts stand for the hosts that match their plans.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from rich.console import Console

from gpufleet import stopping
from gpufleet.documents.plan import ProblemEntry
from gpufleet.documents.text import as_sentence, quantity
from gpufleet.documents.verdict import (
    FAILED,
    HEALTHY,
    HEALTHY_VERDICTS,
    NOT_JUDGED,
    HostProblem,
    Verdict,
)
from gpufleet.errors import ConfigurationError, Defect, bounded
from gpufleet.fleet import siblings
from gpufleet.fleet.inventory import HostSelector, InventoryHost, inventory_hosts, locks_in
from gpufleet.fleet.judging import plan_of
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.probing import verify
from gpufleet.fleet.session import HostRun, Session
from gpufleet.judge import judge
from gpufleet.report import summary, terminal

from . import reasons as differences
from .failures import Failure, as_cause, of_lines
from .ladder import METADATA, MOST_ROUNDS, Ladder, demanding, person_has_to_look, sentence
from .playbook import log, playbook_command, run
from .privilege import cannot_become_root

# The names of more hosts than this are written to a file instead of the command line.
MOST_NAMED = 8
# Further reasons are in the report.
MOST_SHOWN = 2

Notify = Callable[[str], None]
Reasons = dict[str, list[str]]


class RefusedError(ConfigurationError):
    """A declaration that no host can satisfy; `problems` name the variables."""

    def __init__(self, problems: Sequence[HostProblem]) -> None:
        hosts: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for row in problems:
            file = f" It is declared in {row['file']}." if "file" in row else ""
            text = f"{row['where']}: {as_sentence(row['message'])} {as_sentence(row['remedy'])}"
            hosts[summary.mask_name(f"{text}{file}", row["host"]),].append(row["host"])
        lines = "\n".join(
            f"{terminal.named(names)}: {summary.insert_names(text, names, 'HOST')}"
            for (text,), names in hosts.items()
        )
        super().__init__(f"{lines}\nNothing was changed on any host.")
        self.problems = problems


@dataclass(frozen=True)
class ProvisionOptions:
    """Which hosts, how they are probed, and how Ansible is run.

    `args` go to ansible-playbook, whose standard output goes to `output`. Where it runs on many
    hosts, but not on all, their names go to a file in `folder`.
    """

    selector: HostSelector
    probe_options: ProbeOptions
    force: bool = False
    args: Sequence[str] = ()
    folder: Path | None = None
    output: IO[str] | None = None


@dataclass(frozen=True)
class Converged:
    """The result: the verdicts of all hosts, where Ansible ran and why, the exit status.

    `failed`: the hosts on which Ansible failed, could not become root, or could do nothing.
    """

    session: Session
    ran: list[str]
    reasons: Reasons
    status: int
    failed: Sequence[str] = ()


def converge(
    selector: HostSelector,
    probe_options: ProbeOptions,
    *,
    force: bool = False,
    args: Sequence[str] = (),
    notify: Notify = log,
) -> Converged:
    """Provision the selector's hosts; raises `RefusedError` for a plan with problems.

    `args` go to ansible-playbook.
    """
    options = ProvisionOptions(selector, probe_options, force, args)
    return converge_hosts(checked_hosts(selector), options, notify)


def converge_hosts(
    hosts: list[InventoryHost], options: ProvisionOptions, notify: Notify = log
) -> Converged:
    """Provision hosts whose declarations were checked.

    Where a check still fails whose remedy is to provision, its components take the next step of
    the repair ladder, and the host is verified again.
    """
    session, work = hosts_to_run(hosts, options, notify)
    statuses, alone = dict.fromkeys(work.without_root, FAILED), work.alone
    failures: dict[str, Failure] = {}
    reasons = dict(work.reasons)
    for _ in range(MOST_ROUNDS + 1):
        if not work.reasons:
            break
        names = list(work.reasons)
        played = play(options, names, len(hosts), work.steps)
        statuses |= played.statuses
        failures |= played.failures
        changed = with_new_locks([host for host in hosts if host.name in names])
        # Code that stacks compile now is kept for later verifications.
        again = probe_hosts("Verifying", changed, replace(options.probe_options, warm=True))
        session = merged(session, again) if session else again
        work = Work(ladders=work.ladders)
        # Where Ansible failed a further step fails as well, and hides why.
        went_well = {name for name in names if not statuses[name]}
        work.climb([run for run in session.hosts if run.name in went_well])
        show_steps(work, notify)
        for name, more in work.reasons.items():
            reasons[name] = [*reasons.get(name, []), *more]
    assert session is not None
    session.provisioned = reasons
    for host in session.hosts:
        if host.result["verdict"] == Verdict.PASS:
            continue
        if (failure := failures.get(host.name)) and host.snapshot:
            host.result = as_cause(host.result, failure)
            continue
        left = partial(left_to_a_person, work.ladders.get(host.name), bool(statuses.get(host.name)))
        for text in _compared(host, left):
            notify(text)
    verified = judge.exit_status(session.document)
    status = max(map(abs, statuses.values()), default=0)
    if status and verified == HEALTHY:
        notify(f"ansible-playbook returned status {status}: not every host was provisioned.")
    if status and verified in {HEALTHY, NOT_JUDGED}:
        # A host that was not provisioned has failed, also where a part could not be judged.
        verified = FAILED
    return Converged(
        session,
        list(reasons),
        reasons,
        verified,
        [*(name for name, ended in statuses.items() if ended), *alone],
    )


@dataclass
class Work:
    """Where Ansible runs next: why, and the step of each component that is repaired."""

    reasons: Reasons = field(default_factory=dict)
    steps: dict[str, dict[str, str]] = field(default_factory=dict)
    ladders: dict[str, Ladder] = field(default_factory=dict)
    # The hosts on which Ansible could do nothing, and those on which it could not become root.
    alone: list[str] = field(default_factory=list)
    without_root: list[str] = field(default_factory=list)

    def climb(self, hosts: Iterable[HostRun]) -> None:
        """Add the next step of each component that a failing check of these hosts demands."""
        for host in hosts:
            if reasons := _compared(host, self._climb_of):
                self.reasons[host.name] = [*self.reasons.get(host.name, []), *reasons]

    def _climb_of(self, host: HostRun) -> list[str]:
        """The reasons of a host's next steps."""
        if not demanding(host.result) or host.snapshot is None or host.plan["problems"]:
            return []
        differing = differences.differing(host.plan, host.snapshot)
        ladder, reasons = self.ladders.setdefault(host.name, Ladder()), []
        for name, (rung, why) in ladder.next(host.plan, host.result, differing).items():
            if rung != METADATA:
                self.steps.setdefault(host.name, {})[name] = rung
                reasons.append(sentence(name, rung, why))
            elif host.name not in self.reasons:
                reasons.append(sentence(name, rung, differing[name]))
        return reasons


def hosts_to_run(
    hosts: list[InventoryHost], options: ProvisionOptions, notify: Notify
) -> tuple[Session | None, Work]:
    """The session of the probe of all hosts, if one was needed, and where Ansible runs."""
    if options.force:
        return None, Work({host.name: ["--force"] for host in hosts})
    session = probe_hosts("Probing", hosts, options.probe_options)
    alone = {
        run.name: why[0]
        for run in session.hosts
        if (why := _compared(run, lambda run: [*filter(None, [differences.left_alone(run)])]))
    }
    reached = [run for run in session.hosts if run.name not in alone and not run.not_compared]
    work = Work(reasons_of(hosts, reached))
    work.climb(reached)
    unknown = [run for run in session.hosts if run.not_compared]
    work.alone = [*alone]
    show_left_alone(alone, notify)
    known = len(hosts) - len(unknown) - len(alone)
    if known > 0:
        show_reasons(work.reasons, known, notify)
    for host in unknown:
        notify(f"{host.name}: {host.result['checks'][0]['cause']}")
    _take_out_without_root(hosts, session, work, options, notify)
    return session, work


def show_left_alone(alone: Mapping[str, str], notify: Notify) -> None:
    """One line for all hosts on which nothing can be run for one reason; the report has more."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for name, why in alone.items():
        hosts[why].append(name)
    for why, names in hosts.items():
        notify(f"Nothing is run on {terminal.named(names)}: {why}.")


def _take_out_without_root(
    hosts: list[InventoryHost],
    session: Session,
    work: Work,
    options: ProvisionOptions,
    notify: Notify,
) -> None:
    """Take the hosts on which Ansible could not become root out of the work."""
    snapshots = {run.name: run.snapshot for run in session.hosts}
    found = {
        host.name: why
        for host in hosts
        if host.name in work.reasons
        and (why := cannot_become_root(host, snapshots.get(host.name), options.args))
    }
    for name in found:
        work.reasons.pop(name)
        work.steps.pop(name, None)
    show_left_alone(found, notify)
    work.without_root = [*found]


def show_steps(work: Work, notify: Notify) -> None:
    """One line for each step of each host."""
    for name, reasons in work.reasons.items():
        for reason in reasons:
            notify(f"{name} is not healthy yet: {reason}")


def left_to_a_person(ladder: Ladder | None, failed: bool, host: HostRun) -> list[str]:
    """Faults beyond provisioning's repairs; the report names them, so no remedy is a circle.

    `failed`: ansible-playbook failed on the host.
    """
    checks, texts = [], []
    for check in host.result["checks"]:
        failing = ladder is not None and check["verdict"] not in HEALTHY_VERDICTS
        names = ladder.exhausted(check) if ladder and failing else []
        if not ladder or not names:
            checks.append(check)
            continue
        checks.append(person_has_to_look(check, names, ladder.taken[names[0]], failed=failed))
        if "explained_by" not in check:
            act = checks[-1]["remedy"]
            texts.append(f"{host.name}: {act} ({check['id']}: {check['cause']})")
    beyond = differences.beyond(host.plan, host.snapshot, host.result)
    host.result = {**host.result, "checks": checks}
    if beyond:
        texts.append(
            f"{host.name} matches its plan, and fails {', '.join(beyond)}:"
            " provisioning cannot repair that; the remedies in the report can."
        )
    return texts


def checked_hosts(selector: HostSelector) -> list[InventoryHost]:
    """The hosts, or a `RefusedError` where a plan has problems that documents alone can show."""
    hosts = inventory_hosts(selector)
    problems: list[HostProblem] = [
        {"host": host.name, **problem}
        # A host that cannot even be planned is INCONCLUSIVE later, and stops no other.
        for host in hosts
        for problem in bounded("planned this host", partial(_problems, host), lambda defect: [])
    ]
    if problems:
        raise RefusedError(problems)
    return hosts


def _problems(host: InventoryHost) -> list[ProblemEntry]:
    return plan_of(host, None)["problems"]


def probe_hosts(what: str, hosts: list[InventoryHost], probe_options: ProbeOptions) -> Session:
    """A whole verification of these hosts; `what` heads its progress."""
    with terminal.progress(Console(stderr=True), what, len(hosts)) as report:
        return verify(hosts, probe_options, report)


def reasons_of(hosts: Sequence[InventoryHost], runs: Iterable[HostRun]) -> Reasons:
    """The reasons why Ansible runs on each host, without the hosts that need nothing."""
    keeps = {host.name: host.keeps_artifacts for host in hosts}
    found = {
        run.name: _compared(
            run,
            lambda run: differences.why(run.plan, run.snapshot, kept=keeps[run.name]),
        )
        for run in runs
    }
    return {name: reasons for name, reasons in found.items() if reasons}


def _compared(run: HostRun, compare: Callable[[HostRun], list[str]]) -> list[str]:
    """The reasons by a comparison; a defect costs the host its verdict, and is no reason."""

    def failed(defect: Defect) -> list[str]:
        run.result = judge.defective(defect, run.name, run.result)
        run.not_compared = True
        return []

    return bounded("compared this host with its plan", lambda: compare(run), failed)


def show_reasons(reasons: Reasons, count: int, notify: Notify) -> None:
    """One line for each host on which Ansible runs, and one for the others."""
    for name, host_reasons in reasons.items():
        more = len(host_reasons) - MOST_SHOWN
        notify(
            f"Ansible runs on {name}: {'; '.join(host_reasons[:MOST_SHOWN])}"
            + (f", and {more} more" if more > 0 else "")
        )
    if not reasons:
        notify("No host differs from its plan: nothing to run. (--force runs Ansible anyway.)")
    elif len(reasons) < count:
        alike = count - len(reasons)
        left = "matches its plan and is" if alike == 1 else "match their plans and are"
        notify(f"{alike} of {quantity(count, 'host')} {left} left alone.")


class Played(NamedTuple):
    """By host: the exit status of the playbook if it failed there, or 0; and why it failed."""

    statuses: dict[str, int]
    failures: dict[str, Failure]


def play(
    options: ProvisionOptions,
    names: Sequence[str],
    count: int,
    steps: Mapping[str, Mapping[str, str]] | None = None,
) -> Played:
    """Run the playbook on these of `count` hosts.

    `steps`: {host: {component: step}} of the repair ladder.
    """
    if not names:
        return Played({}, {})
    limit, args = options.selector.limit, list(options.args)
    if len(names) < count:
        limit = ",".join(names)
        if options.folder and len(names) > MOST_NAMED:
            file = options.folder / "differ.txt"
            file.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
            limit = f"@{file}"
    if steps:
        args += ["-e", json.dumps({"gpu_repair": steps})]
        if options.folder and len(steps) > MOST_NAMED:
            variables = options.folder / "repair.json"
            variables.write_text(args.pop(), encoding="utf-8")
            args.append(f"@{variables}")
    command = playbook_command("site.yml", options.selector, limit, args)
    with stopping.temporary_directory() as folder:
        # Ansible writes the hosts on which it failed into the file NAME.retry there, and the
        # callback `failures` why.
        why = Path(folder, "failures")
        status = run(
            command,
            options.output,
            environment={
                "ANSIBLE_RETRY_FILES_ENABLED": "true",
                "ANSIBLE_RETRY_FILES_SAVE_PATH": folder,
                "GPUFLEET_FAILURES_FILE": str(why),
            },
        )
        retry = Path(folder, "site.retry")
        failed = set(retry.read_text("utf-8").split()) if retry.is_file() else set()
        found = of_lines(why.read_text("utf-8").splitlines() if why.is_file() else ())
    # Where it failed before it came to a host, it failed for all of them.
    everywhere = not failed & set(names)
    ended = {name: status if everywhere or name in failed else 0 for name in names}
    return Played(ended, {name: found[name] for name in found if ended.get(name)})


def with_new_locks(hosts: list[InventoryHost]) -> list[InventoryHost]:
    """The same hosts, with the locks that a run has resolved meanwhile."""
    locks_in.cache_clear()
    return [replace(host, locks=locks_in(host.locks_dir)) for host in hosts]


def merged(first: Session, again: Session) -> Session:
    """The first session, with its hosts replaced by those of the second one."""
    newer: dict[str, HostRun] = {run.name: run for run in again.hosts}
    hosts = siblings.compared_again(newer.get(run.name, run) for run in first.hosts)
    return Session(hosts, first.started, again.finished, first.seconds + again.seconds)
