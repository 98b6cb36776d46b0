"""Every fault of a document is reported with its place; keys that no type describes pass."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from gpufleet.components.host.host import SECOND_READINGS, SECTIONS
from gpufleet.documents import validator
from gpufleet.documents.snapshot import SectionData
from gpufleet.judge import judge
from gpufleet.on_host.runner import probe
from tests.support.healthy_host import Document, data, other_than, verdicts
from tests.support.machine import deadline


def error(snapshot: Document, section: str) -> str:
    found = validator.mark_damaged(snapshot)["sections"][section]
    assert found["state"] == validator.DAMAGED
    return str(found["error"])


def test_a_healthy_snapshot_and_a_real_one_are_of_their_shape(
    snapshot: Document, tmp_path: Path
) -> None:
    assert validator.mark_damaged(snapshot) == snapshot
    (tmp_path / "tmp").mkdir()
    real = probe({"root": str(tmp_path), "deadline_s": deadline(20)})
    real["sections"]["os"]["data"]["pythons"] = [{"path": "/usr/bin/python3.11", "version": ""}]
    sections = validator.mark_damaged(real)["sections"]
    assert {
        name: section["error"] for name, section in sections.items() if section["state"] != "ok"
    } == {}


def test_every_section_of_the_checks_has_a_shape() -> None:
    assert {*SECTIONS, *SECOND_READINGS} == set(get_type_hints(SectionData))


@pytest.mark.parametrize(
    ("place", "value", "output"),
    [
        (("trees",), None, "data.trees is null, and should be a list"),
        (("trees", 0), "x", "data.trees[0] is 'x', and should be a mapping"),
        (("trees", 0, "path"), "", "data.trees[0].path is '', and should be non-empty text"),
        (("trees", 0, "receipt"), 1, "data.trees[0].receipt is 1, and should be true or false"),
        (
            ("trees", 0, "closed"),
            [{"path": "/a"}],
            "data.trees[0].closed[0].mode is missing, and should be non-empty text",
        ),
        (
            ("default", "state"),
            "gone",
            "data.default.state is 'gone', and should be one of link, missing, directory, file",
        ),
    ],
)
def test_the_place_is_named(
    snapshot: Document, place: tuple[str | int, ...], value: Any, output: str
) -> None:
    inner: Any = data(snapshot, "toolkits")
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    assert error(snapshot, "toolkits") == output


def test_a_damaged_section_is_judged_by_no_check(plan: Document, snapshot: Document) -> None:
    data(snapshot, "toolkits")["trees"][0]["cudart"] = None
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["host.probe"]["cause"] == (
        "Section 'toolkits' is damaged or from another release: data.trees[0].cudart is null, and"
        " should be a list"
    )
    readers = ("host.probe", "toolkit.present", "stack.mapped")
    assert other_than("INCONCLUSIVE", {name: found[name]["verdict"] for name in readers}) == {}


def test_a_section_without_its_data_is_damaged(plan: Document, snapshot: Document) -> None:
    del snapshot["sections"]["toolkits"]["data"]
    assert error(snapshot, "toolkits") == "data is null, and should be a mapping"
    assert judge.judge(plan, snapshot)["verdict"] == "INCONCLUSIVE"


def test_a_host_with_a_python_of_its_platform_alone_is_whole(
    plan: Document, snapshot: Document
) -> None:
    data(snapshot, "os")["pythons"] = []
    assert verdicts(plan, snapshot)["host.probe"] == "PASS"


def test_what_nobody_declared_passes(plan: Document, snapshot: Document) -> None:
    before = verdicts(plan, deepcopy(snapshot))
    data(snapshot, "toolkits")["new"] = {"of": "another release"}
    snapshot["sections"]["novel"] = {"state": "ok", "seconds": 1, "error": None, "data": [1]}
    assert verdicts(plan, snapshot) == before


@pytest.mark.parametrize("damage", [None, [], "text", {"kernel": None}, {"kernel": {"state": 1}}])
def test_no_damage_raises(plan: Document, snapshot: Document, damage: Any) -> None:
    snapshot["sections"] = damage
    assert set(verdicts(plan, snapshot).values()) <= {"INCONCLUSIVE", "NOT-DECLARED", "PASS"}
    assert judge.judge(plan, snapshot)["verdict"] == "INCONCLUSIVE"
