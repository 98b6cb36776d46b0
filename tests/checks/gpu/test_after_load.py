"""What is new in the second readings."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.judge import judge
from tests.support.healthy_host import Document, data, with_cards
from tests.support.host_parts import event


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
