"""The page of a fabric test: its heat map, and that texts of hosts stay texts."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

import pytest

from gpufleet.report import fabric_page


def outcome_of(number: int, outcome: str, rate: float | None, *hosts: str) -> Any:
    return {
        "number": number,
        "round": 1,
        "hosts": list(hosts),
        "outcome": outcome,
        "gb_per_s": rate,
        "least_gb_per_s": 342.0,
    }


def found(*tests: Any, **more: Any) -> Any:
    return {
        "schema": 1,
        "started": "2026-01-01T00:00:00Z",
        "finished": "2026-01-01T00:01:00Z",
        "verdict": "FAIL",
        "hosts": ["a", "b", "c"],
        "nccl": {"a": "2.21.5", "b": "2.21.5", "c": ""},
        "ranks": 24,
        "compared": {"scope": "pairs", "operation": "all_reduce", "bytes": 8, "algorithm": "Ring"},
        "slow": "more than 10% below the declared 380 GB/s",
        "results": [],
        "tests": list(tests),
        "culprits": [],
        "excluded": [],
        "unknown": [],
        **more,
    }


def test_the_heat_map_has_each_pair_in_both_directions_and_its_last_test() -> None:
    cells = fabric_page.matrix(
        found(
            outcome_of(1, "slow", 200.0, "a", "b"),
            outcome_of(2, "passed", 400.0, "b", "c"),
            outcome_of(3, "passed", 390.0, "a", "b"),
            outcome_of(4, "hung", None, "c", "a"),
            outcome_of(5, "passed", 500.0, "a", "b", "c"),
        )
    )
    assert set(cells) == {"a", "b", "c"}
    assert (
        cells["a"]["b"]
        == cells["b"]["a"]
        == fabric_page.Cell("390", "a and b: passed, 390 GB/s", "pass", 98)
    )
    assert cells["a"]["c"] == fabric_page.Cell("hung", "c and a: hung", "hung", 0)
    assert "a" not in cells["a"]


def on_rail(number: int, outcome: str, rate: float | None, rails: list[int], *hosts: str) -> Any:
    return {**outcome_of(number, outcome, rate, *hosts), "rails": rails}


RAILS = {
    "compared": {"scope": "rails"},
    "ports": {"a": ["mlx5_0", "mlx5_1"], "b": ["mlx5_0", "mlx5_4"]},
}


def test_each_port_has_its_best_test_alone_in_the_heat_map_of_rails() -> None:
    tested = found(
        on_rail(1, "slow", 60.0, [0, 1], "a", "b"),
        on_rail(2, "passed", 46.0, [0], "a", "b"),
        on_rail(3, "slow", 23.0, [1], "a", "b"),
        on_rail(4, "slow", 22.0, [1], "b", "c"),
        on_rail(5, "passed", 45.0, [1], "a", "c"),
        **RAILS,
    )
    cells = fabric_page.rail_matrix(tested)
    assert cells["a"][1] == fabric_page.Cell(
        "45", "mlx5_1 of a, rail 1: passed at best, tests 3, 5", "pass", 98
    )
    assert cells["b"][1] == fabric_page.Cell(
        "23", "mlx5_4 of b, rail 1: slow at best, tests 3, 4", "fail", 50
    )
    assert fabric_page.matrix(tested) == {}
    page = fabric_page.render(tested)
    assert "Bus bandwidth of each rail" in page
    assert 'title="mlx5_4 of b, rail 1: slow at best, tests 3, 4"' in page


def test_a_port_that_was_not_tested_alone_has_no_cell() -> None:
    tested = found(on_rail(1, "hung", None, [0, 1], "a", "b"), **RAILS)
    assert fabric_page.rail_matrix(tested) == {"a": [None, None], "b": [None, None]}
    assert 'class="none"' in fabric_page.render(tested)


def test_more_hosts_than_a_screen_shows_have_the_list_alone() -> None:
    tests = [outcome_of(n, "passed", 1.0, "h0", f"h{n}") for n in range(1, 80)]
    assert fabric_page.matrix(found(*tests)) == {}
    assert 'class="heat"' not in fabric_page.render(found(*tests))
    many = [outcome_of(n, "passed", 1.0, "a") for n in range(fabric_page.MOST_TESTS + 5)]
    assert "5 more tests are in the JSON document" in fabric_page.render(found(*many))


def test_texts_of_hosts_stay_texts() -> None:
    bad = "<script>alert(1)</script>"
    page = fabric_page.render(
        found(
            outcome_of(1, "passed", 1.0, bad, "b"),
            nccl={"a": bad},
            excluded=[{"host": bad, "cause": bad, "remedy": bad}],
            unknown=[bad],
            culprits=[{"kind": "member", "hosts": [bad], "rails": [0], "statement": bad}],
        )
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 8
    page = fabric_page.render(found(on_rail(1, bad, 1.0, [0], bad, "b"), ports={bad: [bad]}))
    assert "<script" not in page
    assert f"{escape(bad)} of {escape(bad)}, rail 0" in page


@pytest.mark.parametrize("verdict", ["PASS", "FAIL", "INCONCLUSIVE"])
def test_the_page_loads_nothing_and_has_its_verdict(verdict: str, tmp_path: Path) -> None:
    page = fabric_page.render(found(verdict=verdict))
    assert f"{verdict}: 3 hosts, 24 GPUs" in page
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert "NCCL 2.21.5." in page
