"""Each fault of driver and cards, in a planted host that the probe itself reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpufleet.checks import CHECKS
from tests.faults import driver, gpu
from tests.faults.catalogue import Fault, verdicts
from tests.support.fault_proof import Prove
from tests.support.healthy_host import OF_SITES
from tests.support.planted_gpu_host import PLANTED, GpuHost

FAULTS = [*driver.FAULTS, *gpu.FAULTS]
# What the healthy host is judged by: checks of what is planted, and of packages and receipts.
OWN = {
    name
    for name, check in CHECKS.items()
    if set(check.reads) & set(PLANTED) and set(check.reads) <= {*PLANTED, "packages", "receipts"}
}


@pytest.fixture
def host(tmp_path: Path) -> GpuHost:
    if os.geteuid() != 0:
        pytest.skip("the probe as root tries what other accounts may")
    tmp_path.chmod(0o755)
    return GpuHost(tmp_path / "host")


def test_the_planted_host_is_healthy(host: GpuHost) -> None:
    found = {
        name: row for name, row in host.checks().items() if name in OWN and name not in OF_SITES
    }
    assert len(found) > 15
    assert {name: row["cause"] for name, row in found.items() if row["verdict"] != "PASS"} == {}


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_planted_fault_is_caught_by_its_check(host: GpuHost, fault: Fault, prove: Prove) -> None:
    before = host.checks()
    assert not isinstance(fault.inject, str)
    fault.inject(host)
    assert prove(fault, before, host.checks())["silent"] == []


@pytest.mark.parametrize("fault", [driver.FAULTS[0], gpu.FAULTS[0]], ids=lambda fault: fault.number)
def test_after_the_repair_everything_is_as_before(host: GpuHost, fault: Fault) -> None:
    before = verdicts(host.checks())
    assert not isinstance(fault.inject, str)
    fault.inject(host)
    assert verdicts(host.checks()) != before
    host.plant()
    assert verdicts(host.checks()) == before
