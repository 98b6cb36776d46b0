"""Fabric tests in the history: what is recorded, compared with, deleted, and survives a kill."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpufleet.documents.verdict import Verdict
from gpufleet.watch import database
from gpufleet.watch.fabric_history import (
    past_bandwidth,
    record_fabric_test,
    recorded_bandwidths,
    recorded_tests,
)
from gpufleet.watch.history import History
from tests.support.nightly_sessions import at, fabric_test, group_test, host, session
from tests.support.warm_start import run_warm

SIZE = 512 << 20
HOW: Any = {"size": SIZE, "algorithm": "Ring"}


def pairs(night: int, rate: float | None, outcome: str = "passed", **more: Any) -> Any:
    """A test of each pair of three hosts; that of a and b has this rate."""
    return fabric_test(
        night,
        "pairs",
        group_test(1, outcome, rate, "b", "a"),
        group_test(2, "passed", 400.0, "a", "c"),
        **more,
    )


def test_what_a_pair_reached_in_each_test_is_read_oldest_first(path: Path) -> None:
    with History(path) as history:
        for night, rate in enumerate((390.0, 391.0, 392.0)):
            record_fabric_test(history, pairs(night, rate))
        found = past_bandwidth(history, "a", "all_reduce", "pairs", **HOW, partners=["b"])
        assert found == [(at(0), 390.0), (at(1), 391.0), (at(2), 392.0)]
        last = past_bandwidth(history, "b", "all_reduce", "pairs", **HOW, partners=["a"], last=2)
        assert last == found[1:]
        anyone = past_bandwidth(history, "a", "all_reduce", "pairs", **HOW)
        assert sorted(rate for _, rate in anyone) == [390.0, 391.0, 392.0, 400.0, 400.0, 400.0]


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        ({"host": "z"}, {}),
        ({"partners": ["z"]}, {}),
        ({"partners": ["b", "z"]}, {}),
        ({"partners": []}, {}),
        ({"collective": "all_gather"}, {}),
        ({"scope": "hosts"}, {}),
        ({"scope": "all"}, {}),
        ({"size": 8}, {}),
        ({"algorithm": "Tree"}, {}),
        ({}, {"outcome": "slow"}),
        ({}, {"outcome": "wrong", "rate": None}),
    ],
)
def test_what_is_not_comparable_is_no_past(path: Path, asked: Any, more: Any) -> None:
    with History(path) as history:
        record_fabric_test(history, pairs(0, **{"rate": 390.0, **more}))
        words: Any = {
            "host": "a",
            "collective": "all_reduce",
            "scope": "pairs",
            **HOW,
            "partners": ["b"],
            **asked,
        }
        assert past_bandwidth(history, **words) == []


def test_a_host_that_no_history_knows_has_no_past(path: Path) -> None:
    with History(path) as history:
        assert past_bandwidth(history, "a", "all_reduce", "all", **HOW) == []
        assert recorded_tests(history) == []
    assert not path.exists()


def whole(night: int, outcome: str, rate: float, *more: Any) -> Any:
    """A test of three hosts together, in two sizes."""
    return fabric_test(
        night,
        "all",
        group_test(1, outcome, rate, "a", "b", "c"),
        *more,
        results=[
            {"operation": "all_reduce", "bytes": 8, "seconds": 1, "gb_per_s": 0.1, "wrong": 0},
            {"operation": "all_reduce", "bytes": SIZE, "seconds": 1, "gb_per_s": rate, "wrong": 0},
        ],
    )


def test_all_hosts_together_are_kept_by_size(path: Path) -> None:
    with History(path) as history:
        record_fabric_test(history, whole(0, "not judged", 350.0))
        for size, rate in ((8, 0.1), (SIZE, 350.0)):
            assert past_bandwidth(
                history, "c", "all_reduce", "all", size=size, algorithm="Ring"
            ) == [(at(0), rate)]


def test_a_search_keeps_pairs_and_hosts_but_no_half_of_the_group(path: Path) -> None:
    with History(path) as history:
        record_fabric_test(
            history,
            whole(
                0,
                "slow",
                200.0,
                group_test(2, "passed", 399.0, "a", "b"),
                group_test(3, "passed", 398.0, "a", "b", "c"),
                group_test(4, "hung", None, "c"),
            ),
        )
        tests = recorded_tests(history)
        assert [(row.hosts, row.outcome) for row in recorded_bandwidths(history, tests)] == [
            (("a", "b", "c"), "slow"),
            (("a", "b", "c"), "slow"),
            (("a", "b"), "passed"),
            (("c",), "hung"),
        ]
        found = past_bandwidth(history, "a", "all_reduce", "pairs", **HOW)
        assert found == [(at(0), 399.0)]
        # A size that nobody judged is not usual either where the group is slow.
        assert past_bandwidth(history, "a", "all_reduce", "all", size=8, algorithm="Ring") == []


def test_verdict_and_culprits_are_kept(path: Path) -> None:
    found = pairs(
        0,
        390.0,
        verdict="FAIL",
        culprits=[{"kind": "member", "hosts": ["a"], "rails": [0], "statement": "a is slow"}],
        excluded=[{"host": "d", "cause": "no GPU", "remedy": ""}],
    )
    with History(path) as history:
        record_fabric_test(history, found)
        [test] = recorded_tests(history)
    assert (test.started, test.verdict, test.scope, test.algorithm, test.ranks) == (
        at(0),
        Verdict.FAIL,
        "pairs",
        "Ring",
        24,
    )
    assert test.culprits == ("a is slow", "d took no part: no GPU")


def test_bandwidths_of_one_host_leave_out_other_groups(path: Path) -> None:
    with History(path) as history:
        record_fabric_test(history, pairs(0, 390.0))
        tests = recorded_tests(history)
        assert [row.hosts for row in recorded_bandwidths(history, tests, "b")] == [("a", "b")]
        assert len(recorded_bandwidths(history, tests)) == 2


def test_a_test_dated_in_the_future_is_not_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpufleet.watch.fabric_history.utc_now", lambda: at(1))
    with History(path) as history:
        for night in (0, 9):
            record_fabric_test(history, pairs(night, 390.0))
        assert [test.started for test in recorded_tests(history)] == [at(0)]
        assert len(past_bandwidth(history, "b", "all_reduce", "pairs", **HOW)) == 1


def test_old_tests_are_deleted_with_their_groups_and_the_newest_stays(path: Path) -> None:
    with History(path) as history:
        record_fabric_test(history, fabric_test(0, "hosts", group_test(1, "passed", 1.0, "gone")))
        record_fabric_test(history, pairs(1, 390.0))
        for night in range(2, 7):
            history.record(session(night, host("gpu01", x="PASS")))
        assert history.prune(4) == 0
        assert [test.started for test in recorded_tests(history)] == [at(1)]
        assert history.names("hosts") == ["a", "b", "c", "gpu01"]
        assert history.rows("SELECT size FROM fabric_groups") == [(2,), (2,)]
        history.prune(1)
        assert len(recorded_tests(history)) == 1
        assert past_bandwidth(history, "b", "all_reduce", "pairs", **HOW) == [(at(1), 390.0)]


# -- killed ----------------------------------------------------------------------------------------

RECORDED = """
import os, signal, sqlite3, sys
from pathlib import Path
from gpufleet.watch.fabric_history import record_fabric_test
from gpufleet.watch.history import History
from tests.support.nightly_sessions import fabric_test, group_test

