"""The history of nights: what is recorded is told again, compared, and kept as long as it shall."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gpufleet.fleet.session import HostRun, Session
from gpufleet.judge import judge
from gpufleet.watch.history import History, HistoryError
from gpufleet.watch.retention import RecordedTime, read_time
from tests.support.healthy_host import data, document, with_cards
from tests.support.nightly_sessions import at, host, measured, session


def test_a_night_is_reported_again_as_it_was(path: Path) -> None:
    with History(path) as history:
        night = history.record(session(0, host("gpu01", a="PASS", b="FAIL: broken"), host("gpu02")))
        history.record(session(1, host("gpu01", a="PASS", b="PASS")))
    with History(path) as history:
        assert [(it.id, it.started, it.kind, it.hosts) for it in history.nights()] == [
            (night, at(0), "nightly", 2),
            (night + 1, at(1), "nightly", 1),
        ]
        latest = history.latest()
        assert latest and latest.started == at(1)
        assert history.latest("rollout") is None
        assert {name: it["verdicts"] for name, it in history.past()["hosts"].items()} == {
            "gpu01": "FP",
            "gpu02": "U.",
        }
        line = history.check_results(history.nights(), host="gpu01", check="b")["gpu01", "b"]
        assert [(it.letter, it.cause, it.remedy) for it in line if it] == [
            ("F", "broken", "fix it"),
            ("P", "", ""),
        ]


def test_it_stays_known_that_a_gpu_was_busy(path: Path) -> None:
    busy = session(1, host("gpu01", x="INCONCLUSIVE: held by pid 7"))
    busy.hosts[0].result["checks"][0]["held"] = True
    with History(path) as history:
        history.record(session(0, host("gpu01", x="PASS")))
        history.record(busy)
        assert history.changes()["changes"] == []
        history.record(session(2, host("gpu01", x="PASS")))
        history.record(session(3, host("gpu01", x="INCONCLUSIVE: it was not read")))
        assert [it["check"] for it in history.changes()["changes"]] == ["x"]
        line = history.check_results(history.nights(), host="gpu01", check="x")["gpu01", "x"]
        assert [it.held for it in line if it] == [False, True, False, False]


def test_numbers_are_reported_by_night_and_those_that_were_not_measured_as_null(path: Path) -> None:
    with History(path) as history:
        for night, values in enumerate([{"a__tflops": 12.5, "b_c": 40.0}, {}, {"a__tflops": 12.0}]):
            history.record(session(night, host("gpu01", x="PASS")), measure=measured(**values))
        past = history.past()["hosts"]["gpu01"]["measures"]
        assert past == {"a.tflops": [12.5, None, 12.0]}
        assert history.past(2, named="*")["hosts"]["gpu01"]["measures"] == {
            "a.tflops": [None, 12.0]
        }


def test_only_nightly_runs_are_compared_and_charted(path: Path) -> None:
    with History(path) as history:
        history.record(session(0, host("gpu01", x="PASS")))
        history.record(session(1, host("gpu01", x="FAIL: tried")), kind="verify")
        history.record(session(2, host("gpu01", x="PASS")))
        assert history.changes()["since"] == at(0)
        assert history.changes()["changes"] == []
        assert history.past()["hosts"]["gpu01"]["verdicts"] == "PP"
        assert [night.kind for night in history.nights()] == ["nightly", "verify", "nightly"]


def test_the_changes_of_an_earlier_night_can_be_asked_for(path: Path) -> None:
    with History(path) as history:
        ids = [
            history.record(session(night, host("gpu01", x=output)))
            for night, output in enumerate(["PASS", "FAIL: broken", "PASS"])
        ]
        assert [history.changes(night)["changes"][0]["kind"] for night in ids[1:]] == [
            "failure",
            "recovery",
        ]
        with pytest.raises(HistoryError, match="There is no nightly run"):
            history.changes(99)


def test_a_text_is_compared_with_what_was_known_last(path: Path) -> None:
    with History(path) as history:
        for night, driver in enumerate(["535", None, "550"]):
            values = {"driver__version": driver} if driver else {}
            history.record(session(night, host("gpu01", x="PASS")), measure=measured(**values))
        (change,) = history.changes()["changes"]
    assert (change["kind"], change["before"], change["after"]) == ("driver", "535", "550")


def test_each_text_is_kept_once(path: Path) -> None:
    with History(path) as history:
        for night in range(5):
            history.record(
                session(night, *(host(f"gpu{n}", x="FAIL: it is broken") for n in range(20)))
            )
    base = sqlite3.connect(path)
    assert base.execute("SELECT count(*) FROM texts WHERE text = 'it is broken'").fetchone() == (1,)


def test_a_cause_that_is_no_unicode_is_recorded_all_the_same(path: Path) -> None:
    with History(path) as history:
        history.record(session(0, host("gpu01", x="PASS")))
        history.record(session(1, host("gpu01", x="FAIL: /etc/\udcff.conf 日本 \0 'x'")))
        (change,) = history.changes()["changes"]
    assert change["after"] == "FAIL: /etc/\\udcff.conf 日本 \0 'x'"


def test_flags_live_on_without_nights(path: Path) -> None:
    with History(path) as history:
        assert history.flags("gpu01") == {}
        history.flag("gpu01", "drained", "by us")
        history.flag("gpu01", "drained", "by us, again")
    with History(path) as history:
        assert history.flags("gpu01") == {"drained": "by us, again"}
        history.flag("gpu01", "drained", None)
        assert history.flags("gpu01") == {}


def test_old_nights_and_what_only_they_said_are_forgotten_the_newest_stays(path: Path) -> None:
    with History(path) as history:
        history.record(session(0, host("gone", x="FAIL: long ago")), measure=measured(a__tflops=1))
        history.record(session(1, host("gpu01", x="PASS")))
        recent = history.record(session(2, host("gpu01", x="FAIL: now")))
        assert history.prune(keep_days=10_000) == 0
        assert history.prune(keep_days=0) == 2
        assert [night.id for night in history.nights()] == [recent]
        assert history.names("hosts") == ["gpu01"]
        assert history.names("measures") == []
    base = sqlite3.connect(path)
    assert base.execute("SELECT text FROM texts ORDER BY text").fetchall() == [
        ("fix it",),
        ("now",),
    ]


def recorded(base: History, *starts: str) -> None:
    """Nightly runs at these times."""
    for start in starts:
        base.record(replace(session(0, host("gpu01", x="PASS")), started=start, finished=start))


DAILY = [f"2026-10-{day:02}T03:00:00Z" for day in range(1, 31)]


def test_a_clock_that_jumps_ahead_deletes_no_run(path: Path) -> None:
    with History(path) as history:
        recorded(history, *DAILY, "2038-01-19T03:00:00Z")
        assert history.prune(keep_days=40) == 0
        assert "clock jumped" in history.recorded_time().jump()
        # Nor do the next nights, as long as the clock is wrong.
        recorded(history, "2038-01-20T03:00:00Z", "2038-01-21T03:00:00Z")
        assert history.prune(keep_days=40) == 0
        assert not history.recorded_time().jump()
        # Time goes on, a day for each night.
        assert history.prune(keep_days=36) == 2
        assert history.nights()[0].started == "2026-10-03T03:00:00Z"


def test_a_clock_that_is_set_back_deletes_no_run(path: Path) -> None:
    with History(path) as history:
        recorded(history, *DAILY, "2038-01-19T03:00:00Z", "2026-10-31T03:00:00Z")
        assert history.prune(keep_days=40) == 0
        recorded(history, "1970-01-01T00:00:00Z")
        assert history.prune(keep_days=50) == 0


def test_reports_age_by_the_recorded_runs_and_those_before_them_by_the_calendar() -> None:
    time = RecordedTime([*DAILY, "2038-01-19T03:00:00Z"])
    assert time.age(read_time("2026-10-30T03:00:00Z")).days == 7
    assert time.age(read_time("2026-10-23T03:00:00Z")).days == 14
    assert time.age(read_time("2020-10-01T03:00:00Z")).days == 365 * 6 + 1 + 29 + 7
    assert time.age(read_time("2039-01-01T00:00:00Z")).days == 0
    assert RecordedTime([]).age(read_time("2020-10-01T03:00:00Z")).days == 0
    assert not RecordedTime(["no time", *DAILY[1:]]).jump()


def test_a_card_that_was_there_before_is_known_for_all_of_the_window(path: Path) -> None:
    both, one = "1 GPU-a L4; 2 GPU-b L4", "1 GPU-a L4"
    with History(path) as history:
        for number, text in enumerate((both, one, one, both)):
            history.record(
                Session(
                    [HostRun("gpu01", {}, {}, judge.judge({}, document("snapshot.json")))],
                    started=at(number),
                    finished=at(number),
                ),
                measure=lambda *_, text=text: {"gpus": text},
            )
        (change,) = (it for it in history.changes()["changes"] if it["kind"] == "gpu")
        assert change["text"] == "GPU-b (L4) is back at 2."


def test_two_nights_of_real_documents(path: Path) -> None:
    """Snapshots as the probe makes them, judged as ever: exactly what is different is told."""

    def probe_tree(night: int, change: Any) -> Session:
        plan, snapshot = document("plan.json"), document("snapshot.json")
        with_cards(plan, snapshot)
        for number, card in enumerate(data(snapshot, "smi")["devices"]):
            card.update(index=number, uuid=f"GPU-{number}", name="NVIDIA L4")
        change(snapshot)
        return Session(
            [HostRun("gpu01", snapshot, plan, judge.judge(plan, snapshot))],
            started=at(night),
            finished=at(night),
        )

    def changed(snapshot: Any) -> None:
        data(snapshot, "cudnn")["trees"][0]["headers"][0]["version"] = "8.9.7"
        data(snapshot, "stacks")["stacks"][0]["python"] = "3.11.9"
        data(snapshot, "smi")["devices"][1]["uuid"] = "GPU-9"

    with History(path) as history:
        history.record(probe_tree(0, lambda snapshot: None))
        history.record(probe_tree(1, changed))
        changes = history.changes()["changes"]
        assert [(it["kind"], it["check"], it["before"]) for it in changes] == [
            ("failure", "cudnn.present", "PASS"),
            ("gpu", None, "GPU-1"),
            ("version", None, "3.11.2"),
        ]
        assert "8.9.7" in changes[0]["text"] and changes[0]["remedy"]
        history.record(probe_tree(2, lambda snapshot: None))
        assert [it["kind"] for it in history.changes()["changes"]] == ["recovery", "gpu", "version"]


def with_contents(night: int, *components: dict[str, Any] | None) -> Session:
    """A night over two hosts, each with what its probe says of one component's contents."""
    found = session(night, host("gpu01", x="PASS"), host("gpu02", x="PASS"))
    for each, component in zip(found.hosts, components, strict=True):
        snapshot = document("snapshot.json")
        data(snapshot, "receipts").pop("scrub", None)
        if component:
            data(snapshot, "receipts")["scrub"] = {
                "days": 14,
                "seconds": 60,
                "at": 1_800_000_000,
                "error": None,
                "components": [component],
            }
        each.snapshot = cast(Any, snapshot)
    return found


