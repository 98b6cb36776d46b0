"""`rollout`: provision a fleet batch by batch: drain, provision, verify, resume.

The first unhealthy batch stops the rollout and stays drained. `--resume` continues a stopped or
killed rollout where it was; each step can be repeated.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from gpufleet.errors import ConfigurationError
from gpufleet.inventory import HostSelector
from gpufleet.model.verdict import HEALTHY, USAGE
from gpufleet.paths import REPORTS
from gpufleet.rollout import rollout
from gpufleet.rollout.progress import Store
from gpufleet.rollout.runner import show
from gpufleet.rollout.schedulers import SCHEDULERS
from gpufleet.verification.session import ProbeOptions

from .arguments import read
from .parser import Parser

INTERRUPTED = 130


def parser() -> Parser:
    """The options; what is not known goes to ansible-playbook."""
    top = Parser(
        remedy="./gpufleet rollout --help",
        prog="rollout",
        description="Provision a fleet batch by batch, the canary first; stop at the first batch in"
        " which not everything holds.",
        epilog="Exit status: 0 all done, 1 stopped at something that failed, 3 at something that"
        " could not be judged, 4 usage or configuration: nothing was changed.")
    top.ask_for_hosts()
    top.add_argument("--canary", default="1", metavar="HOST,..|N",
                     help="who goes first: these hosts, or the first N (1); 0 for nobody")
    top.add_argument("--pause", action="store_true",
                     help="stop after a healthy canary, until --resume: it may work a day first")
    top.add_argument("--batch", default="10%", metavar="N|N%",
                     help="at most so many hosts at a time (10%%)")
    top.add_argument("--domain", metavar="NAME",
                     help="no batch has hosts of two of these: a variable, or groups NAME_x")
    top.add_argument("--hook", default="none", choices=list(SCHEDULERS),
                     help="who drains hosts and gives them back")
    top.add_argument("--drain-wait", type=float, default=3600, metavar="S",
                     help="how long running jobs are waited for (3600)")
    top.add_argument("--rollback", action="store_true",
                     help="go back to the former driver on the hosts of an unhealthy batch")
    top.add_argument("--force", action="store_true", help="run Ansible also where nothing differs")
    top.add_argument("--fanout", type=int, default=ProbeOptions.fanout, metavar="N")
    top.add_argument("--deadline", type=float, default=ProbeOptions.deadline_s, metavar="S")
    top.add_argument("--deep", action="store_true")
    what = top.add_mutually_exclusive_group()
    what.add_argument("--plan", action="store_true", help="show the batches, and do nothing")
    what.add_argument("--resume", action="store_true",
                      help="continue the one that was begun; --drain-wait, --rollback, --fanout and"
                      " --deadline may be given anew")
    what.add_argument("--abandon", action="store_true", help="let go of the one that was begun")
    top.add_argument("--state", type=Path, default=REPORTS / "rollout", metavar="DIR",
                     help="where it is noted how far it has come")
    top.add_argument("--report", type=Path, default=REPORTS, metavar="DIR")
    return top


def main(words: list[str]) -> int:
    """Run the verb; its exit status."""
    console = Console(soft_wrap=True, highlight=False)
    try:
        options, rest = read(parser(), words)
        # What argparse finds in the namespace has no default: None is what nobody said.
        said, _ = parser().parse_known_args(
            words, argparse.Namespace(**dict.fromkeys(vars(options))))
        given = {name: value for name, value in vars(said).items() if value is not None}
        return _main(options, given, rest, console)
    except ConfigurationError as error:
        console.print(str(error), style="bold red", markup=False)
        return USAGE
    except KeyboardInterrupt:
        console.print("Interrupted. './gpufleet rollout --resume' continues it.")
        return INTERRUPTED


def _main(
    options: argparse.Namespace, given: dict[str, Any], rest: list[str], console: Console
) -> int:
    store = Store(options.state)
    request = _request(options, rest)
    if options.plan:
        show(console, rollout.prepare(request))
        return HEALTHY
    with store.alone():
        last = store.load()
        unfinished = last is not None and last.status in {"running", "stopped"}
        if options.resume or options.abandon:
            if not last or not unfinished:
                raise ConfigurationError("There is no rollout to resume or abandon.",
                                         str(store.file))
        elif last and unfinished:
            raise ConfigurationError(
                f"The last rollout is not finished ({last.summary}).", str(store.file),
                "'./gpufleet rollout --resume' continues it, '--abandon' abandons it.")
        progress = last if last and unfinished else rollout.prepare(request)
        if options.abandon:
            return rollout.abandon(progress, store, console)
        if options.resume:
            rollout.resume(progress, given, rest)
        return rollout.run(progress, store, console, options.report)


def _request(options: argparse.Namespace, rest: list[str]) -> rollout.Request:
    selector = HostSelector(
        options.inventory, options.limit, options.extra_vars, options.vault_password_file,
        domain=options.domain)
    settings = {name: getattr(options, name) for name in rollout.SETTINGS}
    return rollout.Request(selector, options.canary, options.batch, settings, rest)
