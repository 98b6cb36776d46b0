"""`provision`: look at every host, run Ansible where one differs from its plan, look again there.

What the documents can refuse is refused first, for all hosts, before any is reached. Then one look
decides, and its verdicts stand for the hosts that are right: nothing more is asked of those.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from gpufleet.checks import judge
from gpufleet.errors import ConfigurationError
from gpufleet.inventory import HostSelector, InventoryHost, inventory_hosts, locks_in
from gpufleet.model.verdict import FAILED, HEALTHY, USAGE
from gpufleet.paths import REPORTS, ROOT
from gpufleet.provision import reasons as differs
from gpufleet.report import directory as report
from gpufleet.report import terminal
from gpufleet.verification.session import HostRun, ProbeOptions, Session, plan_of, verify

from .arguments import read
from .parser import Parser, question
from .verify import conclude

PLAYBOOK = "playbooks/site.yml"
# More hosts than a person reads in a command stand in a file.
MOST_NAMED = 8
# More reasons than that are in the report.
MOST_TOLD = 2

Told = Callable[[str], None]
Reasons = dict[str, list[str]]


class RefusedError(ConfigurationError):
    """What is declared cannot be, whatever the hosts are like; `problems` tell where."""

    def __init__(self, problems: Sequence[Mapping[str, str]]) -> None:
        told = "\n".join("{host}: {where}: {message} {remedy}".format(**row) for row in problems)
        super().__init__(f"{told}\nNothing was changed on any host.")
        self.problems = problems


@dataclass(frozen=True)
class ProvisionOptions:
    """Which hosts, how they are looked at, and how Ansible is run.

    `words` go to ansible-playbook, whose standard output goes to `output`. Where it runs on many
    hosts, but not on all, their names go to a file in `folder`.
    """

    question: HostSelector
    manner: ProbeOptions
    force: bool = False
    words: Sequence[str] = ()
    folder: Path | None = None
    output: IO[str] | None = None


@dataclass(frozen=True)
class Converged:
    """What came of it: all hosts' verdicts; where Ansible ran and why; the exit status."""

    session: Session
    ran: list[str]
    reasons: Reasons
    status: int


def say(text: str) -> None:
    """Tell the person; standard output belongs to what was asked for."""
    print(text, file=sys.stderr, flush=True)


def converge(
    question: HostSelector, manner: ProbeOptions, *, force: bool = False, words: Sequence[str] = (),
    told: Told = say,
) -> Converged:
    """Make the hosts what their plans say; a plan that cannot be is a `RefusedError`.

    `words` go to ansible-playbook.
    """
    return converged(checked(question), ProvisionOptions(question, manner, force, words), told)


def converged(hosts: list[InventoryHost], way: ProvisionOptions, told: Told = say) -> Converged:
    """The same, of hosts whose declarations were checked."""
    session, reasons = chosen(hosts, way, told)
    played = play(way, list(reasons), len(hosts))
    if reasons:
        changed = relocked([host for host in hosts if host.name in reasons])
        again = look("Looking at what came of it", changed, way.manner)
        session = merged(session, again) if session else again
    assert session is not None
    session.provisioned = reasons
    for host in session.hosts:
        beyond = differs.beyond(host.plan, host.snapshot, host.result)
        if beyond:
            told(f"{host.name} is what its plan says, and fails in {', '.join(beyond)}:"
                 " provisioning cannot mend that; the remedies in the report can.")
    verified = judge.exit_status(session.document)
    if played and verified == HEALTHY:
        told(f"ansible-playbook ended with status {played}: not every host was provisioned.")
    return Converged(session, list(reasons), reasons, verified or (FAILED if played else HEALTHY))


def chosen(
    hosts: list[InventoryHost], way: ProvisionOptions, told: Told
) -> tuple[Session | None, Reasons]:
    """What the look at all hosts found, if one was needed, and where Ansible is to run: why."""
    if way.force:
        return None, {host.name: ["--force"] for host in hosts}
    session = look("Looking", hosts, way.manner)
    reasons = reasons_of(hosts, session)
    tell(reasons, len(hosts), told)
    return session, reasons


def checked(question: HostSelector) -> list[InventoryHost]:
    """The hosts, when each declaration can be carried out as far as documents can tell."""
    hosts = inventory_hosts(question)
    problems = [{"host": host.name, **problem}
                for host in hosts for problem in plan_of(host, None)["problems"]]
    if problems:
        raise RefusedError(problems)
    return hosts


def look(what: str, hosts: list[InventoryHost], manner: ProbeOptions) -> Session:
    """A whole verification of these hosts."""
    with terminal.progress(Console(stderr=True), what, len(hosts)) as heard:
        return verify(hosts, manner, heard)


def reasons_of(hosts: Sequence[InventoryHost], session: Session) -> Reasons:
    """{host: why Ansible is to run there}, of those where it is."""
    kept = {host.name: host.keeps_artifacts for host in hosts}
    found = {run.name: differs.why(run.plan, run.snapshot, run.result, kept=kept[run.name])
             for run in session.hosts}
    return {name: reasons for name, reasons in found.items() if reasons}


