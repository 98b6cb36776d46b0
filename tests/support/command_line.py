"""Run the gpufleet command line, or pytest, in a process: in a warm one, or from its start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.healthy_host import FIXTURES
from tests.support.warm_start import run_warm

ROOT = Path(__file__).parents[2]
SNAPSHOT, PLAN = str(FIXTURES / "snapshot.json"), str(FIXTURES / "plan.json")


def run_process(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a verb in a new interpreter."""
    return subprocess.run(
        [sys.executable, "-m", "gpufleet", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run(*words: str) -> subprocess.CompletedProcess[str]:
    program = () if words[0] == "pytest" else ("gpufleet",)
    return run_warm("-m", *program, *words)
