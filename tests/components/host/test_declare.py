"""`gpu_manifest`: values by name, and names that nothing reads."""

from __future__ import annotations

import pytest

from gpufleet.components.declare import declaration_of
from gpufleet.components.resolver import resolve
from gpufleet.documents.plan import Plan
from gpufleet.documents.validator import faults


def test_values_and_lists_of_them_reach_the_plan() -> None:
    declared = {"bios": " 2.4 ", "bmc": ["1", "2", "1"], "mount /": "xfs rw", "board": None}
    plan = resolve({"gpu_manifest": declared}, None, "gpu01")
    assert plan["problems"] == []
    assert plan["manifest"] == {"bios": ["2.4"], "bmc": ["1", "2"], "mount /": ["xfs rw"]}
    assert faults(Plan, plan, "plan") == []


@pytest.mark.parametrize("declared", [None, {}, {"bios": []}])
def test_without_a_value_no_manifest_is_declared(declared: object) -> None:
    assert resolve({"gpu_manifest": declared}, None, "gpu01")["manifest"] is None


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("bois", "rename bois to bios"),
        ("mount scratch", "mount /PATH"),
        ("limits.cron", "the keys are system, board"),
    ],
)
def test_an_unknown_name_is_refused(name: str, remedy: str) -> None:
    (problem,) = declaration_of({"gpu_manifest": {name: "x"}}).problems
    assert (problem.code, problem.where) == ("unknown-key", f"gpu_manifest.{name}")
    assert remedy in problem.remedy


def test_more_names_than_a_host_has_are_refused() -> None:
    many = {f"mount /{number}": "xfs rw" for number in range(257)}
    (problem,) = declaration_of({"gpu_manifest": many}).problems
    assert "at most 256 names" in problem.message
