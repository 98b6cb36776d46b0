"""Each fault of driver and cards, in a planted host that the probe itself reads."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from verify.checks import CHECKS

from . import driver, gpu
from .catalogue import Fault, collateral
from .gpu_host import PLANTED, GpuHost

FAULTS = [*driver.FAULTS, *gpu.FAULTS]
# What the healthy host is judged by: checks of what is planted, and of packages and receipts.
OWN = {name for name, check in CHECKS.items()
       if set(check.reads) & set(PLANTED)
       and set(check.reads) <= {*PLANTED, "packages", "receipts"}}


@pytest.fixture
def host(tmp_path: Path) -> GpuHost:
    if os.geteuid() != 0:
        pytest.skip("the probe as root tries what other accounts may")
    tmp_path.chmod(0o755)
    return GpuHost(tmp_path / "host")


def verdicts(host: GpuHost) -> dict[str, str]:
    return {name: row["verdict"] for name, row in host.checks().items()}


def test_the_planted_host_is_healthy(host: GpuHost) -> None:
    found = {name: row for name, row in host.checks().items() if name in OWN}
    assert len(found) > 15
    assert {name: row["cause"] for name, row in found.items() if row["verdict"] != "PASS"} == {}


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_planted_fault_is_caught_by_its_check(host: GpuHost, fault: Fault) -> None:
    before = verdicts(host)
    assert not isinstance(fault.inject, str)
    fault.inject(host)
    after = host.checks()
    said = after[fault.check]
    assert said["verdict"] == fault.verdict, said
    assert re.search(fault.cause, said["cause"] or said["evidence"], re.DOTALL)
    assert re.search(fault.remedy, said["remedy"])
    found = {name: row["verdict"] for name, row in after.items()}
    assert collateral(fault, before, found) == []
    # Nor does the catalogue name a check that says nothing of it, but for what is not declared.
    silent = {name for name in fault.also if found[name] in {before[name], "PASS"}}
    assert {name for name in silent if found[name] != "NOT-DECLARED"} == set()


@pytest.mark.parametrize("fault", [driver.FAULTS[0], gpu.FAULTS[0]], ids=lambda fault: fault.number)
def test_after_the_repair_everything_is_as_before(host: GpuHost, fault: Fault) -> None:
    before = verdicts(host)
    assert not isinstance(fault.inject, str)
    fault.inject(host)
    assert verdicts(host) != before
    host.plant()
    assert verdicts(host) == before
