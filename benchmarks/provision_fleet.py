# Apache-2.0, see LICENSE
"""The cost of `provision` beyond `verify` on a fleet without changes, beside a forced run.

On the stand-in for a fleet of 100 hosts (see ``fleet``), in one run, each round after the other:
``verify``, ``provision``, which finds that no host differs and runs nothing, and ``provision
--force``, which runs the playbook on each host and probes it then. The minimum of all rounds is
reported. Ansible's modules run in the one lab host, on the same processors: in a real fleet each
host has its own, and a forced run is less slow than here.
"""

from __future__ import annotations

import os
import tempfile

from rich.console import Console
from rich.table import Table

from .common import BIN, ENVIRONMENT, lab
from .fleet import AT_ONCE, HOSTS, INVENTORY, Cost, cost

CONTENDERS = {
    "verify": ("verify",),
    "provision, no host differs": ("fleet", "provision"),
    "provision --force": ("fleet", "provision", "--force"),
}
MOST_BEYOND_S = 5


def once(*words: str) -> Cost:
    """One of them, as a person starts it."""
    with tempfile.TemporaryDirectory() as reports:
        # One host answers for all of them: it may take long to let the last one in.
        return cost(BIN / "python", "-m", *words, "-i", INVENTORY, "--limit",
                    f"gpu_hosts[0:{HOSTS - 1}]", "--fanout", str(AT_ONCE), "--report", reports,
                    ANSIBLE_TIMEOUT="60")


def measure(rounds: int, console: Console) -> Table:
    """Run each; the least of the rounds as a table."""
    lab("many", "--hosts", str(HOSTS))
    # The way to the hosts is read from the same lab.
    os.environ.update(ENVIRONMENT)
    least: dict[str, Cost] = {}
    for number in range(rounds):
        for name, words in CONTENDERS.items():
            with console.status(f"round {number + 1}: {name}"):
                found = once(*words)
                least[name] = found.least(least.get(name, found))
    seconds = least["verify"].wall_s
    table = Table(title=f"{HOSTS} hosts that are right, {AT_ONCE} at once", min_width=60)
    for heading in ("command", "wall, s", "beyond verify, s", "ratio", "control CPU, s"):
        table.add_column(heading, justify="left" if heading == "command" else "right")
    for name, each in least.items():
        table.add_row(name, f"{each.wall_s:.1f}", f"{each.wall_s - seconds:.1f}",
                      f"{each.wall_s / seconds:.1f}", f"{each.cpu_s:.1f}")
    table.caption = f"beyond verify: at most {MOST_BEYOND_S} s where no host differs."
    return table
