# Apache-2.0, see LICENSE
"""Measure provisioning against a script written by hand, on the same hosts, in one run.

    ./gpufleet bench                 two lab hosts of an instance of their own
    ./gpufleet bench --rounds 3      the median of three rounds

Each round starts from fresh hosts for every contender, artifacts cached, and measures wall-clock
seconds from the command to its end. The script (``by_hand.sh``) makes the same copies and installs
for both hosts at once, with pip as most people would, and with uv as gpufleet does; it checks
nothing and cannot be killed and continued. Ratios are gpufleet's time over the script's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv" / "bin"
INVENTORY = ROOT / "inventory" / "lab"
LOCK = INVENTORY / "stacks" / "tensorflow-2.13.1-py3.11.lock"
ENVIRONMENT = {
    **os.environ,
    "GPUFLEET_LAB": "bench",
    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    "PYTHONPATH": str(ROOT),
}


def command(*words: str | Path) -> str:
    """Run a command; returns its output, raises with it when it fails."""
    done = subprocess.run(
        words, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{words[0]} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def lab(*words: str) -> str:
    """A verb of the lab, in this benchmark's own instance."""
    return command(BIN / "python", "-m", "lab", *words)


def fresh_hosts() -> list[dict[str, Any]]:
    """Two hosts on which nothing was done yet."""
    lab("down")
    lab("up")
    hosts: list[dict[str, Any]] = json.loads(lab("list", "--json"))
    return hosts


def playbook(check: str = "") -> None:
    """gpufleet's own provisioning."""
    said = command(BIN / "ansible-playbook", "playbooks/site.yml", "-i", INVENTORY)
    if check and check not in said:
        sys.exit(f"Expected {check!r} in:\n{said}")


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


CONTENDERS: dict[str, Callable[[], None]] = {
    "gpufleet": playbook,
    "by hand, with uv": lambda: by_hand("uv"),
    "by hand, with pip": lambda: by_hand("pip"),
}


def timed(work: Callable[[], None]) -> float:
    """Wall-clock seconds that some work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(prog="gpufleet bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    console = Console()
    lab("artifacts")
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    again: list[float] = []
    try:
        for number in range(options.rounds):
            for name, work in CONTENDERS.items():
                fresh_hosts()
                with console.status(f"round {number + 1}: {name}"):
                    seconds[name].append(timed(work))
                    if work is playbook:
                        again.append(timed(lambda: playbook(check="changed=0")))
    finally:
        lab("down")
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    table = Table(title="Two fresh hosts to the lab's stack, artifacts cached", min_width=60)
    for heading in ("contender", "median, s", "gpufleet / it"):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    for name, median in medians.items():
        table.add_row(name, f"{median:.1f}", f"{medians['gpufleet'] / median:.2f}")
    table.add_row("gpufleet, second run", f"{statistics.median(again):.1f}", "")
    console.print(table)


if __name__ == "__main__":
    main()
