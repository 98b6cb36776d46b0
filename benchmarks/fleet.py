# Apache-2.0, see LICENSE
"""The load of a fleet on the control machine; one lab host with many ports represents it.

In one run, each round after the other: the whole ``verify`` of 100 hosts, a bare ClusterShell run
of the same probe over the same ssh (nothing is planned, judged or written), and testinfra asking
one question per assertion, as many as there are checks. Then ``verify`` of 10, 100 and 1000 hosts.

The minimum of all rounds is reported, since other programs on the machine only add time. *Control
CPU* is that of the command and of all its ssh processes, in seconds. The hosts' own work is done by
the same processors as the control machine's, and counts in the wall-clock time: so the growth is
reported twice, with each host really probed, and with hosts that log in, take the probe, and answer
with a snapshot recorded before: a real fleet has processors of its own for the rest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table

from gpufleet.components.checks import CHECKS
from gpufleet.fleet.inventory import HostSelector, inventory_hosts
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.probing import probe_config
from gpufleet.fleet.transport.connection import command as ssh_command

from .common import BIN, ENVIRONMENT, ROOT, command, lab

RECORDED = "/usr/local/bin/recorded"
# The variable by which a host answers with what was recorded.
ANSWERS = f"ansible_python_interpreter={RECORDED}"
INVENTORY = ROOT / "inventory" / "many"
HERE = Path(__file__).parent
HOSTS, AT_ONCE, GROWTH = 100, 16, (10, 100, 1000)
# Asking every question by itself takes minutes for a hundred hosts, and each costs the same.
ASKED = 3
# The command and every process it has waited for; the memory is that of the largest. Started by
# a process of its own, since Linux counts the memory of whoever starts a command as the command's.
USED = """
import json, os, resource, subprocess, sys, time
begin = time.perf_counter()
status = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
wall_s = time.perf_counter() - begin
print(json.dumps([wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000]))
sys.exit(status)
"""
WORST_RATIO, LEAST_TIMES, MOST_S, MOST_MB = 1.5, 20, 90, 500


@dataclass(frozen=True)
class Cost:
    """The cost of a command."""

    wall_s: float
    cpu_s: float
    rss_mb: float

    def least(self, other: Cost) -> Cost:
        """The less of each."""
        return Cost(
            min(self.wall_s, other.wall_s),
            min(self.cpu_s, other.cpu_s),
            min(self.rss_mb, other.rss_mb),
        )


def cost(*words: str | Path, **environment: str) -> Cost:
    """Run a command; ends everything with its words when it fails."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", USED, *words],
        cwd=ROOT,
        check=False,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return Cost(*json.loads(done.stdout.splitlines()[-1]))


def verify(count: int, *words: str) -> Cost:
    """The whole verification of the first so many hosts, as a person starts it."""
    with tempfile.TemporaryDirectory() as reports:
        return cost(
            BIN / "python",
            "-m",
            "gpufleet",
            "verify",
            "-i",
            INVENTORY,
            "--limit",
            f"gpu_hosts[0:{count - 1}]",
            "--report",
            reports,
            *words,
        )


def record() -> None:
    """Have a Python in the lab host that does nothing but answer with what was seen there."""
    with tempfile.TemporaryDirectory() as reports:
        output = command(
            BIN / "python",
            "-m",
            "gpufleet",
            "verify",
            "-i",
            INVENTORY,
            "--limit",
            "gpu_hosts[0]",
            "--report",
            reports,
        )
        (snapshot,) = Path(reports).glob("latest/snapshots/*.json")
        words = f"cat >/dev/null; cat <<'END'\n{snapshot.read_text(encoding='utf-8')}\nEND\n"
    assert "all declared checks pass" in output, output
    lab(
        "exec",
        "lab1",
        "--",
        "python3",
        "-c",
        f"import os; open({RECORDED!r}, 'w').write({'#!/bin/sh' + chr(10) + words!r});"
        f" os.chmod({RECORDED!r}, 0o755)",
    )


def bare(count: int, at_once: int, *variables: str) -> Cost:
    """ClusterShell and the probe, and nothing else."""
    hosts = inventory_hosts(HostSelector([str(INVENTORY)], extra_vars=variables))[:count]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as reported:
        json.dump(
            {
                "at_once": at_once,
                "hosts": {host.name: ssh_command(host.connection) for host in hosts},
                "config": probe_config(hosts[0], ProbeOptions()),
            },
            reported,
        )
        reported.flush()
        return cost(BIN / "python", HERE / "bare.py", reported.name)


