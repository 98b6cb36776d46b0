# Apache-2.0, see LICENSE
"""The time and size of a history of 1000 hosts, 60 checks and 400 nights.

Each night is recorded as the nightly does it, with eight GPUs per host: verdicts, some of them with
causes that are others each night, and measured values. Then each question is asked three times,
with the file opened again; medians of wall-clock and processor seconds are reported. Whole: the
command with Python's start.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gpufleet.catalog import yardstick
from gpufleet.cli.history import document, parser
from gpufleet.fleet.session import HostRun, Session
from gpufleet.watch import offenders
from gpufleet.watch.history import History

from .common import BIN, command, timed

HOSTS, CHECKS, NIGHTS, GPUS = 1000, 60, 400, 8
STACKS = ("toolkit.12.3", "stack.tensorflow-2.17.1", "stack.tensorflow-2.18.1")
FIRST = datetime(2025, 10, 1, 3, tzinfo=UTC)
# How many checks every host skips, and how often a check fails or is repaired in a night.
SKIPPED, FAILS, REPAIRED = 18, 0.0005, 0.3


class Fleet:
    """Hosts that fail now and then, are not reached now and then, and are noisily fast."""

    def __init__(self, hosts: int = HOSTS, checks: int = CHECKS) -> None:
        self.chance = random.Random(6)
        self.hosts = [f"gpu{number:04}.example.org" for number in range(hosts)]
        self.checks = [f"part{number % 12}.check-{number}" for number in range(checks)]
        self.broken: set[tuple[str, str]] = set()
        # The error counters; one in ten grows, in one night of five.
        self.errors: dict[str, int] = {}
        self.restless: set[str] = set()

    def night(self, number: int) -> Session:
        """One night's session."""
        begin = FIRST + timedelta(days=number)
        stamps = [
            (begin + timedelta(minutes=late)).strftime("%Y-%m-%dT%H:%M:%SZ") for late in (0, 2)
        ]
        return Session([self.host(name) for name in self.hosts], *stamps)

    def host(self, name: str) -> HostRun:
        """One host's night; the plan carries what was measured to `measure`."""
        if self.chance.random() < 0.002:
            check = entry("host.reachable", "UNREACHABLE", "No route to host", "see the cable")
            return HostRun(name, None, {}, {"verdict": "UNREACHABLE", "checks": [check]})
        checks = [
            self.check(name, check, number < SKIPPED) for number, check in enumerate(self.checks)
        ]
        verdict = "FAIL" if any(check["verdict"] == "FAIL" for check in checks) else "PASS"
        return HostRun(name, None, {"host": name}, {"verdict": verdict, "checks": checks})

    def check(self, host: str, check: str, skipped: bool) -> dict[str, str]:
        """One check: what is broken stays so for some nights."""
        if skipped:
            return entry(check, "NOT-DECLARED", "gpu_expect: {count: 0}")
        here = (host, check)
        if here in self.broken:
            if self.chance.random() < REPAIRED:
                self.broken.remove(here)
        elif self.chance.random() < FAILS:
            self.broken.add(here)
        if here not in self.broken:
            return entry(check, "PASS")
        return entry(
            check,
            "FAIL",
            f"GPU {self.chance.randrange(GPUS)} is at"
            f" {self.chance.uniform(30, 60):.2f} of something",
            "./gpufleet provision",
        )

    def measure(self, _: object, plan: dict[str, str]) -> dict[str, float | str]:
        """The measures of a night on a host."""
        found: dict[str, float | str] = {}
        for gpu in range(GPUS if plan else 0):
            name = f"gpu.GPU-{plan['host'].partition('.')[0]}-{gpu}"
            found[f"{name}.temperature_c"] = self.chance.randrange(30, 60)
            found[f"{name}.ecc_uncorrected"] = 0
            for counter in yardstick.counters():
                found[f"{name}.{counter.name}.errors"] = self.count(f"{name}.{counter.name}")
            for stack in STACKS:
                found[f"{name}.{stack}.tflops"] = round(self.chance.gauss(50, 1), 2)
                found[f"{name}.{stack}.first_op_s"] = round(self.chance.uniform(0.3, 0.6), 3)
                found[f"{name}.{stack}.wrong"] = 0
        if plan:
            found |= {f"part{number}.version": f"1.{number}" for number in range(14)}
            host = plan["host"].partition(".")[0]
            found["gpus"] = "; ".join(f"0:{gpu} GPU-{host}-{gpu} NVIDIA L4" for gpu in range(GPUS))
            found["skus"] = "; ".join(f"GPU-{host}-{gpu} 58 SMs, 23034 MiB" for gpu in range(GPUS))
            found["driver.version"] = "550.54.15"
        return found

    def count(self, counter: str) -> int:
        """A counter tonight."""
        if counter not in self.errors:
            self.errors[counter] = 0
            if self.chance.random() < 0.1:
                self.restless.add(counter)
        if counter in self.restless and self.chance.random() < 0.2:
            self.errors[counter] += self.chance.randrange(1, 4)
        return self.errors[counter]


