"""Repeat offenders: nights lost by host and card, across moves and new names, and what was done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpufleet.documents.nightly import Offender
from gpufleet.watch import offenders, silences
from gpufleet.watch.history import History
from gpufleet.watch.offence_records import Finding
from tests.support.nightly_sessions import at, host, session

A, B, C = "GPU-aaaa-1", "GPU-bbbb-2", "GPU-cccc-3"
FIRST, SECOND, THIRD = "0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0"
# A host in a night: its verdict and cause of gpu.memory, and its cards by address.
Night = dict[str, tuple[str, dict[str, str]]]
PAIR = {FIRST: A, SECOND: B}
ECC = "FAIL: GPU 1 (0000:5e:00.0) has 3 uncorrected errors"
DAYS = [at(night)[:10] for night in range(40)]


def words(cards: dict[str, str]) -> str:
    """The measure `gpus`."""
    return "; ".join(sorted(f"{address} {uuid} Tesla T4" for address, uuid in cards.items()))


def record(path: Path, *nights: Night, **texts: Sequence[str]) -> History:
    """A history of these nights; `texts`: a measure of every host by night."""
    history = History(path)
    for number, night in enumerate(nights):
        hosts = [
            host(name) if verdict == "away" else host(name, gpu__memory=verdict, x="PASS")
            for name, (verdict, _) in night.items()
        ]
        values = {
            name: {
                **({"gpus": words(cards)} if verdict != "away" and cards else {}),
                **{key.replace("__", "."): line[number] for key, line in texts.items()},
            }
            for name, (verdict, cards) in night.items()
        }
        history.record(session(number, *hosts), values=values)
    return history


def night(verdict: str = "PASS", cards: dict[str, str] = PAIR, name: str = "gpu01") -> Night:
    return {name: (verdict, cards)}


def found(history: History, last: int | None = None) -> dict[str, Offender]:
    return {row["name"]: row for row in offenders.document(history, last)["offenders"]}


def test_a_host_and_the_card_that_its_cause_names_lose_the_night(path: Path) -> None:
    with record(path, night(), night(ECC), night(ECC), night()) as history:
        rows = found(history)
    assert list(rows) == [B, "gpu01"]
    assert {name: (row["nights_lost"], row["nights"]) for name, row in rows.items()} == {
        B: (2, 4),
        "gpu01": (2, 4),
    }
    card = rows[B]
    assert (card["place"], card["before"], card["replace"]) == (f"gpu01 {SECOND}", [], False)
    assert card["failures"] == [
        {
            "first": at(1),
            "last": at(2),
            "nights": 2,
            # One healthy night ends no failure.
            "over": False,
            "checks": ["gpu.memory"],
            "cause": ECC.removeprefix("FAIL: "),
            "done": [],
        }
    ]


def test_what_nobody_lost_lists_nobody(path: Path) -> None:
    with record(path, night(), night("INCONCLUSIVE: GPU 1 is busy"), night()) as history:
        assert found(history) == {}
    with History(path.parent / "none.sqlite") as empty:
        assert offenders.document(empty) == {"schema": 1, "nights": [], "offenders": []}


@pytest.mark.parametrize(
    ("check", "cause", "named"),
    [
        ("gpu.memory", "GPU 1 (0000:5e:00.0) has errors", {B}),
        ("gpu.throughput", "GPU 0 reaches 3 TFLOP/s, 61 % of what GPUs of its model reach", {A}),
        ("gpu.throughput", "GPU 0 is slow. GPU 1 is slow", {A, B}),
        ("gpu.visible", "The GPU at 00000000:3B:00.0 is on the PCI bus", {A}),
        ("kernel.log", "Xid 79 of 0000:3b:00: fallen off the bus", {A}),
        ("gpu.uuid", f"Declared GPUs are missing: {C}", {C}),
        # A framework's own numbers, a pair, a number that no card has, and no card at all.
        ("stack.matmul", "GPU 1 has wrong results", set()),
        ("gpu.peer", "GPU 0 to GPU 1 copies at 1 GiB/s", set()),
        ("gpu.throughput", "GPU 7 is slow", set()),
        ("gpu.throughput", f"GPU {'9' * 5000} is slow", set()),
        ("host.disk", "/var is full since 12:30:45", set()),
    ],
)
def test_a_cause_names_cards_by_uuid_address_and_number(
    check: str, cause: str, named: set[str]
) -> None:
    assert set(offenders.named_cards([Finding(check, cause)], words(PAIR))) == named


def test_consequences_name_nobody(path: Path) -> None:
    with History(path) as history:
        run = host("gpu01", gpu__count="FAIL: one is gone", gpu__smi="FAIL: GPU 1 does not answer")
        run.result["checks"][1]["explained_by"] = "gpu.count"
        history.record(session(0, run), values={"gpu01": {"gpus": words(PAIR)}})
        rows = found(history)
    assert list(rows) == ["gpu01"]
    assert rows["gpu01"]["failures"][0]["checks"] == ["gpu.count"]


@pytest.mark.parametrize(
    ("states", "spells"),
    [
        ("ooo", []),
        ("xoo", [(0, 0)]),
        ("xoxx", [(0, 3)]),
        ("xoooxx", [(0, 0), (4, 5)]),
        # Nights in which it was not judged end nothing.
        ("xo  oxx", [(0, 6)]),
        ("x ooo ooox", [(0, 0), (9, 9)]),
    ],
)
def test_a_failure_ends_by_three_healthy_nights(states: str, spells: list[tuple[int, int]]) -> None:
    assert offenders.failures(states) == spells


GOOD3 = [night()] * 3


def test_a_card_that_fails_again_after_two_repairs_is_for_replacement(path: Path) -> None:
    twice = [night(ECC), *GOOD3, night(ECC), *GOOD3]
    with record(path, *twice) as history:
        assert not found(history)[B]["replace"]
        assert [each["over"] for each in found(history)[B]["failures"]] == [True, True]
        history.record(
            session(8, host("gpu01", gpu__memory=ECC)), values={"gpu01": {"gpus": words(PAIR)}}
        )
        rows = found(history)
    assert rows[B]["replace"] and len(rows[B]["failures"]) == 3
    # A host is repaired, not replaced.
    assert not rows["gpu01"]["replace"]


def test_a_card_keeps_its_past_in_another_slot_and_another_host(path: Path) -> None:
    moved, away = {FIRST: B, SECOND: A}, {FIRST: A}
    other = "FAIL: GPU 0 (0000:86:00.0) has 3 uncorrected errors"
    with record(
        path,
        {**night(ECC), **night(cards={THIRD: C}, name="gpu02")},
        # In the same host it has another number and address.
        {
            **night("FAIL: GPU 0 (0000:3b:00.0) has errors", moved),
            **night(cards={THIRD: C}, name="gpu02"),
        },
        {**night(cards=away), **night(other, {THIRD: B}, name="gpu02")},
    ) as history:
        rows = found(history)
    assert rows[B]["nights_lost"] == 3
    assert rows[B]["place"] == f"gpu02 {THIRD}"
    assert rows[B]["before"] == [f"gpu01 {SECOND}", f"gpu01 {FIRST}"]
    assert {name: row["nights_lost"] for name, row in rows.items() if name != B} == {
        "gpu01": 2,
        "gpu02": 1,
    }
    done = rows[B]["failures"][0]["done"]
    assert f"{DAYS[1]}: {B} (Tesla T4) moved from {SECOND} to {FIRST}." in done
    assert f"{DAYS[2]}: {B} moved from gpu01 to gpu02." in done


def test_a_card_that_moved_is_not_blamed_for_its_former_place(path: Path) -> None:
    declared = f"FAIL: Declared GPUs are missing: {B}"
    with record(
        path,
        {**night(), **night(cards={THIRD: C}, name="gpu02")},
        {**night(declared, {FIRST: A}), **night(cards={THIRD: B}, name="gpu02")},
    ) as history:
        assert list(found(history)) == ["gpu01"]


def test_a_card_that_is_gone_loses_the_nights_until_another_is_in_its_place(path: Path) -> None:
    gone = night("FAIL: 1 of 2 declared GPUs is not on the PCI bus", {FIRST: A})
    replaced = night(cards={FIRST: A, SECOND: C})
    failing = night("FAIL: GPU 1 (0000:5e:00.0) has errors", {FIRST: A, SECOND: C})
    with record(path, night(), gone, gone, replaced, failing) as history:
        rows = found(history)
    assert {name: row["nights_lost"] for name, row in rows.items()} == {B: 2, C: 1, "gpu01": 3}
    assert rows[B]["failures"][0]["cause"].startswith("1 of 2 declared GPUs")
    (replacement,) = rows["gpu01"]["failures"][0]["done"]
    assert replacement == f"{DAYS[3]}: {C} (Tesla T4) at {SECOND} is new."


def test_a_card_that_comes_back_was_seated_again(path: Path) -> None:
    gone = night("FAIL: 1 of 2 declared GPUs is not on the PCI bus", {FIRST: A})
    with record(path, night(), gone, *GOOD3) as history:
        (failure,) = found(history)[B]["failures"]
    assert failure["over"]
    assert failure["done"] == [f"{DAYS[2]}: {B} (Tesla T4) is back at {SECOND}."]


def test_a_host_that_is_away_costs_its_cards_no_night(path: Path) -> None:
    with record(path, night(), night("away"), night("away")) as history:
        rows = found(history)
    assert {name: row["nights_lost"] for name, row in rows.items()} == {"gpu01": 2}
    assert rows["gpu01"]["failures"][0]["checks"] == ["host.reachable"]


def test_a_host_with_a_new_name_keeps_its_past(path: Path) -> None:
    with record(
        path,
        night(ECC),
        night(ECC),
        night(cards=PAIR, name="node-7"),
        night(ECC, name="node-7"),
    ) as history:
        rows = found(history)
    assert (rows["node-7"]["nights_lost"], rows["node-7"]["before"]) == (3, ["gpu01"])
    assert "gpu01" not in rows
    assert rows["node-7"]["failures"][0]["done"] == [
        f"{DAYS[2]}: gpu01 is named node-7 now: it has the same cards."
    ]


@pytest.mark.parametrize(
    "second",
    [
        # Another machine, one that has half of the cards, and one beside the first.
        [night(cards={FIRST: C}, name="node-7")] * 2,
        [night(cards={FIRST: A, SECOND: C}, name="node-7")] * 2,
        [{**night(), **night(name="node-7")}, night(name="node-7")],
    ],
)
def test_another_host_is_no_new_name(path: Path, second: list[Night]) -> None:
    with record(path, night("FAIL: x"), night("FAIL: x"), *second) as history:
        assert found(history)["gpu01"]["nights_lost"] == 2


def test_what_changed_while_it_failed_is_what_was_done(path: Path) -> None:
    drivers = ["535.1", "535.1", "550.2", "550.2", "550.2", "570.3"]
    with record(path, night(), night(ECC), night(ECC), *GOOD3, driver__version=drivers) as history:
        silences.store(
            history,
            {
                "host": "gpu01",
                "check": "gpu.memory",
                "causes": [],
                "until": "2026-11-20",
                "who": "ann",
                "why": "RMA 4711",
                "since": at(1),
            },
        )
        rows = found(history)
        expected = [
            f"{DAYS[1]}: gpu.memory was silenced until 2026-11-20 by ann: RMA 4711",
            f"{DAYS[2]}: Driver changed from 535.1 to 550.2.",
        ]
        assert rows[B]["failures"][0]["done"] == expected
        assert rows["gpu01"]["failures"][0]["done"] == expected
        # The driver of the last night came after the repair.
        assert found(history, 4)["gpu01"]["nights_lost"] == 1


def test_what_a_host_sent_costs_nobody_the_list(path: Path) -> None:
    odd: dict[str, Any] = {"gpus": "; ; x; \udcff a b; " + "1 2 3 4; " * 50, "gpus2": "x"}
    with History(path) as history:
        for number in range(2):
            history.record(
                session(number, host("gpu01", gpu__memory="FAIL: GPU 1 at zz:5e:00.0 [red]")),
                values={"gpu01": odd},
            )
        assert "gpu01" in found(history)
