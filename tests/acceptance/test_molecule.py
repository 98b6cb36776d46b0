"""molecule's scenarios pass: check mode, converge, idempotence, verify."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.lab_fleet import ROOT

SCENARIOS = sorted(path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml"))
# What happens in them is also killed half-way, and compared, in test_killed_later.py; what is done
# to a driver, in test_driver_failures.py; to containers, in test_containers.py.
RARE = {"adopt", "containers", "driver", "prune", "remove", "switch", "upgrade"}
# Each of its steps builds the driver's modules: on each Debian, and only with the slow tests.
BRANCHES = "branches"


@pytest.mark.lab
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in RARE))
        for name in SCENARIOS
        if name != BRANCHES
    ],
)
def test_scenario(scenario: str) -> None:
    passes(scenario)


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("suite", ["bullseye", "bookworm", "trixie"])
def test_a_driver_goes_from_branch_to_branch_and_back(suite: str) -> None:
    passes(BRANCHES, DRIVER_SUITE=suite)


def passes(scenario: str, **settings: str) -> None:
    """Run a scenario to its end."""
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **settings}
    done = subprocess.run(
        ["molecule", "test", "--scenario-name", scenario],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "1 successful" in done.stdout + done.stderr
