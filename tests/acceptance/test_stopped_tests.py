"""A run of tests that is stopped or killed in the middle leaves nothing of its lab behind."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lab import hosts, runs
from lab.command import podman
from lab.progress import Progress
from lab.settings import RUN, Lab
from tests.support.lab_fleet import ROOT, Fleet, instance
from tests.support.machine import deadline
from tests.support.moments import wait_until
from tests.support.processes import await_ended, started_with
from tests.support.stopped_midway import MIDWAY, NAME, REMOVED

pytestmark = [pytest.mark.lab, pytest.mark.slow]
# A minute for the teardown, and more for the machine that is busy.
LIMIT_S = deadline(120)
WORDS = ("test", "--hosts", "tests/support/stopped_midway.py")
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)


class Run:
    """The tests of `stopped_midway.py`; their processes have `mark` in their environment."""

    def __init__(self, name: str, removed: Path) -> None:
        self.removed = removed
        self.mark = f"THIS_TEST={secrets.token_hex(8)}"
        self.fleet = Fleet(instance(name))
        self.lab = Lab.from_environment(self.fleet.environment)
        variable, value = self.mark.split("=")
        others = {key: text for key, text in os.environ.items() if key != RUN}
        self.process = subprocess.Popen(
            # Tests that run in the background ignore Ctrl-C.
            ["env", "--default-signal=INT,HUP", ROOT / "gpufleet", *WORDS],
            cwd=ROOT,
            env={**others, variable: value, NAME: name, REMOVED: str(removed)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def await_midway(self) -> None:
        def is_midway() -> bool:
            assert self.process.poll() is None, self.process.communicate()[0].decode()
            return "waits" in self.fleet.on("lab1", f"cat {MIDWAY}", None)

        wait_until(is_midway, 300)
        assert self.left()

    def left(self) -> list[str]:
        """The parts of the lab that still exist."""
        listings = (("ps", "--all"), ("network", "ls"), ("images", "--all"))
        found = [
            podman(*words, "--quiet", "--filter", f"label={self.lab.label}") for words in listings
        ]
        places = (self.lab.directory, self.lab.sockets)
        return [*filter(None, found), *(str(place) for place in places if place.exists())]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run("stopped", tmp_path / "removed")
    yield made
    made.process.kill()
    made.process.communicate()
    hosts.down(made.lab, Progress())


@pytest.mark.parametrize("number", [pytest.param(each, id=each.name) for each in SIGNALS])
def test_a_stopped_run_leaves_nothing(run: Run, number: signal.Signals) -> None:
    run.await_midway()
    if number == signal.SIGINT:
        # Ctrl-C at a terminal.
        os.killpg(run.process.pid, number)
    else:
        run.process.send_signal(number)
    output = run.process.communicate(timeout=LIMIT_S)[0].decode()
    await_ended(run.mark, LIMIT_S)
    assert run.left() == [], output
    # By the test's own teardown: not only by who sweeps afterwards.
    assert run.removed.exists(), output
    expected = -number if number == signal.SIGKILL else 128 + number
    assert run.process.returncode == expected, output


def test_the_next_run_removes_what_a_run_left_that_was_killed_as_a_whole(run: Run) -> None:
    run.await_midway()
    # Its guard and its sweeper, too. A monitor of a container is the host's.
    while pids := [pid for pid, words in started_with(run.mark).items() if "conmon" not in words]:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    run.process.communicate(timeout=LIMIT_S)
    (left,) = [lab for lab in hosts.labs() if lab.instance == run.lab.instance]
    assert runs.has_ended(left.run)
    hosts.sweep(Lab("another", Path("/nowhere")), Progress())
    assert run.left() == []
