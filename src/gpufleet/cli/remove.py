"""`gpufleet remove`: remove exactly what the receipts of hosts list. Runs playbooks/remove.yml."""

from __future__ import annotations

import argparse
import json
import re
import sys

from gpufleet.campaign.provision.playbook import playbook_command
from gpufleet.campaign.provision.playbook import run as run_command
from gpufleet.documents.verdict import USAGE
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import HostSelector, inventory_hosts
from gpufleet.frameworks import DEFAULT
from gpufleet.report.terminal import fold_names

from .arguments import check_playbook_args
from .options import add_hosts, selector
from .parser import Parser
from .system_packages import SSH, require


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "remove",
        (
            "remove -i inventory/fleet --limit gpu07 --toolkit 11.8",
            f"remove -i inventory/fleet --stack {DEFAULT.stack} --check",
        ),
        passes_to="ansible-playbook",
        exit_status="Exit status: 0 removed, 4 usage or configuration, else ansible-playbook's.",
    )
    group = verb.add_argument_group("What to remove")
    group.add_argument(
        "--toolkit",
        action="append",
        default=[],
        metavar="X.Y",
        help="A CUDA toolkit, by the version of its directory; may be repeated",
    )
    group.add_argument(
        "--stack",
        action="append",
        default=[],
        metavar="NAME",
        help="A stack, by its name; may be repeated",
    )
    group.add_argument("--driver", action="store_true", help="The driver")
    group.add_argument(
        "--containers", action="store_true", help="The integration that gives containers the GPUs"
    )
    group.add_argument(
        "--network", action="store_true", help="The setup of the network adapters; packages stay"
    )
    add_hosts(verb)
    verb.add_argument_group("Confirmation").add_argument(
        "-y", "--yes", action="store_true", help="Do not ask before hosts are changed"
    )
    return verb


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Run the playbook; its exit status."""
    for version in options.toolkit:
        if not re.fullmatch(r"\d+\.\d+", version):
            raise ConfigurationError(
                f"{version} is not the version of a toolkit's directory.",
                "--toolkit",
                "Name its X.Y, such as 11.8.",
            )
    removed = {
        "gpu_remove_toolkits": options.toolkit,
        "gpu_remove_stacks": options.stack,
        "gpu_remove_driver": options.driver,
        "gpu_remove_containers": options.containers,
        "gpu_remove_network": options.network,
    }
    if not any(removed.values()):
        raise ConfigurationError(
            "Nothing to remove is named.",
            "",
            "Name it: --toolkit 11.8, --stack NAME, --driver, --containers or --network.",
        )
    check_playbook_args(parser(), rest)
    selected = selector(options)
    require(SSH)
    if not {"-C", "--check"} & {*rest} and not (options.yes or confirmed(options, selected)):
        print("Nothing was removed.", file=sys.stderr)
        return USAGE
    return run_command(
        playbook_command("remove.yml", selected, selected.limit, ["-e", json.dumps(removed), *rest])
    )


def confirmed(options: argparse.Namespace, selected: HostSelector) -> bool:
    """Return whether the person at the terminal agrees; without a terminal nobody is asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    names = [host.name for host in inventory_hosts(selected)]
    what = [
        *(f"stack {name}" for name in options.stack),
        *(f"toolkit {version}" for version in options.toolkit),
        *(["the integration of containers"] if options.containers else []),
        *(["the setup of the network adapters"] if options.network else []),
        *(["the driver"] if options.driver else []),
    ]
    print(f"Remove from {len(names)} hosts: {', '.join(what)}", file=sys.stderr)
    print(f"Hosts: {fold_names(names)}", file=sys.stderr)
    print("Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
