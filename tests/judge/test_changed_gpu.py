"""The documents of a real H100 in a virtual machine, in which one thing is changed."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.judge import judge
from tests.support.real_gpus import documents

CARD = "GPU 0 (0000:00:06.0)"


class Host:
    """The documents, and what of them the tests change."""

    def __init__(self) -> None:
        found = documents("h100-deep")
        self.plan, self.snapshot = found["plan"], found["snapshot"]
        sections = self.snapshot["sections"]
        (self.card,) = sections["smi"]["data"]["devices"]
        (self.run,) = sections["compute"]["data"]["runs"]
        (self.device,) = self.run["devices"]

    def check(self, name: str) -> Any:
        checks = judge.judge(self.plan, self.snapshot)["checks"]
        return next(check for check in checks if check["id"] == name)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.mark.parametrize(
    ("name", "verdict", "cause"),
    [
        ("NVIDIA H100 80GB HBM3", "FAIL", f"{CARD} uses 8 of 16 PCIe lanes"),
        # Clouds connect these by eight lanes, and their slots are not visible.
        ("Tesla T4", "NOT-DECLARED", f"{CARD} uses 8 of its 16 PCIe lanes"),
    ],
)
def test_a_module_on_a_board_has_all_its_lanes(
    host: Host, name: str, verdict: str, cause: str
) -> None:
    host.card["name"] = host.device["name"] = name
    host.device["link"]["width"] = host.card["pcie"]["width"] = 8
    host.device["copies"] = None
    found = host.check("gpu.pcie")
    assert (found["verdict"], cause in found["cause"]) == (verdict, True)


def test_the_link_to_a_superchip_s_cpu_is_judged_beside_a_pcie_link_under_load(host: Host) -> None:
    host.card["name"] = host.device["name"] = "NVIDIA GH200 480GB"
    host.card["elements"]["c2c_mode"] = "Disabled"
    found = host.check("gpu.pcie")
    assert found["verdict"] == "INCONCLUSIVE"
    assert "does not use NVLink-C2C, its link to the CPU" in found["cause"]


def slow(host: Host, clock_mhz: int, *reasons: str) -> None:
    """All samples of the load are at this clock, for these reasons."""
    for sample in host.run["sustained"][0]["samples"]:
        sample.update(clock_sm_mhz=clock_mhz, throttle=[*reasons], tflops=31.0)


def test_low_clocks_without_a_reason_are_not_healthy(host: Host) -> None:
    slow(host, 1200)
    found = host.check("gpu.sustained")
    assert found["verdict"] == "INCONCLUSIVE"
    assert "GPU 0 runs at 1200 of 1980 MHz under load" in found["cause"]
    assert "nvidia-smi -i 0 -rgc" in found["remedy"]


@pytest.mark.parametrize(
    ("clock_mhz", "reasons"), [(1200, ["sw-power-cap"]), (1200, ["application-clocks"]), (1500, [])]
)
def test_clocks_that_a_limit_explains_and_those_near_the_highest_are_healthy(
    host: Host, clock_mhz: int, reasons: list[str]
) -> None:
    slow(host, clock_mhz, *reasons)
    assert host.check("gpu.sustained")["verdict"] == "PASS"


def test_a_limit_that_comes_and_goes_explains_low_clocks(host: Host) -> None:
    slow(host, 1200)
    for sample in host.run["sustained"][0]["samples"][::5]:
        sample["throttle"] = ["sw-power-cap"]
    assert host.check("gpu.sustained")["verdict"] == "PASS"


def test_who_declares_a_speed_may_lock_the_clocks(host: Host) -> None:
    slow(host, 1200)
    host.plan["expect"].update(tflops=30.0, tflops_because="gpu_expect.tflops")
    assert host.check("gpu.sustained")["verdict"] == "PASS"
