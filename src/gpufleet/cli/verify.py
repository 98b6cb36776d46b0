"""`gpufleet verify`: probe the hosts, judge them against their plans, report.

Reads hosts, writes reports. Options that this parser does not know are pytest's: with any, the
suite that `pytest verify/` runs is run here too, on the same snapshots.
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path

from rich.console import Console

from gpufleet.errors import ConfigurationError
from gpufleet.fleet import collected
from gpufleet.fleet.inventory import InventoryHost, inventory_hosts
from gpufleet.fleet.local import local_host, plan_local_host
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.pair_selection import NO_PAIRS, PairOptions
from gpufleet.fleet.probing import verify
from gpufleet.fleet.saved import judge_saved
from gpufleet.fleet.session import Session
from gpufleet.fleet.transport.slurm import as_job_steps
from gpufleet.judge import judge
from gpufleet.report import directory as report
from gpufleet.report import terminal

from .conclusion import conclude, keep_odd_names
from .options import add_hosts, add_output, add_probe, probe_options, selector
from .parser import EXIT_STATUS, Parser
from .system_packages import require_ssh

SCHEMA = judge.SCHEMA
# Ten years: the oldest result that may be asked for.
MOST_AGE_H = 24 * 366 * 10
IF_STOPPED = "Nothing was judged."


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "verify",
        (
            "verify -i inventory/fleet",
            "verify --local --deep --save first-run",
            "verify --local -k matmul",
        ),
        passes_to="pytest",
        exit_status=EXIT_STATUS,
    )
    add_hosts(verb)
    verb.add_argument_group("Hosts without an inventory").add_argument(
        "--local",
        action="store_true",
        help="Verify this machine, without ssh; what is not declared is taken from the probe",
    )

    group = add_probe(verb)
    group.add_argument(
        "--deep",
        action="store_true",
        help="Compare the contents of installed files, not only size and date",
    )
    group.add_argument(
        "--launcher",
        choices=["ssh", "slurm"],
        default="ssh",
        help="Start the probe by ssh, or as a Slurm job step (srun)",
    )
    group.add_argument(
        "--topology",
        type=Path,
        metavar="FILE",
        help="Probe through the gateways of this topology.conf of ClusterShell",
    )

    group = verb.add_argument_group("Pairs of hosts")
    group.add_argument(
        "--pair",
        action="append",
        default=[],
        metavar="HOST,OTHER",
        help="Also compute on these two together, with each framework's own"
        " distributed run; may be repeated",
    )
    group.add_argument(
        "--pairs", action="store_true", help="Also run it on each host and the next, in a ring"
    )
    group.add_argument(
        "--pair-stack",
        metavar="NAME",
        help="Use this stack only (default: every stack that both have)",
    )

    group = verb.add_argument_group("Results from elsewhere, instead of a probe")
    group.add_argument(
        "--snapshot",
        action="append",
        default=[],
        metavar="FILE",
        help="Judge this saved snapshot or bundle; may be repeated",
    )
    group.add_argument(
        "--plan",
        action="append",
        default=[],
        metavar="FILE",
        help="Use this saved plan for the host of a saved snapshot; may be repeated",
    )
    group.add_argument(
        "--pulled",
        type=Path,
        metavar="DIR",
        help="Judge the results that hosts wrote themselves (role pull_verify)",
    )
    group.add_argument(
        "--pulled-age",
        type=float,
        default=26,
        metavar="H",
        help="Ignore such results when they are older than this many hours",
    )

    group = add_output(verb)
    group.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="List every check of every host, not only the ones that are not healthy; pytest"
        " receives it too",
    )
    group.add_argument(
        "--save",
        type=Path,
        metavar="DIR",
        help="Save page, verdicts, snapshots and plans without names and secrets"
        " here, and a bundle of each host to send with a bug report",
    )
    return verb


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Probe, judge, report; the exit status."""
    console = Console(stderr=True)
    keep_odd_names()
    session, directory = judged(options, console)
    return conclude(session, directory, options, rest, console)


def judged(options: argparse.Namespace, console: Console) -> tuple[Session, Path]:
    """The verdicts of all hosts, and the new directory for the report."""
    how = probe_options(options, "full", deep=options.deep, topology=options.topology)
    pairs = PairOptions(tuple(options.pair), options.pairs, options.pair_stack)
    check_combinations(options, pairs)
    if options.save:
        report.require_writable(options.save)
    if options.snapshot:
        session = judge_saved(options.snapshot, options.plan, selector(options))
        return session, report.create_directory(options.report)
    if options.pulled:
        session = collected.judge_results(
            options.pulled, inventory_hosts(selector(options)), timedelta(hours=options.pulled_age)
        )
        return session, report.create_directory(options.report)
    hosts = [local_host(selector(options))] if options.local else inventory_hosts(selector(options))
    require_ssh(hosts)
    if options.launcher == "slurm":
        hosts = slurm_steps(hosts, options, how, pairs)
    # Before the probe, which may take minutes: a directory that is not writable is reported now.
    directory = report.create_directory(options.report)
    with terminal.progress(console, "Probing", len(hosts)) as progress:
        session = verify(
            hosts,
            how,
            progress,
            planner=plan_local_host if options.local else None,
            pair_options=pairs,
            notify=lambda text: console.print(text, markup=False, soft_wrap=True),
        )
    if options.local:
        session.notes = session.hosts[0].plan["notes"]
    return session, directory


def check_combinations(options: argparse.Namespace, pairs: PairOptions) -> None:
    """Refuse options that contradict each other."""
    if options.pulled and (options.snapshot or options.local or pairs != NO_PAIRS):
        raise ConfigurationError(
            "Only the hosts' own results are judged.",
            "--pulled",
            "Leave out --snapshot, --local and --pair.",
        )
    if options.pulled and not 0 < options.pulled_age < MOST_AGE_H:
        raise ConfigurationError(
            "It is no number of hours.",
            f"--pulled-age {options.pulled_age}",
            "Give one such as 26.",
        )
    if options.plan and not options.snapshot:
        raise ConfigurationError(
            "A saved plan is used with a saved snapshot only.", "--plan", "Add --snapshot FILE."
        )
    if options.snapshot and pairs != NO_PAIRS:
        raise ConfigurationError(
            "Saved snapshots have their pairs in them.",
            "--pair",
            "Leave out --snapshot to run pairs of hosts.",
        )


def slurm_steps(
    hosts: list[InventoryHost], options: argparse.Namespace, how: ProbeOptions, pairs: PairOptions
) -> list[InventoryHost]:
    """The hosts, reached by job steps."""
    if options.local or options.topology or pairs != NO_PAIRS:
        raise ConfigurationError(
            "It cannot be combined with --local, --topology or pairs of hosts.",
            "--launcher slurm",
            "Leave one of them out.",
        )
    return as_job_steps(hosts, selector(options), how.deadline_of)
