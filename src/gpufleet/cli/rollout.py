"""`rollout`: a canary, then batch after batch: drain, provision, verify, give back.

The first batch in which not everything holds ends it, and stays drained. Killed or stopped, it is
continued where it was; each step can be done twice.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from gpufleet.errors import ConfigurationError
from gpufleet.inventory import HostSelector, inventory_hosts
from gpufleet.model.verdict import FAILED, HEALTHY, USAGE
from gpufleet.paths import REPORTS
from gpufleet.rollout.batches import CANARY, batches, canaries, size_of
from gpufleet.rollout.progress import Progress, Store, outlived
from gpufleet.rollout.runner import ROOM, Rollout, show
from gpufleet.rollout.schedulers import SCHEDULERS, hook
from gpufleet.verification.session import ProbeOptions

from .arguments import read
from .parser import Parser
from .provision import checked

INTERRUPTED = 130
# The options that a rollout keeps to until its end.
SETTINGS = ("hook", "drain_wait", "pause", "rollback", "force", "fanout", "deadline", "deep")
# Of which those, given with --resume, hold from then on.
CHANGEABLE = ("drain_wait", "rollback", "fanout", "deadline")


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
    if options.plan:
        show(console, begin(options, rest))
        return HEALTHY
    with store.alone():
        last = store.load()
        unfinished = last is not None and last.status in {"running", "stopped"}
        if options.resume or options.abandon:
            if not last or not unfinished:
                raise ConfigurationError("There is no rollout to go on with.", str(store.file))
        elif last and unfinished:
            raise ConfigurationError(
                f"One was begun and is not done ({last.told}).", str(store.file),
                "'./gpufleet rollout --resume' continues it, '--abandon' lets go of it.")
        progress = last if last and unfinished else begin(options, rest)
        if options.abandon:
            return abandon(progress, store, console)
        if options.resume:
            continued(progress, given, rest)
        hosts = checked(progress.asked)
        there = hook(progress.settings["hook"], hosts, progress.asked)
        made = Rollout(progress, store, there, console, options.report)
        outlived(progress.started, made.say)
        made.check([host.name for host in hosts])
        return made.run()


def abandon(progress: Progress, store: Store, console: Console) -> int:
    """Let go of it, and name what it leaves drained.

    An inventory that is broken, or has lost its hosts, is often why it is let go.
    """
    progress.status = "abandoned"
    store.save(progress)
    console.print(f"Let go of the {progress.told}.", markup=False)
    try:
        hosts = inventory_hosts(progress.asked)
        there = hook(progress.settings["hook"], hosts, progress.asked)
        places = there.look(known_only=True)
    except ConfigurationError as error:
        console.print(f"Who is still drained could not be told: {error}", style="yellow",
                      markup=False)
        return FAILED if progress.settings["hook"] != "none" else HEALTHY
    for host, place in places.items():
        if place.ours(ROOM):
            console.print(f"  {host} is still drained ({place.reason}). To give it back:"
                          f" {there.by_hand(host)}", markup=False)
    taken = {host for batch in progress.batches[: progress.done + 1] for host in batch.hosts}
    unknown = sorted(taken - set(places))
    if unknown:
        console.print(f"  {', '.join(unknown)}: no longer in the inventory, or unknown to the"
                      " scheduler. See there whether they are drained.", markup=False)
    return HEALTHY


def continued(progress: Progress, given: dict[str, Any], rest: list[str]) -> None:
    """Take over what --resume may change; anything else that is not as it was begun is refused."""
    asked = progress.asked
    began = {**progress.settings, "inventory": asked.inventories, "limit": asked.limit,
             "extra_vars": asked.extra_vars, "vault_password_file": asked.vault_password_files,
             "domain": asked.domain}
    if "inventory" in given:
        given = {**given, "inventory": found(given["inventory"])}
    other = {name: value for name, value in given.items()
             if name not in {*CHANGEABLE, "resume", "state", "report"}}
    strange = [f"--{name.replace('_', '-')}" for name, value in other.items()
               if name not in began or began[name] != value]
    strange += [word for word in rest if rest != progress.settings["words"]]
    if strange:
        raise ConfigurationError(
            f"The rollout was begun without {' '.join(strange)}, or otherwise.", "--resume",
            "Leave it out; or --abandon, and begin another.")
    changed = {name: given[name] for name in CHANGEABLE if name in given}
    sane({**progress.settings, **changed})
    progress.settings.update(changed)


def found(inventories: list[str]) -> list[str]:
    """The same from wherever it is continued."""
    return [str(Path(name).resolve()) if Path(name).exists() else name for name in inventories]


def sane(settings: dict[str, Any]) -> None:
    """Refuse numbers that make no sense."""
    if settings["fanout"] < 1 or settings["deadline"] <= 0 or settings["drain_wait"] < 0:
        raise ConfigurationError("--fanout and --deadline are more than 0, --drain-wait no less.")


def begin(options: argparse.Namespace, rest: list[str]) -> Progress:
    """A rollout as it is asked for; everything about the call that can be wrong is told here."""
    sane(vars(options))
    asked = HostSelector(
        found(options.inventory), options.limit, options.extra_vars,
        options.vault_password_file, domain=options.domain)
    hosts = checked(asked)
    names = [host.name for host in hosts]
    domains = {host.name: host.domain for host in hosts} if options.domain else None
    made = batches(
        names, canaries(options.canary, names), size_of(options.batch, len(names)), domains)
    if options.pause and made[0].name != CANARY:
        raise ConfigurationError("There is no canary after which to wait.", "--pause",
                                 "Leave out --pause, or --canary 0.")
    settings = {key: getattr(options, key) for key in SETTINGS}
    return Progress(asdict(asked), {**settings, "words": rest}, made)
