"""Failures of one card that come back in one boot, each of them cleared."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.judge import judge
from tests.support.healthy_host import Document, data, with_cards
from tests.support.host_parts import event

CARD = "0000:00:00.0"
REBOOT = "NVRM: Xid (PCI:0000:00:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS)"
RESET = "NVRM: Xid (PCI:0000:00:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (PF)"
WORSE = "NVRM: Xid (PCI:0000:00:00): 154, GPU recovery action changed from 0x1 (PF) to 0x2 (OS)"
LINK = "NVRM: Xid (PCI:0000:00:00): 74, NVLink: fatal error detected on link 4(0x0, 0x0, 0x10000)"


def result(plan: Document, snapshot: Document) -> dict[str, Any]:
    rows = {row["id"]: row for row in judge.judge(plan, snapshot)["checks"]}
    return rows["kernel.log"]


def found(plan: Document, snapshot: Document, *rows: tuple[int, str, int]) -> dict[str, Any]:
    with_cards(plan, snapshot)
    data(snapshot, "driver")["loaded"] = "580.159.04"
    for name in ("smi", "smi_after"):
        data(snapshot, name)["driver_version"] = "580.159.04"
        for card in data(snapshot, name)["devices"]:
            card["elements"]["gpu_recovery_action"] = "None"
    for code, text, count in rows:
        event(snapshot, "xid", code=code, address=CARD, text=text, count=count)
    return result(plan, snapshot)


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        # One incident: the lines of a lost card, those of all its links, an action that grew.
        ([(79, "NVRM: Xid: 79", 2), (154, REBOOT, 1)], "PASS"),
        ([(74, LINK, 18)], "PASS"),
        ([(154, RESET, 1), (154, WORSE, 1)], "PASS"),
        # Programs can make a reset due.
        ([(109, "NVRM: Xid: 109", 2), (154, RESET, 5)], "PASS"),
        # Its register says that nothing has to be done.
        ([(74, LINK.replace("0x0, 0x0, 0x10000", "0x1, 0x0, 0x0"), 30)], "PASS"),
        ([(79, "NVRM: Xid: 79", 2), (154, REBOOT, 2)], "INCONCLUSIVE"),
        ([(74, LINK, 10), (74, LINK.replace("0x10000", "0x20000"), 9)], "INCONCLUSIVE"),
    ],
)
def test_what_came_back_in_one_boot_is_not_healthy(
    plan: Document, snapshot: Document, rows: list[tuple[int, str, int]], verdict: str
) -> None:
    check = found(plan, snapshot, *rows)
    assert check["verdict"] == verdict
    if verdict != "PASS":
        assert f"{CARD} had the same failure again" in check["cause"]
        assert "field diagnostics" in check["remedy"]
        assert f"GPU {CARD} was reset" in check["remedy"]


def test_two_cards_with_one_incident_each_are_no_repetition(
    plan: Document, snapshot: Document
) -> None:
    event(snapshot, "xid", code=154, address="0000:01:00.0", text=REBOOT)
    assert found(plan, snapshot, (154, REBOOT, 1))["verdict"] == "PASS"


def test_incidents_that_ended_by_the_drivers_word_count_too(
    plan: Document, snapshot: Document
) -> None:
    over = REBOOT.replace("0x0 (None) to 0x2 (OS)", "0x2 (OS) to 0x0 (None)")
    event(snapshot, "xid", code=154, address=CARD, text=over, count=2, uptime_s=9000.0)
    assert found(plan, snapshot, (154, REBOOT, 2))["verdict"] == "INCONCLUSIVE"


def test_what_still_stands_is_said_once(plan: Document, snapshot: Document) -> None:
    found(plan, snapshot, (154, REBOOT, 2))
    data(snapshot, "compute")["runs"] = []
    check = result(plan, snapshot)
    assert "asks for a recovery action" in check["cause"]
    assert "same failure again" not in check["cause"]
