# Apache-2.0, see LICENSE
"""Probe one host by the probe and by Ansible's own facts, over the same ssh, in one run.

Wall-clock seconds of the command on the control machine, connecting included: the probe with its
facts alone, and whole (there are no stacks on a fresh host); ``gather_facts`` as a playbook would
gather them, which reads nothing of CUDA. The snapshot's own seconds are those on the host.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from gpufleet.fleet.inventory import HostSelector, inventory_hosts
from gpufleet.fleet.inventory.reader import connection_of
from gpufleet.fleet.transport.fanout import Target, probe_targets

from .common import BIN, INVENTORY, command, lab, timed


def probe(mode: str) -> Callable[[], None]:
    """One look by the probe."""

    def work() -> None:
        host = variables()
        config = {"host": "lab1", "mode": mode, "deadline_s": 60, "expect_gpus": 0}
        outcome = probe_targets([Target(connection_of("lab1", host), config)])["lab1"]
        if not outcome.snapshot:
            sys.exit(outcome.cause)

    return work


def variables() -> dict[str, Any]:
    """How lab1 is reached."""
    inventory = json.loads(command(INVENTORY / "hosts.py", "--list"))
    found: dict[str, Any] = inventory["_meta"]["hostvars"]["lab1"]
    return found


def facts() -> None:
    """Ansible's own facts."""
    command(BIN / "ansible", "lab1", "-i", INVENTORY, "--become", "-m", "ansible.builtin.setup")


CONTENDERS: dict[str, Callable[[], None]] = {
    "probe, facts": probe("facts"),
    "probe, whole": probe("full"),
    "Ansible's facts": facts,
}


def measure(rounds: int, console: Console) -> Table:
    """Run every contender; the medians as a table."""
    lab("up", "--hosts", "lab1")
    # Ansible is read in by its first question, and that is none of the probe's time.
    inventory_hosts(HostSelector(["localhost,"]))
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(max(3, rounds)):
        for name, work in CONTENDERS.items():
            seconds[name].append(timed(work))
    table = Table(title="One probe of one fresh host", min_width=60)
    table.add_column("contender")
    table.add_column("median, s", justify="right")
    for name, values in seconds.items():
        table.add_row(name, f"{statistics.median(values):.2f}")
    return table
