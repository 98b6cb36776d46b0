"""`gpufleet manifest propose`: what most hosts of a group have, as YAML for their inventory.

Reads hosts, or snapshots that were saved. Writes to standard output, or one new file.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from gpufleet.components.base.machine import Manifest, manifest_of
from gpufleet.components.base.registry import shortened
from gpufleet.components.checks import Sections
from gpufleet.documents.clock import utc_now
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.verdict import FAILED, HEALTHY
from gpufleet.errors import ConfigurationError
from gpufleet.files import write_file
from gpufleet.fleet.inventory import inventory_hosts
from gpufleet.fleet.manifest import LEAST_HOSTS, as_yaml, propose
from gpufleet.fleet.probing import probe_hosts
from gpufleet.fleet.saved import read_snapshot, span
from gpufleet.fleet.transport.fanout import Outcome
from gpufleet.report import terminal

from .options import add_hosts, add_probe, probe_options, selector
from .parser import Parser
from .system_packages import require_ssh

IF_STOPPED = "Nothing was written."
# Where a report's directory has the snapshots of its hosts.
SNAPSHOTS = "snapshots"


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "manifest",
        (
            "manifest propose -i inventory/fleet --limit h100",
            "manifest propose --snapshot reports/latest --output h100.yml",
        ),
        usage="propose [options]",
        exit_status="Exit status: 0 proposed, 1 proposed without hosts that were not read, 4 usage"
        " or configuration.",
    )
    group = verb.add_argument_group("Action")
    group.add_argument(
        "act",
        choices=["propose"],
        metavar="propose",
        help="Propose what most of the hosts have as their manifest",
    )
    add_hosts(verb)
    group = add_probe(verb)
    group.add_argument(
        "--topology",
        type=Path,
        metavar="FILE",
        help="Probe through the gateways of this topology.conf of ClusterShell",
    )
    group = verb.add_argument_group("Saved snapshots, instead of a probe")
    group.add_argument(
        "--snapshot",
        action="append",
        default=[],
        metavar="PATH",
        help="Read this snapshot or bundle, or those of a directory or a report; may be repeated;"
        " with -i or --limit only those of the selected hosts",
    )
    group = verb.add_argument_group("Output")
    group.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="Write the proposal into this new file (default: standard output)",
    )
    return verb


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Propose a manifest; the exit status."""
    if options.output and os.path.lexists(options.output):
        raise ConfigurationError(
            "The file exists, and a proposal replaces nothing.",
            str(options.output),
            "Name a new file, and merge the two by hand.",
        )
    manifests, unread, taken = saved(options) if options.snapshot else probed(options)
    if unread:
        sys.stderr.write(f"gpufleet: not read: {shortened(unread, 8)}\n")
    if len(manifests) < LEAST_HOSTS:
        raise ConfigurationError(
            f"A majority needs {LEAST_HOSTS} hosts, and {len(manifests)} were read.",
            "",
            "Select more hosts that are alike, or write gpu_manifest by hand.",
        )
    text = as_yaml(propose(manifests), len(manifests), taken)
    if options.output:
        write(options.output, text)
        sys.stderr.write(f"Written into {options.output}: read it before you use it.\n")
    else:
        sys.stdout.write(text)
    return FAILED if unread else HEALTHY


def write(path: Path, text: str) -> None:
    """Write a file. Raises `ConfigurationError`."""
    try:
        write_file(path, text, 0o644)
    except OSError as error:
        raise ConfigurationError(
            f"It cannot be written: {error.strerror or error}.",
            str(path),
            "Name a file in a directory that you can write.",
        ) from error


def probed(options: argparse.Namespace) -> tuple[dict[str, Manifest], list[str], str]:
    """The manifests of the selected hosts, by host, the hosts that were not read, and the time."""
    how = probe_options(options, "facts", topology=options.topology)
    hosts = inventory_hosts(selector(options))
    require_ssh(hosts)
    found: dict[str, Manifest] = {}

    def arrived(outcome: Outcome, snapshot: Snapshot) -> None:
        add(found, snapshot)

    with terminal.progress(Console(stderr=True), "Probing", len(hosts)) as progress:
        probe_hosts(hosts, how, progress, arrived)
    names = [host.name for host in hosts]
    return (
        {name: found[name] for name in names if name in found},
        [name for name in names if name not in found],
        utc_now(),
    )


def saved(options: argparse.Namespace) -> tuple[dict[str, Manifest], list[str], str]:
    """The manifests of saved snapshots, by host, the hosts that were not read, and the times."""
    wanted = None
    if options.inventory or options.limit:
        wanted = {host.name for host in inventory_hosts(selector(options))}
    found: dict[str, Manifest] = {}
    unread, times = [], []
    for path in files(options.snapshot):
        document = read_snapshot(str(path))
        if wanted is not None and document.host not in wanted:
            continue
        if document.host in found:
            raise ConfigurationError(
                f"A second snapshot is of {document.host}.", str(path), "Leave one of them out."
            )
        if document.snapshot is None or not add(found, document.snapshot):
            unread.append(document.host)
        else:
            times.append(document.snapshot.get("finished"))
    unread += sorted((wanted or set()) - found.keys() - {*unread})
    return found, unread, span(times) or "an unknown time"


def add(found: dict[str, Manifest], snapshot: Snapshot) -> bool:
    """Add the manifest of a snapshot; False where the probe did not read its section."""
    data = Sections(snapshot, ("machine",)).read_elsewhere()
    if data.get("machine") is None:
        return False
    found[snapshot["host"]] = manifest_of(data)
    return True


def files(paths: list[str]) -> Iterator[Path]:
    """The files that are named, and those of directories. Raises `ConfigurationError`."""
    for path in map(Path, paths):
        if not path.is_dir():
            yield path
            continue
        directory = path / SNAPSHOTS if (path / SNAPSHOTS).is_dir() else path
        names = sorted(directory.glob("*.json"))
        if not names:
            raise ConfigurationError(
                "The directory has no snapshot.",
                str(directory),
                "Name a report's directory, or one of *.json files.",
            )
        yield from names
