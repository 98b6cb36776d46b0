"""Options that several verbs share, and what is read from them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import HostSelector
from gpufleet.fleet.options import ProbeOptions
from gpufleet.paths import IN_CHECKOUT, LAB_INVENTORY, REPORTS

from .parser import Parser

# The nightly's history is used where it exists, else the one beside the reports.
NIGHTLYS = Path("/var/lib/gpufleet-nightly/history.sqlite")
OWN = REPORTS / "history.sqlite"
# The nightly's settings: where they are, this machine is its control host.
CONTROL = Path("/etc/gpufleet/nightly.yml")


def add_hosts(parser: Parser) -> None:
    """The options that select hosts, named as Ansible's."""
    group = parser.add_argument_group("Hosts")
    group.add_argument(
        "-i",
        "--inventory",
        action="append",
        default=[],
        metavar="INV",
        help="Inventory: a file, a directory, or host names 'a,b,'; may be repeated (default: the"
        " nightly's on its control host, the lab in a checkout, else Ansible's own setting)",
    )
    group.add_argument(
        "-l",
        "--limit",
        metavar="HOSTS",
        help="Select these hosts only: names, groups, patterns or @FILE, as in ansible-playbook",
    )
    group.add_argument(
        "-e",
        "--extra-vars",
        action="append",
        default=[],
        metavar="VARS",
        help="Set variables on top of the inventory: KEY=VALUE, JSON or @FILE; may be repeated",
    )
    group.add_argument(
        "--vault-password-file",
        action="append",
        default=[],
        metavar="FILE",
        help="Read a vault password from this file; may be repeated",
    )


def add_probe(parser: Parser) -> Any:
    """The options of a probe; the group, for more of them."""
    group = parser.add_argument_group("Probe")
    group.add_argument(
        "--fanout",
        type=int,
        default=ProbeOptions.fanout,
        metavar="N",
        help="Probe this many hosts at the same time",
    )
    group.add_argument(
        "--deadline",
        type=float,
        default=ProbeOptions.deadline_s,
        metavar="S",
        help="Abandon the probe of a host after this many seconds; stacks that use"
        " several GPUs, or compile their code for one, have more",
    )
    return group


def add_output(parser: Parser, *, report: bool = True) -> Any:
    """`--json` and, where reports are written, `--report`; the group, for more of them."""
    group = parser.add_argument_group("Output")
    add_json(group)
    if report:
        add_report(group)
    return group


def add_json(group: Any) -> None:
    """`--json`."""
    group.add_argument(
        "--json", action="store_true", help="Print one JSON document on standard output"
    )


def add_report(group: Any) -> None:
    """`--report`."""
    group.add_argument(
        "--report",
        type=Path,
        default=REPORTS,
        metavar="DIR",
        help="Write reports below this directory (default: reports/ in a checkout,"
        " else in the current directory)",
    )


def add_database(group: Any, what: str) -> None:
    """`--database`; `what`: what is done with the history."""
    group.add_argument(
        "--database",
        type=Path,
        metavar="FILE",
        help=f"{what} (default: the one of the nightly's settings, or {NIGHTLYS}, where it exists,"
        " else history.sqlite among the reports)",
    )


def database_path(options: argparse.Namespace) -> Path:
    """The file of the history that the options select."""
    chosen: Path | None = options.database
    return chosen or default_database()


def default_database() -> Path:
    """The nightly run's history where it is known or exists, else the one among the reports."""
    if os.access(CONTROL, os.R_OK):
        # Its libraries are needed here alone.
        from gpufleet.watch import config, state  # noqa: PLC0415

        return config.read(CONTROL).state_dir / state.HISTORY
    return NIGHTLYS if is_there(NIGHTLYS) else OWN


def is_there(path: Path) -> bool:
    """Return whether a history exists; a `ConfigurationError` where this account may not see it."""
    try:
        return path.exists()
    except PermissionError as error:
        raise ConfigurationError(
            "This account may not read the history.",
            str(path),
            "Run the command as the user of the nightly.",
        ) from error


def default_inventory(options: argparse.Namespace) -> bool:
    """Return whether the lab's hosts are selected: in a checkout, if no other hosts are named."""
    return IN_CHECKOUT and _names_none(options) and not is_control_host()


def _names_none(options: argparse.Namespace) -> bool:
    """Return whether no option and no variable names hosts."""
    return not (
        options.inventory
        or getattr(options, "local", False)
        or getattr(options, "snapshot", None)
        or os.environ.get("ANSIBLE_INVENTORY")
    )


def is_control_host() -> bool:
    """Return whether this machine verifies a fleet every night.

    A call without -i is about that fleet.
    """
    return os.path.lexists(CONTROL)


def _nightlys() -> tuple[list[str], list[str]]:
    """The inventories of the nightly, and the files with its vault's passwords."""
    if not os.access(CONTROL, os.R_OK):
        raise ConfigurationError(
            "This account may not read the settings of the nightly, which name the hosts.",
            str(CONTROL),
            "Run it as the nightly's user (sudo -u gpufleet -H gpufleet ...), or name others: -i"
            " INVENTORY.",
        )
    # Its libraries are needed here alone.
    from gpufleet.watch import config  # noqa: PLC0415

    settings = config.read(CONTROL)
    return [*settings.inventory], [*filter(None, [settings.vault_password_file])]


def selector(options: argparse.Namespace) -> HostSelector:
    """The hosts that the options select; a `ConfigurationError` where no inventory is named."""
    inventories = options.inventory
    for source in inventories:
        if "," not in source and not Path(source).exists():
            raise ConfigurationError(
                "The inventory does not exist.", source, "Give a file, a directory, or 'host,'."
            )
    passwords = options.vault_password_file
    if _names_none(options) and is_control_host():
        inventories, known = _nightlys()
        passwords = passwords or known
    elif default_inventory(options):
        inventories = [str(LAB_INVENTORY)]
    elif not (
        inventories or getattr(options, "local", False) or getattr(options, "snapshot", None)
    ):
        require_inventory()
    return HostSelector(inventories, options.limit, options.extra_vars, passwords)


def require_inventory() -> None:
    """Refuse a call that leaves the inventory to Ansible's settings, where those name none."""
    from ansible import constants  # noqa: PLC0415 (only where no inventory is named)

    if not any("," in source or Path(source).exists() for source in constants.DEFAULT_HOST_LIST):
        raise ConfigurationError(
            "No inventory is named.",
            "",
            "Name one: -i INVENTORY. 'gpufleet init DIR' creates one to start from.",
        )


def probe_options(options: argparse.Namespace, mode: str, **more: Any) -> ProbeOptions:
    """How hosts are probed."""
    if options.fanout < 1 or options.deadline <= 0:
        raise ConfigurationError("--fanout and --deadline are more than 0.")
    return ProbeOptions(mode, options.fanout, options.deadline, **more)


def print_json(document: Any, indent: int = 1) -> None:
    """Write a document to standard output."""
    sys.stdout.write(json.dumps(document, indent=indent) + "\n")
    sys.stdout.flush()
