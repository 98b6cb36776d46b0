"""Invented faults are caught by checks that were not made for them, on one healthy lab host."""

from __future__ import annotations

import pytest

from tests.faults.catalogue import Fault, verdicts
from tests.faults.invented import FAULTS
from tests.support.fault_proof import Checks, Prove
from tests.support.lab_fleet import Fleet

pytestmark = [pytest.mark.lab, pytest.mark.slow]
UP = ("--hosts", "lab1")


@pytest.fixture(scope="module")
def healthy(fleet: Fleet) -> Checks:
    """The checks of a host that is as declared."""
    fleet.gpufleet("provision")
    checks = fleet.verdicts(0)["lab1"]
    assert set(verdicts(checks).values()) == {"PASS", "NOT-DECLARED"}
    return checks


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_an_invented_fault_is_caught(
    fleet: Fleet, healthy: Checks, fault: Fault, prove: Prove
) -> None:
    assert isinstance(fault.inject, str)
    try:
        fleet.on("lab1", f"set -e; {fault.inject}")
        checks = fleet.verdicts(None)["lab1"]
    finally:
        fleet.on("lab1", f"set -e; {fault.repair}")
    prove(fault, healthy, checks)
    assert verdicts(fleet.verdicts(None)["lab1"]) == verdicts(healthy)
