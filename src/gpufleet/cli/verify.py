"""`python -m gpufleet verify`: look at the hosts, judge, report. Also `plan` and `catalogue`.

Options that are not known here are pytest's: with any, the same suite that `pytest verify/` runs
is run here too, on the same snapshots.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shlex
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from gpufleet.checks import catalogue, judge
from gpufleet.errors import ConfigurationError
from gpufleet.inventory import InventoryHost, inventory_hosts
from gpufleet.model.verdict import USAGE
from gpufleet.paths import REPORTS, ROOT
from gpufleet.report import bundle, junit, terminal
from gpufleet.report import directory as report
from gpufleet.transport.slurm import as_job_steps
from gpufleet.verification import collected
from gpufleet.verification.local import local_host, plan_local_host
from gpufleet.verification.pair_selection import NO_PAIRS, PairOptions
from gpufleet.verification.session import ProbeOptions, Session, judge_saved, verify

from .parser import Parser, question

SUITE = ROOT / "verify"


VERBS = ("verify", "plan", "catalogue")


def parser() -> argparse.ArgumentParser:
    """The options of every verb; what is not known goes to pytest."""
    top = Parser(
        remedy="python -m gpufleet verify --help names the options.",
        prog="verify", usage=f"%(prog)s [{'|'.join(VERBS)}] [options]",
        description="Look at GPU hosts and judge them against what is declared.",
        epilog="Exit status: 0 all healthy, 1 something failed, 3 something could not be judged,"
        " 4 usage or configuration. Other options are pytest's.")
    top.ask_for_hosts()
    top.add_argument("--local", action="store_true",
                     help="this very machine, without ssh; what is not declared is what is found")
    top.add_argument("--json", action="store_true", help="one document on standard output")
    top.add_argument("--snapshot", action="append", default=[], metavar="FILE",
                     help="judge this saved snapshot instead of looking")
    top.add_argument("--plan", action="append", default=[], metavar="FILE",
                     help="the saved plan of a saved snapshot's host")
    top.add_argument("--pulled", type=Path, metavar="DIR",
                     help="judge what the hosts left of themselves (role pull_verify)")
    top.add_argument("--pulled-age", type=float, default=26, metavar="H",
                     help="a result older than so many hours is none (usual: 26)")
    top.add_argument("--save", type=Path, metavar="DIR",
                     help="save snapshots and plans there, to be sent: names and secrets removed")
    top.add_argument("--report", type=Path, default=REPORTS, metavar="DIR",
                     help="where reports are kept")
    top.add_argument("--fanout", type=int, default=ProbeOptions.fanout, metavar="N",
                     help="how many hosts at the same time")
    top.add_argument("--launcher", choices=["ssh", "slurm"], default="ssh",
                     help="how the probe gets there: by ssh, or as a job step by srun")
    top.add_argument("--topology", type=Path, metavar="FILE",
                     help="ClusterShell's topology.conf: which hosts are behind which gateways")
    top.add_argument("--deadline", type=float, default=ProbeOptions.deadline_s, metavar="S",
                     help="how long one host may take")
    top.add_argument("--deep", action="store_true", help="compare contents, not only dates")
    top.add_argument("--pair", action="append", default=[], metavar="HOST,OTHER",
                     help="also run a distributed TensorFlow between these two")
    top.add_argument("--pairs", action="store_true",
                     help="and between each host and the next, in a ring")
    top.add_argument("--pair-stack", metavar="NAME", help="in this stack only")
    top.add_argument("--offline", action="store_true", help="plan: do not look at the hosts")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run a verb; its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # First or not at all: an option that is not known here (-k matmul) keeps its own value.
    verb = words.pop(0) if words and words[0] in VERBS else VERBS[0]
    console, told_as_json = Console(stderr=True), "--json" in words
    # Names that no terminal of this machine can show are no reason to say nothing.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        options, rest = parser().parse_known_args(words, argparse.Namespace(verb=verb))
        if options.verb == "catalogue":
            sys.stdout.write(catalogue.markdown())
            return 0
        if options.verb == "plan":
            from .plan import show  # noqa: PLC0415 (compat is not needed to judge documents)

            return show(options, question(options), _manner(options, "facts"), console)
        return _verify(options, rest, console)
    except ConfigurationError as error:
        if told_as_json:
            _print_json({"schema": judge.SCHEMA, "problems": [
                {"code": "configuration", "message": error.message, "where": error.where,
                 "remedy": error.remedy}]})
        console.print(str(error), style="bold red", markup=False, soft_wrap=True)
        return USAGE
    except KeyboardInterrupt:
        console.print("Interrupted: nothing was judged.")
        return 130


def _manner(options: argparse.Namespace, mode: str) -> ProbeOptions:
    if options.fanout < 1 or options.deadline <= 0:
        raise ConfigurationError("--fanout and --deadline are more than 0.")
    return ProbeOptions(mode, options.fanout, options.deadline, options.deep, options.topology)


def _verify(options: argparse.Namespace, rest: list[str], console: Console) -> int:
    manner = _manner(options, "full")
    asked = PairOptions(tuple(options.pair), options.pairs, options.pair_stack)
    if options.pulled and (options.snapshot or options.local or asked != NO_PAIRS):
        raise ConfigurationError("The hosts' own results are all that is judged.", "--pulled",
                                 "Leave out --snapshot, --local and --pair.")
    if options.snapshot and asked != NO_PAIRS:
        raise ConfigurationError("Saved snapshots have their pairs in them.", "--pair",
                                 "Leave out --snapshot to have hosts meet.")
    if options.snapshot:
        session = judge_saved(options.snapshot, options.plan, question(options))
        directory = report.create_directory(options.report)
    elif options.pulled:
        session = collected.judge_results(options.pulled, inventory_hosts(question(options)),
                                 timedelta(hours=options.pulled_age))
        directory = report.create_directory(options.report)
    else:
        hosts = ([local_host(question(options))] if options.local
                 else inventory_hosts(question(options)))
        if options.launcher == "slurm":
            hosts = _steps(hosts, options, manner, asked)
        # Before the look: it may take minutes, and nobody wants them lost.
        directory = report.create_directory(options.report)
        with terminal.progress(console, "Looking", len(hosts)) as heard:
            session = verify(hosts, manner, heard,
                             planner=plan_local_host if options.local else None,
                             pair_options=asked,
                             notify=lambda text: console.print(text, markup=False, soft_wrap=True))
        if options.local:
            session.notes = session.hosts[0].plan["notes"]
    return conclude(session, directory, options, rest, console)


def conclude(
    session: Session, directory: Path, options: argparse.Namespace, rest: list[str],
    console: Console,
) -> int:
    """Write the report, run the suite for JUnit, and say it all; the exit status."""
    session.inventory_args = _where(options)
    page = report.write_report(directory, session)
    if options.save:
        _share(session, options.save, console)
    if rest:
        _run_suite(session, directory / "junit.xml", options, rest)
    else:
        junit.write(directory / "junit.xml", session, _scheme(options))
    latest = report.update_latest(directory) / page.name
    if options.json:
        _print_json(session.document)
    else:
        terminal.show(Console(), session.for_display(), latest if latest.exists() else page)
    return judge.exit_status(session.document)


def _steps(
    hosts: list[InventoryHost], options: argparse.Namespace, manner: ProbeOptions,
    asked: PairOptions,
) -> list[InventoryHost]:
    if options.local or options.topology or asked != NO_PAIRS:
        raise ConfigurationError("It goes together neither with --local, nor with --topology, nor"
                                 " with pairs of hosts.", "--launcher slurm",
                                 "Leave one of them out.")
    return as_job_steps(hosts, question(options), manner.host_s)


def _where(options: argparse.Namespace) -> str:
    """The inventories that were named, as a person in this directory types them."""
    words = []
    for given in options.inventory:
        path = Path(given).absolute()
        if path != ROOT / "inventory" / "lab":
            short = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
            words += ["-i", str(short) if path.exists() else given]
    return shlex.join(words)


def _share(session: Session, directory: Path, console: Console) -> None:
    """Save what can be sent, and say what to look for in it before it is."""
    made = report.write_bundles(directory, session)
    console.print(f"Saved to {directory}, to be sent: {bundle.NOTE}", markup=False, soft_wrap=True)
    for each in made:
        if not each["same_verdicts"]:
            console.print(f"{each['host']}: without these names the verdicts are not the same;"
                          " say so when you send it.", style="bold red", markup=False)


def _run_suite(
    session: Session, path: Path, options: argparse.Namespace, rest: list[str]
) -> None:
    """The pytest suite on this session."""
    import pytest  # noqa: PLC0415 (not for catalogue and plan)

    from gpufleet.verification.suite import PreparedSession  # noqa: PLC0415

    if options.inventory:
        # testinfra takes one inventory; Ansible itself takes several here.
        os.environ["ANSIBLE_INVENTORY"] = ",".join(
            str(Path(name).absolute()) if Path(name).exists() else name
            for name in options.inventory)
    words = [str(SUITE), f"--rootdir={ROOT}", "-p", "no:cacheprovider",
             f"--junitxml={path}", "-o", "junit_suite_name=gpufleet", *rest]
    if _scheme(options) == "ssh":
        words += ["--hosts", ",".join(f"ssh://{host.name}" for host in session.hosts)]
    # Standard output is for the verdicts.
    with contextlib.redirect_stdout(sys.stderr):
        status = pytest.main(words, plugins=[_Named(PreparedSession(session))])
    if status not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED,
                      pytest.ExitCode.NO_TESTS_COLLECTED}:
        raise ConfigurationError("pytest could not run the suite; its words stand above.")


def _scheme(options: argparse.Namespace) -> str:
    """What testinfra would call the way to the hosts: without an inventory they are plain names."""
    return "ssh" if options.snapshot or options.local else "ansible"


class _Named:
    """Registers the session under its name before the suite's conftest asks for it."""

    def __init__(self, prepared: Any) -> None:
        self.prepared = prepared

    def pytest_configure(self, config: Any) -> None:
        """pytest's hook."""
        config.pluginmanager.register(self.prepared, self.prepared.NAME)


def _print_json(document: Any) -> None:
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