def tell(reasons: Reasons, count: int, told: Told) -> None:
    """A line for each host on which Ansible is to run, and one for the others."""
    for name, each in reasons.items():
        more = f", and {len(each) - MOST_TOLD} more" if len(each) > MOST_TOLD else ""
        told(f"Ansible runs on {name}: {'; '.join(each[:MOST_TOLD])}{more}")
    if not reasons:
        told("No host differs from its plan: nothing to run. (--force runs it all the same.)")
    elif len(reasons) < count:
        told(f"{count - len(reasons)} of {count} hosts are what their plans say, and left alone.")


def play(way: ProvisionOptions, names: Sequence[str], count: int) -> int:
    """Run the playbook on some of so many hosts; its exit status."""
    if not names:
        return 0
    question, limit = way.question, way.question.limit
    if len(names) < count:
        limit = ",".join(names)
        if way.folder and len(names) > MOST_NAMED:
            file = way.folder / "differ.txt"
            file.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
            limit = f"@{file}"
    command = [str(Path(sys.executable).with_name("ansible-playbook")), PLAYBOOK]
    for option, values in (("-i", question.inventories), ("-e", question.extra_vars),
                           ("--limit", [limit] if limit else []),
                           ("--vault-password-file", question.vault_password_files)):
        command += [word for value in values for word in (option, value)]
    return run([*command, *way.words], way.output)


def run(command: Sequence[str], output: IO[str] | None = None) -> int:
    """Print a native command and run it in the project's root; its exit status."""
    shown = shlex.join(command).replace(f"{ROOT}/", "")
    say(f"\x1b[2m$ {shown}\x1b[0m" if sys.stderr.isatty() else f"$ {shown}")
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output) as running:
        try:
            return running.wait()
        except KeyboardInterrupt:
            # It was interrupted as well: let it clean up.
            running.wait()
            raise


def relocked(hosts: list[InventoryHost]) -> list[InventoryHost]:
    """The same hosts, with the locks that a run has resolved meanwhile."""
    locks_in.cache_clear()
    return [replace(host, locks=locks_in(host.locks_dir)) for host in hosts]


def merged(first: Session, again: Session) -> Session:
    """The first look, with what the second one saw in its place."""
    newer: dict[str, HostRun] = {run.name: run for run in again.hosts}
    hosts = [newer.get(run.name, run) for run in first.hosts]
    return Session(hosts, first.started, again.finished, first.seconds + again.seconds)


# -- the command line ------------------------------------------------------------------------------


def parser() -> Parser:
    """The options; what is not known goes to ansible-playbook."""
    top = Parser(
        remedy="./gpufleet provision --help",
        prog="python -m gpufleet provision",
        description="Look at every host, run Ansible where one differs from its plan, look again.",
        epilog="Exit status: as verify's, and 1 when the playbook failed on a host. Other options"
        " are ansible-playbook's.")
    top.ask_for_hosts()
    top.add_argument("--force", action="store_true",
                     help="run Ansible on every host, also where nothing differs")
    top.add_argument("-C", "--check", action="store_true", help="change nothing")
    top.add_argument("-D", "--diff", action="store_true", help="implied by --check")
    top.add_argument("--json", action="store_true", help="one document on standard output")
    top.add_argument("--report", type=Path, default=REPORTS, metavar="DIR",
                     help="where reports are kept")
    top.add_argument("--fanout", type=int, default=ProbeOptions.fanout, metavar="N",
                     help="how many hosts are looked at at the same time")
    top.add_argument("--deadline", type=float, default=ProbeOptions.deadline_s, metavar="S",
                     help="how long the look at one host may take")
    top.set_defaults(local=False, snapshot=[], save=None)
    return top


def main(words: list[str]) -> int:
    """`python -m gpufleet provision`; its exit status."""
    console, told_as_json = Console(stderr=True), "--json" in words
    try:
        options, rest = read(parser(), words)
        return _provision(options, rest, console)
    except ConfigurationError as error:
        if told_as_json:
            one = {"message": error.message, "where": error.where, "remedy": error.remedy}
            problems: Any = getattr(error, "problems", [{"code": "configuration", **one}])
            told = {"schema": judge.SCHEMA, "problems": problems}
            sys.stdout.write(json.dumps(told, indent=1) + "\n")
        console.print(str(error), style="bold red", markup=False, soft_wrap=True)
        return USAGE
    except KeyboardInterrupt:
        return 130


def _provision(options: argparse.Namespace, rest: list[str], console: Console) -> int:
    if options.fanout < 1 or options.deadline <= 0:
        raise ConfigurationError("--fanout and --deadline are more than 0.")
    asked = question(options)
    mode = ["--check"] if options.check else []
    diff = ["--diff"] if options.diff or options.check else []
    way = ProvisionOptions(
        asked,
        ProbeOptions("full", options.fanout, options.deadline),
        options.force,
        [*mode, *diff, *rest],
        output=sys.stderr if options.json else None,
    )
    hosts = checked(asked)
    if options.check:
        _, reasons = chosen(hosts, way, say)
        status = play(way, list(reasons), len(hosts))
        say("Check mode: nothing was changed, so nothing was verified.")
        return status
    directory = report.create_directory(options.report)
    done = converged(hosts, replace(way, folder=directory))
    conclude(done.session, directory, options, [], console)
    return done.status
