"""Each fault of driver and cards, in a planted host that the probe itself reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpufleet.components.checks import CHECKS
from tests.faults import driver, gpu
from tests.faults.catalogue import Fault, verdicts
from tests.support.fault_proof import Checks, Prove
from tests.support.healthy_host import OF_SITES
from tests.support.planted_gpu_host import PLANTED, GpuHost

FAULTS = [*driver.FAULTS, *gpu.FAULTS]
# What the healthy host is judged by: checks of what is planted, and of packages and receipts.
OWN = {
    name
    for name, check in CHECKS.items()
    if set(check.reads) & set(PLANTED) and set(check.reads) <= {*PLANTED, "packages", "receipts"}
}


def planted(directory: Path) -> GpuHost:
    if os.geteuid() != 0:
        pytest.skip("the probe as root tries what other accounts may")
    directory.chmod(0o755)
    return GpuHost(directory / "host")


@pytest.fixture
def host(tmp_path: Path) -> GpuHost:
    return planted(tmp_path)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Checks:
    """The verdicts of the healthy host: each test plants the same one."""
    return planted(tmp_path_factory.mktemp("healthy")).checks()


def test_the_planted_host_is_healthy(before: Checks) -> None:
    found = {name: row for name, row in before.items() if name in OWN and name not in OF_SITES}
    assert len(found) > 15
    assert {name: row["cause"] for name, row in found.items() if row["verdict"] != "PASS"} == {}


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_planted_fault_is_caught_by_its_check(
    host: GpuHost, before: Checks, fault: Fault, prove: Prove
) -> None:
    assert not isinstance(fault.inject, str)
    fault.inject(host)
    assert prove(fault, before, host.checks())["silent"] == []


@pytest.mark.parametrize("fault", [driver.FAULTS[0], gpu.FAULTS[0]], ids=lambda fault: fault.number)
def test_after_the_repair_everything_is_as_before(
    host: GpuHost, before: Checks, fault: Fault
) -> None:
    assert not isinstance(fault.inject, str)
    fault.inject(host)
    assert verdicts(host.checks()) != verdicts(before)
    host.plant()
    assert verdicts(host.checks()) == verdicts(before)
