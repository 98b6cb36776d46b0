"""`gpufleet provision`: probe, run Ansible where a host differs from its plan, probe again, report.

Changes hosts; writes reports. Options that this parser does not know are ansible-playbook's.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from gpufleet.campaign.provision.image import in_image
from gpufleet.campaign.provision.playbook import log
from gpufleet.campaign.provision.provision import (
    ProvisionOptions,
    checked_hosts,
    converge_hosts,
    hosts_to_run,
    play,
)
from gpufleet.documents.text import as_sentence
from gpufleet.documents.verdict import FAILED, HEALTHY, HEALTHY_VERDICTS, NOT_JUDGED
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import HostSelector
from gpufleet.fleet.options import ProbeOptions
from gpufleet.judge import judge
from gpufleet.report import directory as report

from .arguments import check_playbook_args
from .conclusion import conclude, keep_odd_names
from .lab import start_lab
from .options import add_hosts, add_output, add_probe, default_inventory, probe_options, selector
from .parser import EXIT_STATUS, Parser
from .system_packages import SSH, require

SCHEMA = judge.SCHEMA


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "provision",
        (
            "provision -i inventory/fleet --limit gpu07",
            "provision -i inventory/fleet --check --diff",
            "provision -i inventory/fleet --limit gpu07 --chroot /srv/image",
        ),
        passes_to="ansible-playbook",
        exit_status=EXIT_STATUS.replace("something failed", "a check or the playbook failed"),
    )
    add_hosts(verb)
    verb.add_argument_group("Images").add_argument(
        "--chroot",
        type=Path,
        metavar="DIR",
        help="Provision the image whose root directory this is, as the one selected host; its"
        " first boot proves the rest, so the verdict is INCONCLUSIVE (default: the host itself)",
    )
    group = verb.add_argument_group("Ansible")
    group.add_argument(
        "--force", action="store_true", help="Run Ansible on every host, also where nothing differs"
    )
    group.add_argument("-C", "--check", action="store_true", help="Change nothing")
    group.add_argument(
        "-D", "--diff", action="store_true", help="Show the changes of files; --check implies it"
    )
    add_probe(verb).add_argument(
        "--contents",
        action="store_true",
        help="Read the contents of all installed files, and repair what differs from its receipt",
    )
    add_output(verb)
    verb.set_defaults(local=False, snapshot=[], save=None, verbose=False)
    return verb


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Provision the hosts and report; the exit status."""
    check_playbook_args(parser(), rest)
    how = probe_options(options, "full", contents=options.contents)
    keep_odd_names()
    if options.chroot:
        if default_inventory(options):
            raise ConfigurationError(
                "No inventory is named.", "--chroot", "Name one: -i INVENTORY --limit HOST."
            )
        with in_image(selector(options), options.chroot) as selected:
            return provision(options, rest, selected, how)
    selected = selector(options)
    require(SSH)
    if default_inventory(options):
        start_lab()
    return provision(options, rest, selected, how)


def provision(
    options: argparse.Namespace, rest: list[str], selected: HostSelector, how: ProbeOptions
) -> int:
    """Provision the selected hosts and report; the exit status."""
    mode = ["--check"] if options.check else []
    diff = ["--diff"] if options.diff or options.check else []
    how_to_provision = ProvisionOptions(
        selected,
        how,
        options.force,
        [*mode, *diff, *rest],
        output=sys.stderr if options.json else None,
    )
    hosts = checked_hosts(selected)
    if options.check:
        session, work = hosts_to_run(hosts, how_to_provision, log)
        statuses = play(how_to_provision, list(work.reasons), len(hosts), work.steps).statuses
        statuses |= dict.fromkeys([*work.without_root, *work.alone], FAILED)
        for host in session.hosts if session else ():
            if host.name in work.alone:
                left = next(
                    check
                    for check in host.result["checks"]
                    if check["verdict"] not in HEALTHY_VERDICTS
                )
                log(f"{host.name}: {as_sentence(left['cause'])} Remedy: {left['remedy']}")
        log("Check mode: nothing was changed, so nothing was verified.")
        unknown = session is not None and any(run.not_compared for run in session.hosts)
        return max(statuses.values(), default=0) or (NOT_JUDGED if unknown else HEALTHY)
    directory = report.create_directory(options.report)
    done = converge_hosts(hosts, replace(how_to_provision, folder=directory))
    shown = conclude(done.session, directory, options, [], Console(stderr=True))
    return done.status or shown
