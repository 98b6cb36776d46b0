"""`gpufleet commission`: prove fresh hosts stage by stage; certify them, or name the part at fault.

Changes hosts (through `provision`), and loads all of their GPUs. Records each stage: stopped or
killed, it resumes without repeating what is still valid.
"""

from __future__ import annotations

import argparse
import importlib.metadata
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from gpufleet.campaign.commission import signing
from gpufleet.campaign.commission.attempts import Settings, mates_of, rack_of
from gpufleet.campaign.commission.candidates import Request
from gpufleet.campaign.commission.records import Store
from gpufleet.campaign.commission.runner import Commission
from gpufleet.campaign.commission.stages import seconds_of
from gpufleet.campaign.provision.provision import checked_hosts
from gpufleet.documents.commission import Commissioned
from gpufleet.documents.verdict import FAILED, HEALTHY, NOT_JUDGED
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import HostSelector, InventoryHost, inventory_hosts
from gpufleet.fleet.schedulers import scheduler_of
from gpufleet.paths import REPORTS

from .arguments import check_playbook_args
from .lab import start_lab
from .options import (
    add_database,
    add_hosts,
    add_json,
    add_probe,
    database_path,
    default_inventory,
    print_json,
    probe_options,
    selector,
)
from .parser import Parser
from .scheduler_options import add_scheduler
from .silence import account
from .system_packages import SSH, require

SCHEMA = 1
IF_STOPPED = "The same command resumes it."


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "commission",
        (
            "commission -i inventory/fleet --limit gpu07,gpu08 --key ~/.ssh/site_ed25519",
            "commission -i inventory/fleet --limit gpu07 --burn-in 4h --hook slurm",
        ),
        passes_to="ansible-playbook",
        exit_status="Exit status: 0 all hosts are certified, 1 a host is refused, 3 a host could"
        " not be judged,\n4 usage or configuration.",
    )
    add_hosts(verb)
    group = verb.add_argument_group("Stages")
    group.add_argument(
        "--burn-in",
        default="30m",
        metavar="TIME",
        help="Load all GPUs at once for this long: 90s, 30m, 4h",
    )
    group.add_argument(
        "--siblings",
        default="",
        metavar="HOST,..",
        help="Let these hosts take part in the collectives (default: the hosts that are"
        " commissioned together)",
    )
    group = verb.add_argument_group("Certificate")
    group.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="Sign certificates and refusals by this ssh key, or by its public half where an agent"
        " has it (default: they are not signed)",
    )
    group.add_argument(
        "--by",
        default="",
        metavar="NAME",
        help="Name who commissions (default: the account, before sudo)",
    )
    add_scheduler(
        verb,
        "drains the hosts, and returns certified ones to service, whoever had drained them",
    )
    group = verb.add_argument_group("Progress")
    group.add_argument(
        "--state",
        type=Path,
        default=REPORTS / "commission",
        metavar="DIR",
        help="Keep records, evidence, certificates and refusals in this directory (default:"
        " commission/ among the reports)",
    )
    add_database(group, "Record baselines and the states of hosts in this history")
    add_probe(verb)
    add_json(verb.add_argument_group("Output"))
    return verb


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Commission the hosts; the exit status."""
    check_playbook_args(parser(), rest)
    burn_in_s = seconds_of(options.burn_in)
    how = probe_options(options, "full")
    selected = selector(options)
    require(SSH)
    if default_inventory(options):
        start_lab()
    hosts = checked_hosts(selected)
    refuse_without_gpus(hosts)
    refuse_split(hosts)
    siblings = named_siblings(options.siblings, selected, hosts)
    scheduler = scheduler_of(options.hook, hosts, selected)
    signer = ""
    if options.key:
        options.key = options.key.expanduser()
        signer = signing.check_key(options.key)
    console = Console(stderr=options.json, soft_wrap=True, highlight=False)
    settings = Settings(
        selected,
        how,
        burn_in_s,
        siblings,
        database_path(options),
        console,
        rest,
        rack_mates(selected, hosts),
    )
    request = Request(
        settings,
        scheduler,
        options.drain_wait,
        options.key,
        options.by.strip() or account(),
        importlib.metadata.version("gpufleet"),
        signer,
    )
    store = Store(options.state)
    with store.alone([host.name for host in hosts], settings.history):
        found = Commission(hosts, request, store).run()
    if options.json:
        document: Commissioned = {"schema": SCHEMA, "hosts": found}
        print_json(document)
    outcomes = {row["outcome"] for row in found.values()}
    if "refused" in outcomes:
        return FAILED
    return HEALTHY if outcomes == {"certified"} else NOT_JUDGED


def refuse_without_gpus(hosts: list[InventoryHost]) -> None:
    """Raise `ConfigurationError` for hosts of which no GPU is declared: none would be proven."""
    without = [host.name for host in hosts if host.spec.expect.get("count") == 0]
    if without:
        raise ConfigurationError(
            f"{', '.join(without)}: gpu_expect declares no GPU (count: 0), so there is none to"
            " prove. Nothing was changed on any host.",
            "gpu_expect.count",
            "Leave such hosts out with --limit, or declare their GPUs:"
            " gpu_expect: {count: 8, model: NVIDIA H100 80GB HBM3}.",
        )
    undeclared = [host.name for host in hosts if not host.spec.expect.get("count")]
    if undeclared:
        raise ConfigurationError(
            f"{', '.join(undeclared)}: no number of GPUs is declared, so nobody knows how many have"
            " to be proven. Nothing was changed on any host.",
            "gpu_expect.count",
            "Declare it: gpu_expect: {count: 8, model: NVIDIA H100 80GB HBM3}.",
        )


def refuse_split(hosts: list[InventoryHost]) -> None:
    """Raise `ConfigurationError` for hosts whose GPUs MIG splits.

    CUDA shows a program one instance of one GPU there, so the other GPUs would prove nothing.
    """
    if split := [host.name for host in hosts if any((host.spec.mig or {}).values())]:
        raise ConfigurationError(
            f"{', '.join(split)}: MIG splits the GPUs, and one instance of one GPU is all that a"
            " program computes on. Nothing was changed on any host.",
            "gpu_mig",
            "Commission these hosts without it first (gpu_mig: {all: []} switches MIG off), and"
            " declare it then.",
        )


def rack_mates(selected: HostSelector, hosts: list[InventoryHost]) -> list[InventoryHost]:
    """The hosts of the inventory that declare a rack of these hosts, without these."""
    if not any(map(rack_of, hosts)):
        return []
    return mates_of(hosts, inventory_hosts(replace(selected, limit=None)))


def named_siblings(
    text: str, selected: HostSelector, hosts: list[InventoryHost]
) -> list[InventoryHost]:
    """The hosts that --siblings names. Raises `ConfigurationError`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        return []
    known = {host.name: host for host in inventory_hosts(replace(selected, limit=None))}
    if wrong := [name for name in names if name not in known]:
        raise ConfigurationError(
            f"{', '.join(wrong)}: no host of this inventory.",
            "--siblings",
            "Name hosts of the inventory, separated by commas.",
        )
    own = {host.name for host in hosts}
    return [known[name] for name in dict.fromkeys(names) if name not in own]