def per_assertion(count: int, shared: bool) -> Cost:
    """testinfra over ssh, each assertion a question of its own.

    As it comes, each with a connection of its own; `shared`: with a ControlPath, by one.
    """
    found = json.loads(command(INVENTORY / "hosts.py", "--list"))
    reached = found["gpu_hosts"]["vars"]
    ports = [
        found["_meta"]["hostvars"][name]["ansible_port"]
        for name in found["gpu_hosts"]["hosts"][:count]
    ]
    names = [f"ssh://{reached['ansible_user']}@{reached['ansible_host']}:{port}" for port in ports]
    options = [
        option.strip()
        for option in reached["ansible_ssh_common_args"].split("-o ")
        if shared or not option.startswith("ControlPath")
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as settings:
        settings.write("\n".join(["Host *", *options]))
        settings.flush()
        return cost(
            BIN / "pytest",
            "-q",
            HERE / "per_assertion.py",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            HERE,
            "--sudo",
            "--ssh-config",
            settings.name,
            "--ssh-identity-file",
            reached["ansible_ssh_private_key_file"],
            "--hosts",
            ",".join(names),
            QUESTIONS=str(len(CHECKS)),
        )


def side_by_side(rounds: int, console: Console) -> Table:
    """100 hosts by each contender."""
    contenders = {
        "gpufleet verify": lambda: verify(HOSTS, "--fanout", str(AT_ONCE)),
        "bare ClusterShell, the probe alone": lambda: bare(HOSTS, AT_ONCE),
        "testinfra, a question per assertion": lambda: per_assertion(ASKED, False),
        "the same over one shared connection": lambda: per_assertion(ASKED, True),
    }
    least: dict[str, Cost] = {}
    for number in range(rounds):
        for name, work in contenders.items():
            with console.status(f"round {number + 1}: {name}"):
                found = work()
                least[name] = found.least(least.get(name, found))
    ours, scale = least["gpufleet verify"], HOSTS / ASKED
    table = Table(title=f"{HOSTS} hosts, {AT_ONCE} at once, {len(CHECKS)} checks", min_width=60)
    for heading in ("contender", "wall, s", "control CPU, s", "wall, ratio", "CPU, ratio"):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    for (name, each), by in zip(least.items(), (1, 1, scale, scale), strict=True):
        table.add_row(
            name + (f" (of {ASKED} hosts, times {scale:.0f})" if by != 1 else ""),
            f"{each.wall_s * by:.1f}",
            f"{each.cpu_s * by:.1f}",
            f"{ours.wall_s / each.wall_s / by:.2f}",
            f"{each.cpu_s * by / ours.cpu_s:.1f}",
        )
    table.caption = (
        f"wall, ratio: verify's over it, at most {WORST_RATIO} for the bare run."
        f" CPU, ratio: its over verify's, at least {LEAST_TIMES} for testinfra."
    )
    return table


def growth(rounds: int, console: Console) -> Table:
    """Ten, a hundred, a thousand; each once more with recorded answers."""
    table = Table(title=f"verify, {ProbeOptions.fanout} at once", min_width=60)
    for heading in ("hosts", "answers", "wall, s", "ms per host", "control CPU, s", "memory, MB"):
        table.add_column(heading, justify="left" if heading == "answers" else "right")
    for count in GROWTH:
        for answers, words in (("probe", ()), ("recorded", ("-e", ANSWERS))):
            with console.status(f"verify of {count} hosts: {answers}"):
                found = verify(count, *words)
                for _ in range(rounds - 1):
                    found = found.least(verify(count, *words))
            table.add_row(
                str(count),
                answers,
                f"{found.wall_s:.1f}",
                f"{found.wall_s * 1000 / count:.0f}",
                f"{found.cpu_s:.1f}",
                f"{found.rss_mb:.0f}",
            )
    table.caption = f"A thousand: at most {MOST_S} s and {MOST_MB} MB."
    return table


def measure(rounds: int, console: Console) -> Group:
    """Both tables."""
    lab("many", "--hosts", str(max(GROWTH)))
    # The way to the hosts is read from the same lab.
    os.environ.update(ENVIRONMENT)
    record()
    return Group(side_by_side(rounds, console), growth(rounds, console))
