"""The state of each host in its site's life: in the history, in the metrics, in the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpufleet.report.directory import render_page
from gpufleet.watch import host_states, metrics
from gpufleet.watch.history import History
from tests.support.nightly_sessions import host, session


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "history.sqlite")


def state(name: Any, since: int = 1, why: str = "because") -> Any:
    return {"state": name, "since": f"2026-11-{since:02}T10:00:00Z", "by": "ann", "why": why}


def test_the_last_state_counts_and_the_former_ones_are_kept(history: History) -> None:
    for each in (state("commissioning"), state("quarantined", 2), state("returned", 3)):
        host_states.set_state(history, "gpu01", each)
    assert host_states.recorded(history) == {"gpu01": state("returned", 3)}
    assert [each["state"] for each in host_states.former(history, "gpu01")] == [
        "commissioning",
        "quarantined",
        "returned",
    ]


def test_a_state_keeps_its_day_while_nothing_changes(history: History) -> None:
    host_states.set_state(history, "gpu01", state("production", 1))
    host_states.set_state(history, "gpu01", state("production", 2))
    assert host_states.recorded(history)["gpu01"]["since"] == "2026-11-01T10:00:00Z"
    host_states.set_state(history, "gpu01", state("production", 3, "another reason"))
    assert host_states.recorded(history)["gpu01"]["since"] == "2026-11-03T10:00:00Z"


def test_what_a_person_set_last_is_known_however_often_a_command_sets_states(
    history: History,
) -> None:
    assert host_states.last_by_person(history, "gpu01") is None
    host_states.set_state(history, "gpu01", state("new", why="old"))
    host_states.set_state(history, "gpu01", state("quarantined", 2))
    for number in range(2 * host_states.MOST_FORMER):
        found = {**state("commissioning", 3, f"run {number}"), "command": "commission"}
        host_states.set_state(history, "gpu01", found)
    assert host_states.last_by_person(history, "gpu01") == state("quarantined", 2)
    assert len(host_states.former(history, "gpu01")) == host_states.MOST_FORMER
    # The same words of a person are another state.
    host_states.set_state(history, "gpu01", state("commissioning", 4, found["why"]))
    assert host_states.last_by_person(history, "gpu01") == state("commissioning", 4, found["why"])


def test_a_host_without_a_state_is_new_unless_the_nightly_run_knows_it(history: History) -> None:
    for night in (4, 2, 3):
        history.record(session(night, host("gpu01", gpu__count="PASS")), measure=lambda *_: {})
    history.record(
        session(0, host("gpu02", gpu__count="PASS")), kind="commission", measure=lambda *_: {}
    )
    rows = {row["host"]: row for row in host_states.fleet(history, ["gpu02", "gpu01"])}
    assert {name: row["state"] for name, row in rows.items()} == {
        "gpu01": "production",
        "gpu02": "new",
    }
    assert rows["gpu01"]["since"] == "2026-11-03T03:00:00Z"


@pytest.mark.parametrize(
    "value", ["", "7", "[7]", "{}", "[", '[{"state": "lost"}]', '[{"state": "new"}]']
)
def test_a_damaged_state_is_none(history: History, value: str) -> None:
    history.flag("gpu01", host_states.FLAG, value)
    assert host_states.recorded(history) == {}
    host_states.set_state(history, "gpu01", state("new"))
    assert host_states.recorded(history) == {"gpu01": state("new")}


def test_no_more_states_are_kept_than_may_be(history: History) -> None:
    for number in range(host_states.MOST_FORMER + 5):
        host_states.set_state(history, "gpu01", state("new", why=str(number)))
    assert len(host_states.former(history, "gpu01")) == host_states.MOST_FORMER


def test_a_state_is_a_metric() -> None:
    text = metrics.text(metrics.Run(1.0, 1.0, 1.0, states={"gpu02": "quarantined"}))
    assert 'gpufleet_host_state{host="gpu02",state="quarantined"} 1.0' in text


def test_the_report_names_the_hosts_that_are_not_in_production() -> None:
    known = {"gpu01": state("production"), "gpu02": state("quarantined"), "gpu03": state("new")}
    night = session(0, host("gpu01", gpu__count="PASS"), host("gpu02", gpu__count="PASS"))
    assert "not in production" not in render_page(night)
    night.states = host_states.sentences(known, ["gpu01", "gpu02"])
    assert night.states == ["gpu02 is quarantined since 2026-11-01T10:00:00Z, by ann: because"]
    page = render_page(night)
    assert "<li>gpu02 is quarantined since 2026-11-01T10:00:00Z, by ann: because</li>" in page
