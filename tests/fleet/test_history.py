"""The history file: what is recorded is there, whole, and reading leaves no trace."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fleet.history import History
from verify import judge
from verify.session import HostRun, Session

ROOT = Path(__file__).parents[2]
NIGHT = datetime(2026, 11, 1, 3, tzinfo=UTC)


def at(night: int) -> str:
    """When a night began."""
    return (NIGHT + timedelta(days=night)).strftime("%Y-%m-%dT%H:%M:%SZ")


def host(name: str, **verdicts: str) -> HostRun:
    """A host with these checks: `cudnn__links="FAIL: because"`. None at all: unreachable."""
    checks = [{
        "id": check.replace("__", "."), "verdict": said.partition(": ")[0], "statement": "Holds.",
        "cause": said.partition(": ")[2], "remedy": "mend it" if ": " in said else "",
        "evidence": ""} for check, said in verdicts.items()]
    result = judge._host(checks) if checks else judge.unreachable("No route", "see the cable")
    return HostRun(name, None, {"host": name}, result)


def session(night: int, *hosts: HostRun) -> Session:
    """A night's session."""
    return Session(list(hosts), started=at(night), finished=at(night))


def files(directory: Path) -> dict[str, str]:
    """All that lies there, by contents."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in directory.iterdir()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a history may be."""
    return tmp_path / "state" / "history.sqlite"


def test_a_night_is_told_again_as_it_was(path: Path) -> None:
    with History(path) as history:
        night = history.record(session(0, host("gpu01", a="PASS", b="FAIL: broken"), host("gpu02")))
        history.record(session(1, host("gpu01", a="PASS", b="PASS")))
    with History(path) as history:
        assert [(it.id, it.started, it.kind, it.hosts) for it in history.nights()] == [
            (night, at(0), "nightly", 2), (night + 1, at(1), "nightly", 1)]
        latest = history.latest()
        assert latest and latest.started == at(1)
        assert history.latest("rollout") is None
        assert {name: it["verdicts"] for name, it in history.past()["hosts"].items()} == {
            "gpu01": "FP", "gpu02": "U."}
        line = history.lines(history.nights(), host="gpu01", check="b")["gpu01", "b"]
        assert [(it.letter, it.cause, it.remedy) for it in line if it] == [
            ("F", "broken", "mend it"), ("P", "", "")]
