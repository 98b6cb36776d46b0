"""The numbers of a measure in a run, as one value of the file."""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from gpufleet.watch import database, series
from gpufleet.watch.history import NIGHTLY, History
from tests.support.nightly_sessions import at, host, session

VALUES = {
    series.card(2, 1): 3.5,
    series.card(1, 9): 0.1 + 0.2,
    series.card(1, (1 << 32) - 1): -1e300,
    series.card((1 << 31) - 1, 0): 0.0,
}


def known(values: Iterable[object], *hosts: int) -> dict[int, float]:
    return dict(zip(*series.column(values, hosts or None), strict=True))


def blobs(values: Mapping[int, float]) -> list[bytes]:
    return [value for _, value in series.packed(values)]


def test_numbers_are_read_as_they_were_written() -> None:
    found = series.column(blobs(VALUES))
    assert dict(zip(*found, strict=True)) == VALUES
    assert list(found.cards) == sorted(VALUES)
    assert [(series.host_of(key), series.device_of(key)) for key in found.cards[:2]] == [
        (1, 9),
        (1, (1 << 32) - 1),
    ]


def test_the_numbers_of_some_hosts_are_their_own() -> None:
    for hosts in ((0,), (1,), (2,), (3,), ((1 << 31) - 1,), (1, 2)):
        own = {key: each for key, each in VALUES.items() if series.host_of(key) in hosts}
        assert known(blobs(VALUES), *hosts) == own


def test_a_block_has_so_many_hosts() -> None:
    values = {series.card(host, 1): float(host) for host in range(1, 100)}
    assert [block for block, _ in series.packed(values)] == [0, 1, 2, 3]
    for block, value in series.packed(values):
        assert {series.block_of(series.host_of(key)) for key in known([value])} == {block}
    assert known(blobs(values)) == values


def test_what_is_not_finite_is_left_out() -> None:
    assert known(blobs({1: math.nan, 2: math.inf, 3: -math.inf, 4: 1.0})) == {4: 1.0}


def test_a_damaged_value_is_not_read_as_other_numbers() -> None:
    values = {key: each for key, each in VALUES.items() if series.host_of(key) < 9}
    (value,), chance = blobs(values), random.Random(4)
    assert known([None]) == known(["text"]) == known([b""]) == known([7]) == {}
    for _ in range(500):
        damaged = bytearray(value)
        damaged[chance.randrange(len(value))] ^= 1 << chance.randrange(8)
        assert known([bytes(damaged)]) in ({}, values)  # some bits of the header say nothing
    for length in range(len(value)):
        assert known([value[:length]]) == {}


def test_a_card_that_a_night_did_not_measure_has_none_in_it() -> None:
    nights = [{1: 1.0, 2: 2.0}, {}, {2: 2.5, 3: 3.0}]
    columns = [series.column(blobs(night)) for night in nights]
    assert dict(series.lines(columns)) == {
        1: (1.0, None, None),
        2: (2.0, None, 2.5),
        3: (None, None, 3.0),
    }


@pytest.mark.parametrize(
    ("nights", "changed"),
    [
        ([], set()),
        ([{1: 5.0}, {1: 5.0}], set()),
        ([{1: 5.0, 2: 1.0}, {1: 5.0, 2: 1.5}], {2}),
        # Not measured is no change, and what was there before it counts.
        ([{1: 5.0, 2: 1.0}, {1: 5.0}, {1: 5.0, 2: 1.0}], set()),
        ([{1: 5.0, 2: 1.0}, {1: 5.0}, {1: 5.0, 2: 2.0}], {2}),
        ([{1: 5.0}, {1: 6.0}, {1: 5.0}], {1}),
    ],
)
def test_cards_that_have_another_number(nights: list[dict[int, float]], changed: set[int]) -> None:
    assert series.changed(series.column(blobs(night)) for night in nights) == changed


def test_the_rows_of_a_former_release_become_values(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as former:
        former.setattr(database, "MIGRATIONS", database.MIGRATIONS[:4])
        base = database.open_for_writing(path)
        for night in (1, 2):
            base.execute("INSERT INTO nights VALUES (?, ?, '', ?)", (night, at(night), NIGHTLY))
        base.executescript("""
            INSERT INTO hosts VALUES (1, 'gpu01'), (2, 'gpu02');
            INSERT INTO looks VALUES (1, 1, 4), (1, 2, 4), (2, 1, 4), (2, 2, 4);
            INSERT INTO measures VALUES (1, 'toolkit.12.3.tflops'), (2, 'stack.a.import_s');
            INSERT INTO devices VALUES (1, 'gpu.GPU-1'), (2, 'gpu.GPU-2'), (3, '');
            INSERT INTO numbers VALUES (1, 1, 1, 1, 50.25), (1, 1, 2, 2, 49.75), (2, 1, 1, 1, 50.5),
                (2, 2, 2, 3, 4), (2, 1, 2, 2, 'no number'), (2, 2, 1, 3, 9e999),
                (2, 2, 'a', 3, 1), (2, 2, 1, 'b', 1), (2, 2, 4294967296, 3, 1), (2, 2, 1, -1, 1)
            """)
        base.close()
    numbers = {
        ("gpu01", "gpu.GPU-1.toolkit.12.3.tflops"): [50.25, 50.5],
        ("gpu02", "gpu.GPU-2.toolkit.12.3.tflops"): [49.75, None],
        ("gpu02", "stack.a.import_s"): [None, 4.0],
    }
    with History(path) as history:
        assert history.numbers(history.nights(), "*") == numbers
    with History(path) as history:
        history.record(session(3, host("gpu01", x="PASS")))
        assert history.numbers(history.nights()[:2], "*") == numbers
        assert history.numbers(history.nights()[:2], "*.tflops", ["gpu01"]) == {
            ("gpu01", "gpu.GPU-1.toolkit.12.3.tflops"): [50.25, 50.5]
        }
        assert history.numbers(history.nights(), "*", ["gpu77"]) == {}


def test_a_device_is_forgotten_with_the_last_run_that_names_it(path: Path) -> None:
    def devices() -> list[str]:
        base = sqlite3.connect(path)
        found = [row[0] for row in base.execute("SELECT name FROM devices ORDER BY name")]
        base.close()
        return found

    def measured(*cards: str) -> dict[str, float | str]:
        return {f"gpu.{card}.temperature_c": 40.0 for card in cards}

    with History(path) as history:
        for night, cards in enumerate((("a", "b"), ("b",), ("b", "c"))):
            values = measured(*cards)
            history.record(
                session(night, host("gpu01", x="PASS")),
                measure=lambda *_, values=values: values,
            )
        assert devices() == ["gpu.a", "gpu.b", "gpu.c"]
        assert history.prune(keep_days=0) == 2
        assert devices() == ["gpu.b", "gpu.c"]
        assert history.numbers(history.nights(), "*") == {
            ("gpu01", f"gpu.{card}.temperature_c"): [40.0] for card in "bc"
        }
