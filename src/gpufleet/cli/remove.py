"""`gpufleet remove`: remove exactly what the receipts of hosts list. Runs playbooks/remove.yml."""

from __future__ import annotations

import argparse
import json
import re

from gpufleet.errors import ConfigurationError
from gpufleet.provision.playbook import playbook_command
from gpufleet.provision.playbook import run as run_command

from .arguments import check_playbook_args
from .options import add_hosts, selector
from .parser import Parser
from .system_packages import SSH, require


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "remove", ("remove -i inventory/fleet --limit gpu07 --toolkit 11.8",
                   "remove -i inventory/fleet --stack tensorflow-2.13.1 --check"),
        passes_to="ansible-playbook",
        exit_status="Exit status: 0 removed, 4 usage or configuration, else ansible-playbook's.")
    group = verb.add_argument_group("What to remove")
    group.add_argument("--toolkit", action="append", default=[], metavar="X.Y",
                       help="A CUDA toolkit, by the version of its directory; may be repeated")
    group.add_argument("--stack", action="append", default=[], metavar="NAME",
                       help="A stack, by its name; may be repeated")
    group.add_argument("--driver", action="store_true", help="The driver")
    group.add_argument("--containers", action="store_true",
                       help="The integration that gives containers the GPUs")
    add_hosts(verb)
    return verb


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Run the playbook; its exit status."""
    for version in options.toolkit:
        if not re.fullmatch(r"\d+\.\d+", version):
            raise ConfigurationError(
                f"{version} is not the version of a toolkit's directory.", "--toolkit",
                "Name its X.Y, such as 11.8.")
    removed = {
        "gpu_remove_toolkits": options.toolkit,
        "gpu_remove_stacks": options.stack,
        "gpu_remove_driver": options.driver,
        "gpu_remove_containers": options.containers,
    }
    if not any(removed.values()):
        raise ConfigurationError(
            "Nothing to remove is named.", "",
            "Name it: --toolkit 11.8, --stack NAME, --driver or --containers.")
    check_playbook_args(parser(), rest)
    selected = selector(options)
    require(SSH)
    return run_command(playbook_command(
        "remove.yml", selected, selected.limit, ["-e", json.dumps(removed), *rest]))
