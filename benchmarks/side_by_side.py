# Apache-2.0, see LICENSE
"""The cost of a host without changes: five stacks of inventory/side-by-side against one.

Both hosts are provisioned first. Then each round runs the same commands on both, which change
nothing, and measures wall-clock seconds. Ratios are five stacks over one.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial

from rich.console import Console
from rich.table import Table

from .common import BIN, INVENTORY, ROOT, command, lab, timed

FIVE = ROOT / "inventory" / "side-by-side"
HOSTS = {"one stack": (INVENTORY, "lab1"), "five stacks": (FIVE, "lab2")}
COMMANDS = {
    "ansible-playbook site.yml": (BIN / "ansible-playbook", "playbooks/site.yml"),
    "verify": (BIN / "python", "-m", "gpufleet", "verify"),
    "gpufleet provision": (ROOT / "gpufleet", "provision"),
    "gpufleet provision --force": (ROOT / "gpufleet", "provision", "--force"),
}


def run(what: str, whose: str) -> None:
    """One command on one host, which must find nothing to change."""
    inventory, host = HOSTS[whose]
    output = command(*COMMANDS[what], "-i", inventory, "--limit", host)
    ran = "ansible" in what or "--force" in what
    if ran and "changed=0 " not in output:
        sys.exit(f"Expected 'changed=0' in:\n{output}")
    if not ran and "PLAY" in output:
        sys.exit(f"Expected that nothing is run:\n{output}")


def measure(rounds: int, console: Console) -> Table:
    """Run each command on each host; the medians and ratios as a table."""
    lab("down")
    lab("artifacts", "--all")
    lab("up", "--python", "3.6")
    for whose, (inventory, host) in HOSTS.items():
        with console.status(f"provisioning: {whose}"):
            command(*COMMANDS["gpufleet provision"], "-i", inventory, "--limit", host)
    table = Table(title="A host that is right", min_width=60)
    for heading in ("command", "one stack, s", "five stacks, s", "ratio"):
        table.add_column(heading, justify="left" if heading == "command" else "right")
    for what in COMMANDS:
        seconds: dict[str, list[float]] = {whose: [] for whose in HOSTS}
        with console.status(f"measuring: {what}"):
            for _ in range(rounds):
                for whose, values in seconds.items():
                    values.append(timed(partial(run, what, whose)))
        one, five = (statistics.median(values) for values in seconds.values())
        table.add_row(what, f"{one:.1f}", f"{five:.1f}", f"{five / one:.2f}")
    return table