real = sqlite3.connect

def connect(*words, **more):
    base = real(*words, **more)
    left = [int(sys.argv[3])]
    def heard(statement):
        if statement.startswith(sys.argv[2]):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
    base.set_trace_callback(heard)
    return base

sqlite3.connect = connect
tests = [group_test(n, "passed", 400.0, "a", f"x{n}") for n in range(1, 200)]
with History(Path(sys.argv[1])) as history:
    record_fabric_test(history, fabric_test(1, "pairs", *tests))
"""


def killed(path: Path, where: str, number: int) -> None:
    """Record a test in a process that is killed there."""
    ended = run_warm("-c", RECORDED, path, where, str(number))
    assert ended.returncode == -signal.SIGKILL, ended.stderr


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("INSERT INTO fabric_tests", 1),
        ("INSERT INTO fabric_members", 100),
        ("INSERT OR REPLACE INTO fabric_results", 150),
        # The steps of the schema are there already: each commits nothing.
        ("COMMIT", len(database.MIGRATIONS) + 1),
    ],
)
def test_a_recording_killed_in_the_middle_leaves_the_history_whole(
    path: Path, where: str, number: int
) -> None:
    with History(path) as history:
        record_fabric_test(history, pairs(0, 390.0))
    killed(path, where, number)
    with History(path) as history:
        assert [test.started for test in recorded_tests(history)] == [at(0)]
        assert history.names("hosts") == ["a", "b", "c"]
        record_fabric_test(history, pairs(2, 391.0))
        assert len(recorded_tests(history)) == 2
        assert history.rows("PRAGMA integrity_check") == [("ok",)]


def steps() -> Sequence[tuple[int, str]]:
    """The former schema and the beginning of each statement since the first release."""
    return [
        (number, statement)
        for number, statements in enumerate(database.MIGRATIONS)
        if number
        for statement in (
            *(
                each.partition("(")[0] if isinstance(each, str) else "INSERT INTO series"
                for each in statements
            ),
            f"PRAGMA user_version = {number + 1}",
        )
    ]


def schema(path: Path) -> tuple[int, list[str]]:
    """Its number, and the statements that would make it."""
    with closing(sqlite3.connect(path)) as base:
        return (
            base.execute("PRAGMA user_version").fetchone()[0],
            [row[0] for row in base.execute("SELECT sql FROM sqlite_schema ORDER BY name")],
        )


@pytest.mark.parametrize(("number", "where"), steps())
def test_a_killed_migration_leaves_the_former_schema_and_the_next_run_finishes_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, where: str
) -> None:
    with monkeypatch.context() as former:
        former.setattr(database, "MIGRATIONS", database.MIGRATIONS[:number])
        database.open_for_writing(path).executescript("""
            INSERT INTO nights VALUES (1, '2026-11-01T03:00:00Z', '', 'nightly');
            INSERT INTO hosts VALUES (1, 'gpu01'); INSERT INTO checks VALUES (1, 'gpu.smi');
            INSERT INTO looks VALUES (1, 1, 0);
            INSERT INTO verdicts (night, "check", host, verdict) VALUES (1, 1, 1, 0);
            INSERT INTO measures VALUES (1, 'a.tflops'); INSERT INTO devices VALUES (1, '');
            INSERT INTO numbers VALUES (1, 1, 1, 1, 50.5)
            """)
    before = schema(path)
    killed(path, where, 1)
    assert schema(path) == before and before[0] == number
    with History(path) as history:
        record_fabric_test(history, pairs(1, 390.0))
        history.record(session(2, host("gpu01", x="FAIL: broken")))
        assert history.letters(history.nights()) == {"gpu01": "FF"}
        assert history.numbers(history.nights(), "*") == {("gpu01", "a.tflops"): [50.5, None]}
        assert len(recorded_tests(history)) == 1
    assert schema(path)[0] == len(database.MIGRATIONS)


def test_what_hosts_reach_on_rails_is_not_what_they_reach(path: Path) -> None:
    with History(path) as history:
        record_fabric_test(
            history, fabric_test(0, "rails", group_test(1, "passed", 46.0, "a", "b"))
        )
        assert [test.scope for test in recorded_tests(history)] == ["rails"]
        assert recorded_bandwidths(history, recorded_tests(history)) == []
        for scope in ("all", "pairs", "rails"):
            assert past_bandwidth(history, "a", "all_reduce", scope, **HOW) == []