STATE = {
    "component": "toolkit-11.8",
    "installed": "then",
    "files": 1,
    "bytes": 2,
    "first": 3,
    "begun": 4,
    "read": None,
    "cursor": "a",
    "complete": True,
    "slow": [],
    "bad": [],
}


def test_how_far_contents_were_read_stays_known_when_a_host_does_not_say_it(path: Path) -> None:
    further = {**STATE, "cursor": "b", "bad": [{"path": "a", "what": "sha256"}]}
    with History(path) as history:
        assert history.contents_read() == {}
        history.record(with_contents(0, STATE, STATE))
        # One host hangs, or is probed without reading contents; the other goes on.
        history.record(with_contents(1, None, further))
        # What is of another release, or nonsense, begins again, and costs nobody else anything.
        history.record(with_contents(2, {"component": "toolkit-11.8"}, None))
        assert history.contents_read() == {"gpu01": [STATE], "gpu02": [further]}
        history.flag("gpu01", "scrub", '[{"component": 5}, 7]')
        assert history.contents_read()["gpu01"] == []
        history.prune(1)
        assert history.contents_read()["gpu02"] == [further]


FUTURE = "2038-01-19T03:00:00Z"


@pytest.fixture
def october(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is right again, at the end of October."""
    monkeypatch.setattr("gpufleet.watch.history.utc_now", lambda: "2026-10-30T04:00:00Z")


@pytest.mark.usefixtures("october")
def test_a_run_dated_in_the_future_deletes_no_night(path: Path) -> None:
    with History(path) as history:
        recorded(history, *DAILY[:-1], FUTURE, DAILY[-1])
        # The nights of the last five days stay, and the one that is just five days old.
        assert history.prune(keep_days=5) == 24
        assert [night.started for night in history.nights()] == DAILY[-6:]
        assert [night.started for night in history.future_nights()] == [FUTURE]
        assert not history.recorded_time().jump()


@pytest.mark.usefixtures("october")
def test_a_run_dated_in_the_future_is_no_night_to_compare_with(path: Path) -> None:
    """Otherwise each decision by the newest night, such as a drain, would use that run."""
    with History(path) as history:
        good, bad = host("gpu01", x="PASS"), host("gpu01", x="FAIL: broken")
        for start, result in ((DAILY[0], good), (FUTURE, good), (DAILY[-1], bad)):
            night = history.record(replace(session(0, result), started=start, finished=start))
        latest = history.latest()
        assert latest and latest.id == night
        assert history.changes()["night"] == history.changes(night)["night"] == DAILY[-1]
        assert history.past()["hosts"]["gpu01"]["verdicts"] == "PF"
        assert history.window(history.nights(30, "nightly")).hosts == {"gpu01": "PF"}


def test_what_was_recorded_in_the_future_counts_when_its_time_has_come(path: Path) -> None:
    with History(path) as history:
        recorded(history, FUTURE)
        assert [night.started for night in history.nights()] == [FUTURE]
        assert history.future_nights() == []
