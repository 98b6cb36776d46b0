# Apache-2.0, see LICENSE
"""Shared code of the benchmarks: the lab instance, commands, wall-clock times."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv" / "bin"
INVENTORY = ROOT / "inventory" / "lab"
ENVIRONMENT = {
    # Python keeps what it has compiled, as it does for everybody who has not turned that off.
    **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    "GPUFLEET_LAB": "bench",
    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
}


def command(*words: str | Path) -> str:
    """Run a command; returns its output, ends the run with it when it fails."""
    done = subprocess.run(
        words, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{words[0]} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def lab(*words: str) -> str:
    """A verb of the lab, in the benchmarks' own instance."""
    return command(BIN / "python", "-m", "lab", *words)


def timed(work: Callable[[], object]) -> float:
    """Wall-clock seconds that some work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
