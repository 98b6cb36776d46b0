"""Run the gpufleet command line, or pytest, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.healthy_host import FIXTURES

ROOT = Path(__file__).parents[2]
SNAPSHOT, PLAN = str(FIXTURES / "snapshot.json"), str(FIXTURES / "plan.json")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    program = () if words[0] == "pytest" else ("gpufleet",)
    return subprocess.run(
        [sys.executable, "-m", *program, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
