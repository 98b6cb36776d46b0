"""Faults: the finding that a check makes of each, and the causes that forbid an adoption."""

from __future__ import annotations

from typing import cast

import pytest

from gpufleet.components.base.fault import Fault, causes, shown
from gpufleet.components.base.registry import Evidence, Finding
from gpufleet.components.base.remedies import Component
from gpufleet.documents.plan import Plan
from gpufleet.documents.verdict import Verdict

PLAN = cast(Plan, {"host": "lab1", "toolkits": []})
COMMAND = "./gpufleet provision --limit lab1"
CUDNN = (Component("cudnn", "11.8-8"),)


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        (Fault("a", "cause", CUDNN), COMMAND),
        (Fault("a", "cause", CUDNN, note="it is quick"), f"{COMMAND} (it is quick)"),
        (Fault("a", "cause", CUDNN, act="move it away"), f"move it away; then {COMMAND}"),
        (Fault("a", "cause", act="move it away"), "move it away"),
    ],
)
def test_the_remedy_is_the_act_of_a_person_then_provision(fault: Fault, remedy: str) -> None:
    assert str(fault.remedy(PLAN)) == remedy
    repaired = [part.get("name") for part in fault.remedy(PLAN).repairs if part["by"] != "person"]
    assert repaired == (["11.8-8"] if fault.components else [])


def test_a_finding_without_a_step_keeps_all_its_fields_as_a_fault() -> None:
    finding = Finding("hung", "reboot", "trace", Verdict.HUNG, ("/a",), ("/b",))
    shown_again = Fault.of("a", finding).finding(PLAN)
    assert str(shown_again.remedy) == finding.remedy
    assert shown_again == Finding(
        "hung", shown_again.remedy, "trace", Verdict.HUNG, ("/a",), ("/b",)
    )


def test_a_check_shows_its_kinds_alone_and_adoption_asks_for_all() -> None:
    judged = [Fault("a", "one", CUDNN), Evidence("read", "a"), Fault("b", "two", CUDNN)]
    first, second = shown(PLAN, iter(judged), "a")
    assert isinstance(first, Finding)
    assert (first.cause, second) == ("one", Evidence("read", "a"))
    assert causes(iter(judged)) == ["one", "two"]
