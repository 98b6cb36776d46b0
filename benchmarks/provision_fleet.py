# Apache-2.0, see LICENSE
"""The cost of `provision` on a fleet without changes, beside bare ClusterShell and a forced run.

On the stand-in for a fleet of 100 hosts (see ``fleet``), in one run, each round after the other: a
bare ClusterShell run of the same probe over the same ssh (nothing is planned, judged or written),
``verify``, and ``provision``, which finds that no host differs and runs nothing. In these three the
hosts log in, take the probe and answer with a recorded snapshot, since their own work is not the
control machine's. Then ``provision --force``, once, which runs the playbook on each host and probes
it. The minimum of all rounds is reported. Ansible's modules run in the one lab host, on the same
processors: in a real fleet each host has its own, and a forced run is less slow than here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from .common import BIN, ENVIRONMENT, lab
from .fleet import ANSWERS, AT_ONCE, HOSTS, INVENTORY, Cost, bare, cost, record

BARE, FORCED = "bare ClusterShell, the probe alone", "provision --force"
MOST_RATIO = 1.1
# One host answers for all of them: it may take long to let the last one in.
PATIENT = {"ANSIBLE_TIMEOUT": "60"}


def once(*words: str) -> Cost:
    """A command, as a person starts it."""
    with tempfile.TemporaryDirectory() as reports:
        return cost(
            BIN / "python",
            "-m",
            "gpufleet",
            *words,
            "-i",
            INVENTORY,
            "--limit",
            f"gpu_hosts[0:{HOSTS - 1}]",
            "--fanout",
            str(AT_ONCE),
            "--report",
            reports,
            **PATIENT,
        )


CONTENDERS: dict[str, Callable[[], Cost]] = {
    BARE: lambda: bare(HOSTS, AT_ONCE, ANSWERS),
    "verify": lambda: once("verify", "-e", ANSWERS),
    "provision, no host differs": lambda: once("provision", "-e", ANSWERS),
}


def measure(rounds: int, console: Console) -> Table:
    """Run each; the least of the rounds as a table."""
    lab("many", "--hosts", str(HOSTS))
    # The way to the hosts is read from the same lab.
    os.environ.update(ENVIRONMENT, **PATIENT)
    record()
    least: dict[str, Cost] = {}
    for number in range(rounds):
        for name, work in CONTENDERS.items():
            with console.status(f"round {number + 1}: {name}"):
                found = work()
                least[name] = found.least(least.get(name, found))
    with console.status(FORCED):
        least[FORCED] = once("provision", "--force")
    known = least[BARE]
    table = Table(title=f"{HOSTS} hosts that are right, {AT_ONCE} at once", min_width=60)
    for heading in ("command", "wall, s", "control CPU, s", "wall, ratio", "CPU, ratio"):
        table.add_column(heading, justify="left" if heading == "command" else "right")
    for name, each in least.items():
        table.add_row(
            name,
            f"{each.wall_s:.1f}",
            f"{each.cpu_s:.1f}",
            f"{each.wall_s / known.wall_s:.2f}",
            f"{each.cpu_s / known.cpu_s:.2f}",
        )
    table.caption = f"Ratios are to the bare run: at most {MOST_RATIO} where no host differs."
    return table
