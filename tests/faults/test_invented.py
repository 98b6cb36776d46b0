"""Invented faults are caught by checks that were not made for them, on one healthy lab host."""

from __future__ import annotations

import re

import pytest

from tests.acceptance.conftest import Fleet
from tests.acceptance.conftest import fleet as fleet  # noqa: PLC0414 (a fixture, found by its name)

from .catalogue import Fault, collateral
from .invented import FAULTS

pytestmark = [pytest.mark.lab, pytest.mark.slow]
UP = ("--hosts", "lab1")


def verdicts(fleet: Fleet) -> dict[str, str]:
    """{check: verdict} of lab1."""
    checks = fleet.verdicts(None)["lab1"]
    return {name: check["verdict"] for name, check in checks.items()}


@pytest.fixture(scope="module")
def healthy(fleet: Fleet) -> dict[str, str]:
    """The verdicts of a host that is as declared."""
    fleet.gpufleet("provision")
    found = verdicts(fleet)
    assert set(found.values()) == {"PASS", "NOT-DECLARED"}
    return found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_an_invented_fault_is_caught(
    fleet: Fleet, healthy: dict[str, str], fault: Fault
) -> None:
    assert isinstance(fault.inject, str)
    try:
        fleet.on("lab1", f"set -e; {fault.inject}")
        checks = fleet.verdicts(None)["lab1"]
    finally:
        fleet.on("lab1", f"set -e; {fault.repair}")
    told = checks[fault.check]
    assert told["verdict"] == fault.verdict
    assert re.search(fault.cause, told["cause"])
    assert re.search(fault.remedy, told["remedy"])
    after = {name: check["verdict"] for name, check in checks.items()}
    assert collateral(fault, healthy, after) == []
    assert verdicts(fleet) == healthy