def entry(check: str, verdict: str, cause: str = "", remedy: str = "") -> dict[str, str]:
    """A check's verdict, as `verify.judge` makes it."""
    return {
        "id": check,
        "verdict": verdict,
        "statement": "It holds.",
        "cause": cause,
        "remedy": remedy,
        "evidence": "",
    }


def asked(path: Path, *words: str) -> Callable[[], object]:
    """The query of `./gpufleet history`, as a function of this process."""

    def work() -> None:
        with History(path) as history:
            document(history, parser().parse([*words, "--last", str(NIGHTS)])[0])

    return work


def queried(path: Path, question: Callable[[History], object]) -> Callable[[], object]:
    """A query of the nightly run, with the file opened again."""

    def work() -> None:
        with History(path) as history:
            question(history)

    return work


def memory_mb(path: Path) -> float:
    """The peak memory of a process that asks what changed tonight."""
    program = (
        "import resource, sys; from pathlib import Path;"
        " from gpufleet.watch.history import History;"
        " History(Path(sys.argv[1])).changes();"
        " print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    words = [BIN / "python", "-c", program, path]
    return int(subprocess.run(words, capture_output=True, check=True, text=True).stdout) / 1000


def both(work: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and processor seconds of some work, with those of commands that it ran."""
    before = os.times()
    wall = timed(work)
    return wall, sum(os.times()[:4]) - sum(before[:4])


def measure(rounds: int, console: Console) -> Table:
    """Load it, ask, and say how large it is."""
    fleet = Fleet()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "history.sqlite"
        loads: list[tuple[float, float]] = []
        with History(path) as history:
            for number in range(NIGHTS):
                session = fleet.night(number)
                with console.status(f"night {number + 1} of {NIGHTS}"):
                    loads.append(both(lambda: history.record(session, measure=fleet.measure)))  # noqa: B023
        host, check = fleet.hosts[500], fleet.checks[30]
        questions = {
            f"--host, {NIGHTS} nights": asked(path, "--host", host),
            f"--check, {NIGHTS} nights": asked(path, "--check", check),
            f"--measure of one host, {NIGHTS} nights": asked(
                path, "--host", host, "--measure", "*.tflops"
            ),
            f"all hosts, {NIGHTS} nights": asked(path),
            "what changed tonight, cards compared": queried(
                path, lambda history: history.changes()
            ),
            "--offenders, all nights": queried(path, offenders.document),
            "the charts of the report, 30 nights": queried(path, lambda history: history.past()),
        }
        words = (BIN / "python", "-m", "gpufleet", "history", "--database", path, "--host", host)
        questions["./gpufleet history --host, whole"] = lambda: command(*words)
        seconds = {
            name: [both(work) for _ in range(max(3, rounds))] for name, work in questions.items()
        }
        peak_mb = memory_mb(path)
        size, rows = path.stat().st_size, HOSTS * CHECKS * NIGHTS
    table = Table(title=f"{HOSTS} hosts x {CHECKS} checks x {NIGHTS} nights", min_width=60)
    for heading in ("what", "seconds", "of processor"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for name, values in {"record one night": loads, **seconds}.items():
        table.add_row(
            name, *(f"{statistics.median(column):.3f}" for column in zip(*values, strict=True))
        )
    table.add_row("memory of what changed tonight", f"{peak_mb:.0f} MB", "at its peak")
    table.add_row("size", f"{size / 1e6:.0f} MB", f"{size / rows:.0f} bytes per verdict in total")
    return table
