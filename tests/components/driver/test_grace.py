"""IMEX of a driver that somebody else installed."""

from __future__ import annotations

import pytest

from gpufleet.judge import judge
from tests.components.faults.grace import with_tray
from tests.support.healthy_host import Document, data


@pytest.mark.parametrize(
    ("version", "verdict"), [("535.261.03-1", "PASS"), ("535.216.03-1", "FAIL")]
)
def test_imex_has_the_version_of_a_preinstalled_driver(
    plan: Document, snapshot: Document, version: str, verdict: str
) -> None:
    with_tray(plan, snapshot)
    plan["driver"].update(managed=False, source="preinstalled")
    data(snapshot, "packages")["driver"].append(
        {"name": "nvidia-imex", "version": version, "status": "installed", "held": False}
    )
    found = {each["id"]: each for each in judge.judge(plan, snapshot)["checks"]}
    assert found["driver.imex"]["verdict"] == verdict
    if verdict == "FAIL":
        assert "nvidia-imex is 535.216.03-1, the driver is" in found["driver.imex"]["cause"]
        assert "of the driver version, 535.261.03" in found["driver.imex"]["remedy"]
