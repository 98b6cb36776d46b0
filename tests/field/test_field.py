"""Public reports: each host is judged as its thread was resolved, or is known not to be."""

from __future__ import annotations

import re

import pytest

from tests.support.field_reports import answered, read, reports
from tests.support.healthy_host import Document

REPORTS = {report["id"]: report for report in reports()}
OPEN: dict[str, str] = read("open.yml")
IN_SCOPE = [name for name, report in REPORTS.items() if "scope" not in report]
OUT_OF_SCOPE = [name for name, report in REPORTS.items() if "scope" in report]
KEYS = ("id", "source", "year", "component", "healthy", "situation", "truth", "fix", "certainty")
SOURCE = re.compile(r"[\w.-]+/[\w.-]+#\d+|https://\S+")


def sources(report: Document) -> list[str]:
    """The threads of a report."""
    found = report["source"]
    return found if isinstance(found, list) else [found]


@pytest.mark.parametrize(
    "snapshot",
    [{}, {"stacks/stacks/0/runs": "pytorch"}, {"driver/loaded": "580.126.09"}],
    ids=["as it is", "with frameworks", "with a newer driver"],
)
def test_the_host_on_which_reports_are_planted_is_healthy(snapshot: Document) -> None:
    expected = {"check": [], "verdict": ["PASS"]}
    healthy = {"healthy": True, "input": {"snapshot": snapshot}, "expect": expected}
    assert answered(healthy) == (True, "")


@pytest.mark.parametrize("name", IN_SCOPE)
def test_the_answer_is_what_the_thread_found(name: str) -> None:
    right, told = answered(REPORTS[name])
    assert "is damaged" not in told, told
    if name in OPEN:
        assert not right, f"{name} is right by now: take it out of tests/field/open.yml"
        return
    expected = REPORTS[name]["expect"]
    assert right, f"{REPORTS[name]['truth']}\nexpected: {expected}\nsaid:\n{told or 'nothing'}"


@pytest.mark.parametrize("name", OUT_OF_SCOPE)
def test_nothing_misleads_where_the_cause_cannot_be_seen(name: str) -> None:
    report = REPORTS[name]
    _, told = answered(report)
    assert "is damaged" not in told, told
    misleading = report["expect"].get("remedy_not") or ()
    assert [word for word in misleading if word.lower() in told.lower()] == []


def test_reports_are_many_and_of_many_years() -> None:
    assert len(REPORTS) >= 200
    assert len(REPORTS) == len(reports()), "two reports have the same id"
    assert {report["year"] for report in REPORTS.values()} == {*range(2018, 2027)}


def test_no_two_reports_have_the_same_source() -> None:
    first = [sources(report)[0] for report in REPORTS.values()]
    assert sorted({name for name in first if first.count(name) > 1}) == []


def test_each_report_is_complete_and_names_its_source() -> None:
    for name, report in REPORTS.items():
        assert [key for key in KEYS if key not in report] == [], name
        assert all(SOURCE.fullmatch(each) for each in sources(report)), name
        assert report.get("scope", "out") == "out", name
        assert bool(report.get("why")) == ("scope" in report), name


def test_every_report_that_is_open_or_was_tried_is_there() -> None:
    assert {*OPEN} <= {*IN_SCOPE}
    tried = [
        name
        for fifty in read("first_sight.yml")["fifties"]
        for names in fifty.values()
        for name in names
    ]
    assert sorted(tried) == sorted(REPORTS)
