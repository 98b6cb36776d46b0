# Apache-2.0, see LICENSE
"""Provisioning against a script written by hand, on the same hosts, in one run.

Each round starts from fresh hosts for every contender, artifacts cached, and measures wall-clock
seconds from the command to its end. The script (``by_hand.sh``) makes the same copies and installs
for all hosts at once, with pip as most people would, and with uv as gpufleet does; it checks
nothing and cannot be killed and continued. Ratios are gpufleet's time over the script's.

Measured with CUDA's libraries whole, as on a server, and slim, as the lab has them otherwise: slim
ones unpack in a second, and what is left is mostly the work around the installers.

The hosts and the control machine share the processors of this machine: with one host, a processor
is left for what gpufleet does side by side on it, as on a server; with two hosts none is.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from .common import BIN, ENVIRONMENT, INVENTORY, ROOT, command, lab, timed

LOCK = INVENTORY / "stacks" / "tensorflow-2.13.1-py3.11.lock"

# How much of CUDA's libraries the artifacts contain.
LIBRARIES = ("whole", "slim")

# How many hosts at once.
FLEETS = {"one fresh host": ("--hosts", "lab1"), "two fresh hosts": ("--hosts", "lab1,lab2")}


def fresh_hosts(words: tuple[str, ...]) -> None:
    """Hosts on which nothing was done yet."""
    lab("down")
    lab("up", *words)


def playbook(check: str = "") -> None:
    """gpufleet's own provisioning."""
    output = command(BIN / "ansible-playbook", "playbooks/site.yml", "-i", INVENTORY)
    if check and check not in output:
        sys.exit(f"Expected {check!r} in:\n{output}")


def by_hand(installer: str) -> None:
    """The script, on every host at once."""
    inventory = json.loads(command(INVENTORY / "hosts.py", "--list"))
    artifacts = inventory["all"]["vars"]["gpu_artifacts_source"]
    running = []
    for variables in inventory["_meta"]["hostvars"].values():
        key = variables["ansible_ssh_private_key_file"]
        arguments = f"-i {key} {variables['ansible_ssh_common_args']}"
        host = f"{variables['ansible_user']}@{variables['ansible_host']}"
        words = [ROOT / "benchmarks" / "by_hand.sh", host, artifacts, installer, LOCK, BIN / "uv"]
        running.append(subprocess.Popen(words, env={**ENVIRONMENT, "SSH_ARGS": arguments}))
    statuses = [process.wait() for process in running]
    if any(statuses):
        sys.exit(f"by_hand.sh ended with {statuses}")


AGAIN = "gpufleet, second run"
CONTENDERS: dict[str, Callable[[], None]] = {
    "gpufleet": playbook,
    "by hand, with uv": lambda: by_hand("uv"),
    "by hand, with pip": lambda: by_hand("pip"),
}


def compare(words: tuple[str, ...], rounds: int, console: Console) -> dict[str, float]:
    """Run every contender on fresh hosts; returns the medians, in seconds."""
    seconds: dict[str, list[float]] = {}
    for number in range(rounds):
        for name, work in CONTENDERS.items():
            fresh_hosts(words)
            with console.status(f"{words[-1]}, round {number + 1}: {name}"):
                seconds.setdefault(name, []).append(timed(work))
                if work is playbook:
                    again = timed(lambda: playbook(check="changed=0"))
                    seconds.setdefault(AGAIN, []).append(again)
    return {name: statistics.median(values) for name, values in seconds.items()}


def measure(rounds: int, console: Console) -> Table:
    """Run every contender; the medians and ratios as a table."""
    table = Table(title="From fresh hosts to the lab's stack, artifacts cached", min_width=60)
    for heading in ("libraries", "hosts", "contender"):
        table.add_column(heading)
    for heading in ("median, s", "gpufleet / it"):
        table.add_column(heading, justify="right")
    for libraries in LIBRARIES:
        ENVIRONMENT["GPUFLEET_LAB_LIBRARIES"] = libraries
        lab("artifacts")
        for hosts, words in FLEETS.items():
            medians = compare(words, rounds, console)
            for name, median in medians.items():
                ratio = "" if name == AGAIN else f"{medians['gpufleet'] / median:.2f}"
                table.add_row(libraries, hosts, name, f"{median:.1f}", ratio)
    del ENVIRONMENT["GPUFLEET_LAB_LIBRARIES"]
    return table
