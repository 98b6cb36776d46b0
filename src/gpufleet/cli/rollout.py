"""`gpufleet rollout`: provision batch by batch: drain, provision, verify, return to service.

Changes hosts and asks the scheduler to drain them; keeps its state in a file. The first unhealthy
batch stops it and stays drained. Killed or stopped, it continues where it was.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from gpufleet.campaign.rollout import rollout
from gpufleet.campaign.rollout.progress import Store
from gpufleet.campaign.rollout.runner import show
from gpufleet.documents.verdict import HEALTHY, USAGE
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import HostSelector
from gpufleet.paths import REPORTS

from .arguments import check_playbook_args
from .options import add_hosts, add_probe, add_report, selector
from .parser import Parser
from .scheduler_options import add_scheduler
from .system_packages import SSH, require

IF_STOPPED = "'./gpufleet rollout --resume' continues it."


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "rollout",
        ("rollout -i inventory/fleet --canary gpu07 --batch 10% --hook slurm", "rollout --resume"),
        passes_to="ansible-playbook",
        exit_status="Exit status: 0 done, 1 stopped by a failure, 3 stopped by what could not be"
        " judged, 4 usage or configuration: nothing was changed.",
    )
    add_hosts(verb)
    group = verb.add_argument_group("Batches")
    group.add_argument(
        "--canary",
        default="1",
        metavar="HOST,..|N",
        help="Provision these hosts first, or the first N; 0 for none",
    )
    group.add_argument(
        "--pause", action="store_true", help="Stop after a healthy canary, until --resume"
    )
    group.add_argument(
        "--batch",
        default="10%",
        metavar="N|N%",
        help="Provision at most this many hosts at a time (default: 10%%)",
    )
    group.add_argument(
        "--domain",
        metavar="NAME",
        help="Keep each batch within one failure domain: a variable of that name, or groups NAME_x",
    )
    group.add_argument(
        "--force", action="store_true", help="Run Ansible on every host, also where nothing differs"
    )
    group.add_argument(
        "--rollback",
        action="store_true",
        help="Return to the previous driver on the hosts of an unhealthy batch",
    )
    add_scheduler(
        verb,
        "drains hosts and returns them to service",
    )
    group = verb.add_argument_group("Progress")
    group.add_argument(
        "--state",
        type=Path,
        default=REPORTS / "rollout",
        metavar="DIR",
        help="Keep the progress in this directory (default: rollout/ among the reports)",
    )
    group = group.add_mutually_exclusive_group()
    group.add_argument("--plan", action="store_true", help="Show the batches, and do nothing")
    group.add_argument(
        "--resume",
        action="store_true",
        help="Continue the rollout that was started; --drain-wait, --rollback,"
        " --fanout and --deadline may be given again",
    )
    group.add_argument(
        "--abandon", action="store_true", help="Abandon the rollout that was started"
    )
    group = add_probe(verb)
    group.add_argument(
        "--deep",
        action="store_true",
        help="Compare the contents of installed files, not only size and date",
    )
    add_report(verb.add_argument_group("Output"))
    return verb


def refused(error: ConfigurationError) -> int:
    """Print an error, as everything of a rollout, on standard output."""
    console().print(str(error), style="bold red", markup=False)
    return USAGE


def console() -> Console:
    """The console of a rollout."""
    return Console(soft_wrap=True, highlight=False)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Start, continue or abandon a rollout; the exit status."""
    own = parser()
    check_playbook_args(own, rest)
    require(SSH)
    given: dict[str, Any] = own.given(options.args)
    out, store = console(), Store(options.state)
    request = _request(options, rest)
    if options.plan:
        show(out, rollout.prepare(request))
        return HEALTHY
    with store.alone():
        last = store.load()
        unfinished = last is not None and last.status in {"running", "stopped"}
        if options.resume or options.abandon:
            if not last or not unfinished:
                raise ConfigurationError(
                    "There is no rollout to resume or abandon.", str(store.file)
                )
        elif last and unfinished:
            raise ConfigurationError(
                f"The last rollout is not finished ({last.summary}).",
                str(store.file),
                "'./gpufleet rollout --resume' continues it, '--abandon' abandons it.",
            )
        progress = last if last and unfinished else rollout.prepare(request)
        if options.abandon:
            return rollout.abandon(progress, store, out)
        if options.resume:
            rollout.resume(progress, given, rest)
        return rollout.run(progress, store, out, options.report)


def _request(options: argparse.Namespace, rest: list[str]) -> rollout.Request:
    # --resume and --abandon read the selection from the progress.
    named = (options.resume or options.abandon) and not options.inventory
    hosts = HostSelector() if named else selector(options)
    settings = {name: getattr(options, name) for name in rollout.SETTINGS}
    return rollout.Request(
        replace(hosts, domain=options.domain), options.canary, options.batch, settings, rest
    )
