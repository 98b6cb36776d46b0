"""The options of verbs that drain hosts; apart from the others, since few verbs need schedulers."""

from __future__ import annotations

from gpufleet.fleet.schedulers import SCHEDULERS

from .parser import Parser


def add_scheduler(verb: Parser, what: str) -> None:
    """`--hook` and `--drain-wait`; `what`: what the scheduler does with the hosts."""
    group = verb.add_argument_group("Scheduler")
    group.add_argument(
        "--hook", default="none", choices=list(SCHEDULERS), help=f"Scheduler that {what}"
    )
    group.add_argument(
        "--drain-wait",
        type=float,
        default=3600,
        metavar="S",
        help="Wait this many seconds for running jobs",
    )
