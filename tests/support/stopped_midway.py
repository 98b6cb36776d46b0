"""A test that does not end. `tests/acceptance/test_stopped_tests.py` runs and stops it; its name
keeps it out of every other run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab_fleet import Fleet, fresh, lab

pytestmark = pytest.mark.lab
# Variables: the name of its lab, and the file that is written once the lab is removed.
NAME, REMOVED = "STOPPED_LAB", "STOPPED_REMOVED"
# The file on its host once it waits.
MIDWAY = "/run/midway"


@pytest.fixture(scope="module")
def host() -> Iterator[Fleet]:
    with fresh(os.environ[NAME]) as made:
        lab(made, "up", "--hosts", "lab1")
        yield made
        # As on a busy machine: pytest-xdist interrupts a worker that needs more than five seconds.
        subprocess.run(["sleep", "6"], check=True)
    Path(os.environ[REMOVED]).touch()


def test_that_does_not_end(host: Fleet) -> None:
    host.on("lab1", f"echo waits >{MIDWAY}; sleep 600")
