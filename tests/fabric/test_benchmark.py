"""The benchmark of the bisection: its comparison is fair, its picture and table are those shown."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from benchmarks import bisection
from benchmarks.common import ROOT

PAGE = ROOT / "docs" / "explanation" / "causes.md"


@pytest.fixture(scope="module")
def rows() -> list[bisection.Row]:
    return bisection.rows()


@pytest.mark.parametrize("members", [2, 6, 64])
def test_all_pairs_meet_once_in_disjoint_rounds(members: int) -> None:
    met = set()
    for turn in range(members - 1):
        pairs = {
            frozenset((number, bisection.partner(number, turn, members)))
            for number in range(members)
        }
        assert sorted(member for pair in pairs for member in pair) == list(range(members))
        met |= pairs
    assert len(met) == members * (members - 1) // 2


def test_every_culprit_of_the_benchmark_is_found(rows: list[bisection.Row]) -> None:
    assert [row for row in rows if not row.found] == []
    assert {row.members for row in rows} == {64, 1000, 4096}


def test_the_picture_is_that_of_the_benchmark(rows: list[bisection.Row]) -> None:
    drawn = bisection.picture(bisection.curves(rows))
    assert bisection.PICTURE.read_text(encoding="utf-8") == drawn, (
        "run './gpufleet bench --only bisection'"
    )
    assert ET.fromstring(drawn).tag.endswith("svg")


def test_the_page_has_the_figures_of_the_benchmark(rows: list[bisection.Row]) -> None:
    shown = [
        f"| {row.members:,} | {row.case} | {row.rounds} | {row.members - 1:,} |"
        f" {bisection.minutes(row.seconds)} | {bisection.minutes(row.all_pairs_s)} |"
        for row in rows
    ]
    text = PAGE.read_text(encoding="utf-8")
    assert [line for line in shown if line not in text] == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(5.4, "0 min 05 s"), (3599, "59 min 59 s"), (7380, "2 h 03 min")]
)
def test_durations_have_units(seconds: float, text: str) -> None:
    assert bisection.minutes(seconds) == text
