"""`gpufleet playbook NAME`: run a playbook of gpufleet, in a checkout or as installed."""

from __future__ import annotations

import argparse

from gpufleet.campaign.provision.playbook import playbook_command
from gpufleet.campaign.provision.playbook import run as run_command
from gpufleet.errors import ConfigurationError
from gpufleet.paths import PLAYBOOKS

from .arguments import check_playbook_args
from .options import add_hosts, selector
from .parser import Parser
from .system_packages import SSH, require


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "playbook",
        (
            "playbook rollback -i inventory/fleet --limit gpu07",
            "playbook nightly -i inventory/fleet --check --diff",
        ),
        usage="NAME [options]",
        passes_to="ansible-playbook",
        exit_status="Exit status: 4 usage or configuration, else ansible-playbook's.",
    )
    verb.add_argument_group("Playbook").add_argument(
        "name", metavar="NAME", help=f"One of {', '.join(names())}"
    )
    add_hosts(verb)
    return verb


def names() -> list[str]:
    """The names of the playbooks."""
    return sorted(path.stem for path in PLAYBOOKS.glob("*.yml"))


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Run the playbook; its exit status."""
    if options.name not in names():
        raise ConfigurationError(
            f"There is no playbook {options.name}.", "", f"Name one of {', '.join(names())}."
        )
    check_playbook_args(parser(), rest)
    selected = selector(options)
    require(SSH)
    return run_command(playbook_command(f"{options.name}.yml", selected, selected.limit, rest))
