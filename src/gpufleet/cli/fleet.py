"""`gpufleet fleet`: the hosts of an inventory with their states; set the state of one.

Reads the inventory and the history; --set writes the history.
"""

from __future__ import annotations

import argparse

from gpufleet.documents.clock import utc_now
from gpufleet.documents.commission import Fleet, FleetHost
from gpufleet.documents.text import one_line
from gpufleet.documents.verdict import HEALTHY
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import inventory_hosts
from gpufleet.report import terminal
from gpufleet.watch import host_states
from gpufleet.watch.history import History

from . import state_rows
from .options import add_database, add_hosts, add_json, database_path, print_json, selector
from .parser import Parser
from .silence import MOST_WHO, MOST_WHY, account

SCHEMA = 1


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "fleet",
        (
            "fleet -i inventory/fleet",
            "fleet -i inventory/fleet --limit gpu07 --set returned --why RMA-4711",
        ),
        exit_status="Exit status: 0, or 4 usage or configuration.",
    )
    add_hosts(verb)
    group = verb.add_argument_group("State")
    group.add_argument(
        "--set",
        choices=host_states.STATES,
        metavar="STATE",
        help="Set the state of the hosts that --limit names: " + ", ".join(host_states.STATES),
    )
    group.add_argument("--why", default="", metavar="TEXT", help="Give the reason")
    group.add_argument(
        "--by",
        default="",
        metavar="NAME",
        help="Name who sets it (default: the account, before sudo)",
    )
    group.add_argument(
        "--past", action="store_true", help="Show the earlier states of each host, too"
    )
    group = verb.add_argument_group("Database")
    add_database(group, "Use this history")
    add_json(verb.add_argument_group("Output"))
    return verb


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Show the states, after one was set; the exit status."""
    why, by = one_line(options.why.strip()), one_line(options.by.strip()) or account()
    check_usage(options, why, by)
    names = [host.name for host in inventory_hosts(selector(options))]
    with History(database_path(options)) as history:
        for name in names if options.set else ():
            host_states.set_state(
                history,
                name,
                {"state": options.set, "since": utc_now(), "by": by, "why": why},
            )
        rows = host_states.fleet(history, names)
        shown = [row for row in rows if row["host"] in names or not options.limit]
        for row in shown if options.past else ():
            row["former"] = host_states.former(history, row["host"])[:-1]
    if options.json:
        document: Fleet = {"schema": SCHEMA, "hosts": shown}
        print_json(document)
    else:
        show(shown)
    return HEALTHY


def check_usage(options: argparse.Namespace, why: str, by: str) -> None:
    """Raise `ConfigurationError` for options that do not go together."""
    if options.set and not (options.limit and why):
        raise ConfigurationError(
            "The hosts and the reason of a state are named.",
            "--set",
            "Add --limit HOST --why TEXT.",
        )
    if why and not options.set:
        raise ConfigurationError("It is the reason of a state.", "--why", "Add --set STATE.")
    for name, text, most in (("--why", why, MOST_WHY), ("--by", by, MOST_WHO)):
        if len(text) > most:
            raise ConfigurationError(f"It is longer than {most} characters.", name, "Shorten it.")


def show(rows: list[FleetHost]) -> None:
    """Print a line for each host, and one for each of its earlier states."""
    table = state_rows.table("host")
    for row in rows:
        state_rows.add(table, row, row["host"])
        for state in reversed(row.get("former", [])):
            state_rows.add(table, state, "", style="dim")
    terminal.output().print(table)
