"""`gpufleet fabric test`: its options, and what it prints."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gpufleet.cli import fabric
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.collectives import Measure
from gpufleet.fleet.fabric_test import InUseError
from gpufleet.fleet.rails import RailsError
from gpufleet.watch.fabric_history import record_fabric_test, recorded_tests
from gpufleet.watch.history import History
from tests.support.nightly_sessions import fabric_test, group_test


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1M,8", (8, 1 << 20)),
        ("2GiB, 64K", (64 << 10, 2 << 30)),
        ("9", (8,)),
        ("8,8", (8,)),
    ],
)
def test_sizes_are_whole_numbers_of_floats_the_smallest_first(
    text: str, sizes: tuple[int, ...]
) -> None:
    assert fabric.sizes_of(text) == sizes


@pytest.mark.parametrize("text", ["", "0", "3", "17G", "1T", "-8", "8,", "1e9", "9" * 40])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is no size"):
        fabric.sizes_of(text)


def test_operations_keep_their_order_and_unknown_ones_are_refused() -> None:
    assert fabric.operations_of("sendrecv,all_reduce") == ("sendrecv", "all_reduce")
    for text in ("", "all_reduce,all_reduce", "alltoall"):
        with pytest.raises(ConfigurationError, match="names a collective that is not known"):
            fabric.operations_of(text)


@pytest.mark.parametrize(
    ("words", "hosts", "variables"),
    [
        ([], 2, {"NCCL_ALGO": "Ring"}),
        ([], 1, {}),
        (["--algorithm", "Tree"], 1, {"NCCL_ALGO": "Tree"}),
    ],
)
def test_the_network_alone_counts_between_hosts(
    words: list[str], hosts: int, variables: dict[str, str]
) -> None:
    options = fabric.parser().parse_args(["test", *words])
    assert fabric.environment(options, hosts) == variables


@pytest.mark.parametrize(
    "words",
    [
        ["--repeats", "0"],
        ["--deadline", "0"],
        ["--tolerance", "100"],
        ["--hosts", "z"],
        ["--scope", "rails", "--operations", "sendrecv"],
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_runs(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fabric.fabric_test, "run", lambda *_: pytest.fail("it ran"))
    options = fabric.parser().parse_args(["test", "-i", "a,b,", *words])
    with pytest.raises(ConfigurationError):
        fabric.run(options, [])


def found(**more: Any) -> Any:
    return {
        "schema": 1,
        "started": "2026-01-01T00:00:00Z",
        "finished": "2026-01-01T00:01:00Z",
        "verdict": "FAIL",
        "hosts": ["gpu01", "gpu02"],
        "nccl": {"gpu01": "2.21.5", "gpu02": "2.21.5"},
        "ranks": 16,
        "compared": {
            "scope": "all",
            "operation": "all_reduce",
            "bytes": 1 << 30,
            "algorithm": "Ring",
        },
        "slow": "more than 10% below the declared 380 GB/s",
        "results": [
            {
                "operation": "all_reduce",
                "bytes": 1 << 30,
                "seconds": 0.0051,
                "gb_per_s": 216.3,
                "wrong": 2,
            }
        ],
        "tests": [
            {
                "number": 1,
                "round": 1,
                "hosts": ["gpu01", "gpu02"],
                "outcome": "slow",
                "gb_per_s": 216.3,
                "least_gb_per_s": 342.0,
            }
        ],
        "culprits": [
            {
                "kind": "member",
                "hosts": ["gpu02"],
                "rails": [0],
                "statement": "gpu02 is slow: test 1 with gpu01",
            }
        ],
        "excluded": [{"host": "gpu03", "cause": "no [GPU]", "remedy": "look at it"}],
        "unknown": ["whether links of gpu02 are at fault too"],
        **more,
    }


def test_bandwidths_culprits_and_what_is_unknown_are_shown() -> None:
    stream = io.StringIO()
    fabric.show(found(), Console(file=stream, width=100))
    text = stream.getvalue()
    assert "2 hosts, 16 GPUs, NCCL 2.21.5" in text
    assert "all_reduce  1 GiB  5.100 ms     216.3 GB/s              2" in text
    assert "✗ gpu02 is slow: test 1 with gpu01" in text
    assert "✗ gpu03 took no part: no [GPU]\n  Remedy: look at it" in text
    assert "? unknown: whether links of gpu02" in text
    assert "test 1, round 1: gpu01, gpu02: slow, 216.3 GB/s (at least 342)" in text
    assert text.rstrip().endswith("FAIL: slow means more than 10% below the declared 380 GB/s")


@pytest.mark.parametrize(("verdict", "status"), [("PASS", 0), ("FAIL", 1), ("INCONCLUSIVE", 3)])
def test_the_exit_status_follows_the_verdict(
    verdict: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(fabric.fabric_test, "run", lambda *_: found(verdict=verdict))
    database = tmp_path / "history.sqlite"
    words = ["test", "-i", "a,b,", "--json", "--report", str(tmp_path / "reports")]
    options = fabric.parser().parse_args([*words, "--database", str(database)])
    assert fabric.run(options, []) == status
    assert {path.name for path in (tmp_path / "reports").iterdir()} == {
        "2026-01-01T000000Z.html",
        "2026-01-01T000000Z.json",
    }
    out, err = capsys.readouterr()
    assert f'"verdict": "{verdict}"' in out and f"Recorded in {database}" in err
    with History(database) as history:
        assert [test.verdict.value for test in recorded_tests(history)] == [verdict]


def test_a_history_that_cannot_be_written_costs_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(fabric.fabric_test, "run", lambda *_: found(verdict="PASS"))
    damaged = tmp_path / "history.sqlite"
    damaged.write_text("This is no database at all.\n" * 200)
    words = ["test", "-i", "a,b,", "--json", "--report", str(tmp_path / "reports")]
    options = fabric.parser().parse_args([*words, "--database", str(damaged)])
    assert fabric.run(options, []) == 0
    out, err = capsys.readouterr()
    assert '"verdict": "PASS"' in out and "Not recorded: " in err and str(damaged) in err


@pytest.mark.parametrize(
    "error",
    [
        InUseError({"a": "pid 1 (ann, python3)"}),
        RailsError("a: pid 1 (ann, python3)", "", "--shared"),
    ],
    ids=["in use", "rails"],
)
def test_hosts_that_are_refused_are_named_and_nothing_is_judged(
    error: ConfigurationError,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr(fabric.fabric_test, "run", refused)
    options = fabric.parser().parse_args(["test", "-i", "a,b,"])
    assert fabric.run(options, []) == 3
    message = capsys.readouterr().err
    assert "a: pid 1 (ann, python3)\n" in message
    assert "--shared" in message.partition("Remedy: ")[2]


def test_a_test_on_some_rails_says_which() -> None:
    test = {**found()["tests"][0], "rails": [3]}
    assert fabric.test_text(test).startswith("test 1, round 1: gpu01, gpu02, rail 3: slow")
    assert "gpu02, rails 0, 1:" in fabric.test_text({**test, "rails": [0, 1]})


def test_the_past_of_a_group_is_that_of_the_same_hosts_and_measure(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with History(path) as history:
        for night, rate in enumerate((390.0, 391.0)):
            record_fabric_test(
                history, fabric_test(night, "pairs", group_test(1, "passed", rate, "a", "b"))
            )
            record_fabric_test(
                history,
                fabric_test(night, "all", group_test(1, "passed", rate - 90, "a", "b", "c")),
            )
            record_fabric_test(
                history, fabric_test(night, "rails", group_test(1, "passed", 46.0, "a", "b"))
            )
    past = fabric.past_of(path, Measure(("all_reduce",), (512 << 20,), 1, {"NCCL_ALGO": "Ring"}))
    assert past(("b", "a")) == [390.0, 391.0]
    assert past(("a", "b", "c")) == [300.0, 301.0]
    assert past(("a",)) == past(("a", "z")) == []
    other = fabric.past_of(path, Measure(("all_reduce",), (1 << 20,), 1, {"NCCL_ALGO": "Ring"}))
    assert other(("a", "b")) == []


def test_a_history_that_cannot_be_read_is_no_past(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    path.write_text("no database " * 100)
    assert fabric.past_of(path, Measure(("all_reduce",), (8,)))(("a",)) == []
