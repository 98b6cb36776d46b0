"""Faults that are new in the second readings."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.judge import judge
from tests.support.healthy_host import Document, data, with_cards
from tests.support.host_parts import event

HEAT = "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_therm_slowdown"


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        ((2, 100.0), (5, 200.0), "(3 times)"),
        ((2, None), (5, None), "(3 times)"),
        ((2, 100.0), (2, 100.0), ""),
        # The oldest messages were overwritten meanwhile.
        ((5, 100.0), (1, 200.0), "Xid 48"),
        ((5, 100.0), (4, 100.0), ""),
    ],
)
def test_only_messages_since_the_first_reading_are_new(
    plan: Document, snapshot: Document, before: Any, after: Any, cause: str
) -> None:
    with_cards(plan, snapshot)
    for count, uptime_s in (after, before):
        event(snapshot, "xid", code=48, address="0000:00:00.0", count=count, uptime_s=uptime_s)
    events = data(snapshot, "kernel_log")["events"]
    data(snapshot, "kernel_log_after")["events"] = [events.pop(0)]
    found = {row["id"]: row for row in judge.judge(plan, snapshot)["checks"]}
    assert cause in found["kernel.after-load"]["cause"]
    assert found["kernel.after-load"]["verdict"] == ("FAIL" if cause else "PASS")


@pytest.mark.parametrize(
    ("name", "device", "found"),
    [
        ("NVIDIA H100 80GB HBM3", "233010DE", True),
        ("NVIDIA GeForce RTX 4090", "268410DE", False),
    ],
)
def test_a_card_for_displays_gives_up_lanes_and_slows_down_by_design(
    plan: Document, snapshot: Document, name: str, device: str, found: bool
) -> None:
    with_cards(plan, snapshot)
    for section, lanes, slowed in (("smi", 16, "0 us"), ("smi_after", 8, "8000000 us")):
        card = data(snapshot, section)["devices"][0]
        card["name"], card["pcie"]["width"] = name, lanes
        card["elements"] |= {
            "pci/pci_device_id": device,
            "product_architecture": "Hopper" if found else "Ada Lovelace",
            HEAT: slowed,
        }
    caught = {row["id"]: row for row in judge.judge(plan, snapshot)["checks"]}["gpu.after-load"]
    assert ("uses 8 PCIe lanes" in caught["cause"]) is found
    assert ("was slowed down by heat (hardware)" in caught["cause"]) is found


def test_counters_that_began_again_did_not_grow(plan: Document, snapshot: Document) -> None:
    with_cards(plan, snapshot)
    first, second = (data(snapshot, name) for name in ("smi", "smi_after"))
    first["nvlink"][0]["errors"], second["nvlink"][0]["errors"] = {"replay": 70}, {"replay": 3}
    first["devices"][0]["elements"]["pci/replay_counter"] = "65535"
    second["devices"][0]["elements"]["pci/replay_counter"] = "900"
    found = {row["id"]: row["verdict"] for row in judge.judge(plan, snapshot)["checks"]}
    assert found["gpu.after-load"] == "PASS"


@pytest.mark.parametrize(
    ("readings", "rate", "verdict"),
    [
        ((["idle", "hw-slowdown"], ["hw-slowdown"]), 20.5, "INCONCLUSIVE"),
        # A GPU that reports it at rest, and one whose clocks just fell.
        ((["idle", "hw-slowdown"], ["idle", "hw-slowdown"]), 20.5, "PASS"),
        ((["idle", "hw-slowdown"], ["hw-slowdown"]), 34.4, "PASS"),
        ((["idle", "hw-slowdown"], ["idle"]), 20.5, "PASS"),
        ((["idle"], ["hw-slowdown"]), 20.5, "PASS"),
    ],
)
def test_a_slowdown_in_both_readings_counts_on_a_slow_gpu(
    plan: Document, snapshot: Document, readings: Any, rate: float, verdict: str
) -> None:
    """Each reading was excused by itself, whatever the GPU reached."""
    with_cards(plan, snapshot)
    for section, reasons in zip(("smi", "smi_after"), readings, strict=True):
        data(snapshot, section)["devices"][0]["throttle"] = reasons
    for entry in data(snapshot, "compute")["runs"][0]["cublas"]:
        entry["tflops"] = rate
    found = {row["id"]: row for row in judge.judge(plan, snapshot)["checks"]}["gpu.after-load"]
    assert found["verdict"] == verdict
    if verdict != "PASS":
        assert "before and after the load, and multiplies float32 at 20.5" in found["cause"]
        assert "verify --deep" in found["remedy"]


def test_a_snapshot_without_its_times_counts_as_a_long_one(
    plan: Document, snapshot: Document
) -> None:
    with_cards(plan, snapshot)
    del snapshot["finished"]
    reading = data(snapshot, "smi_after")["devices"][0]["elements"]
    for replays, verdict in (("30000", "PASS"), ("50000", "INCONCLUSIVE")):
        reading["pci/replay_counter"] = replays
        found = {row["id"]: row["verdict"] for row in judge.judge(plan, snapshot)["checks"]}
        assert found["gpu.after-load"] == verdict
