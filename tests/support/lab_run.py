"""The run that the labs of these tests belong to: pytest's process.

A plugin of pytest. What a run leaves is removed by a process that outlives it (`sweeper.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import execnet
import pytest

from gpufleet.cli.verbs import VERBS
from lab import runs
from lab.command import environment
from lab.settings import RUN, cache_root

ROOT = Path(__file__).resolve().parents[2]


class LabRun:
    """Starts the sweeper, and gives interrupted workers the time to remove their hosts."""

    def __init__(self) -> None:
        self.workers: list[Any] = []
        # The labs of tests that run tests belong to this run, too.
        if RUN not in os.environ and os.geteuid() == 0 and shutil.which("podman"):
            os.environ[RUN] = runs.name_of(os.getpid())
            start_sweeper()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Note a worker of pytest-xdist."""
        self.workers.append(node)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Wait until the workers have ended. pytest-xdist interrupts and kills them within seconds."""
        deadline = time.monotonic() + VERBS["test"].grace_s
        for node in self.workers:
            node.shutdown()
        for node in self.workers:
            with suppress(execnet.RemoteError, execnet.TimeoutError, EOFError):
                node.channel.waitclose(max(0, deadline - time.monotonic()))


def start_sweeper() -> None:
    """Start the process that outlives this one, in a session and without the mark of its own run."""
    log = cache_root(os.environ) / "sweeper.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        subprocess.run(
            ["setsid", "--fork", sys.executable, "-m", "tests.support.sweeper"],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=True,
        )
