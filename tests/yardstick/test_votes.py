"""A host that invents cards has the weight of one host."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import numpy as np
import pytest

from gpufleet.catalog import yardstick
from gpufleet.yardstick import counts, votes
from gpufleet.yardstick.analysis import analyse_both
from gpufleet.yardstick.values import Budget, Finding, Line

NIGHTS, SICK = 30, "good3-3"
KIND = yardstick.kinds()["*.tflops"]
# By card and night, the factor of a value that a liar reports.
Lie = Callable[[random.Random, int], float]


def reported(fake: int, lie: Lie, *, sick: bool, declared: int | None = None) -> list[Finding]:
    """The findings that fail in a fleet of 20 hosts: one has lost a card's speed, one lies."""
    chance = random.Random(1)

    def host(name: str, cards: int, factor: Lie) -> list[Line]:
        found = []
        for card in range(cards):
            values = [
                50 * (1 + chance.gauss(0, 0.003)) * factor(chance, night) for night in range(NIGHTS)
            ]
            found.append(
                Line(name, f"{name}-{card}", "toolkit.11.8.tflops", ("H100",) * NIGHTS, values)
            )
        return found

    lines = [line for each in range(20) for line in host(f"good{each}", 8, lambda *_: 1.0)]
    lines += host("liar", fake, lie)
    if sick:
        (position,) = (at for at, line in enumerate(lines) if line.card == SICK)
        known = lines[position]
        slow = [
            value and value * (0.8 if night >= 20 else 1)
            for night, value in enumerate(known.values)
        ]
        lines[position] = Line(known.host, known.card, known.measure, known.groups, slow)
    if declared is not None:
        lines = votes.limited(lines, {"liar": declared})
    found = analyse_both(KIND, lines, Budget(1.0, 21, 1, len(lines), 1))[1].findings
    return [each for each in found if each.fails and each.host != "liar"]


def noisy(chance: random.Random, night: int) -> float:
    return 1 + chance.gauss(0, 0.3)


def rising(chance: random.Random, night: int) -> float:
    return 1.2 if night >= NIGHTS - 3 else 1.0


def falling(chance: random.Random, night: int) -> float:
    return 0.8 if night >= NIGHTS - 3 else 1.0


def alternating(chance: random.Random, night: int) -> float:
    return 2.0 if night % 2 else 0.5


def falling_with_the_sick_card(chance: random.Random, night: int) -> float:
    return 0.8 if night >= 20 else 1.0


LIES = [noisy, rising, falling, alternating, falling_with_the_sick_card]


@pytest.mark.parametrize("declared", [None, 8])
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("fake", [8, 64, 480])
def test_cards_that_a_host_invents_hide_no_sick_card(
    fake: int, lie: Lie, declared: int | None
) -> None:
    found = reported(fake, lie, sick=True, declared=declared)
    assert [(each.host, each.card) for each in found] == [("good3", SICK)]


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("fake", [8, 64, 480])
def test_cards_that_a_host_invents_make_no_finding_about_others(fake: int, lie: Lie) -> None:
    assert reported(fake, lie, sick=False) == []


@pytest.mark.parametrize("invented", [10.0, 1e6])
@pytest.mark.parametrize("fake", [8, 64, 480])
def test_errors_that_a_host_invents_hide_no_card_whose_errors_rise(
    fake: int, invented: float
) -> None:
    chance = random.Random(2)
    nights = counts.WINDOW - 1
    lines = [
        Line(
            host,
            f"{host}-{card}",
            "pcie_replays",
            ("H100",) * nights,
            [*(chance.choice([0.0, 0.0, 0.0, 1.0]) for _ in range(nights - 1)), 0.0],
        )
        for host in (f"good{number}" for number in range(20))
        for card in range(8)
    ]
    sick = lines[27]
    lines[27] = Line(sick.host, sick.card, sick.measure, sick.groups, [*sick.values[:-1], 40000.0])
    lines += [
        Line("liar", f"liar-{card}", "pcie_replays", ("H100",) * nights, [invented] * nights)
        for card in range(fake)
    ]
    found = counts.rises(lines, Budget(1.0, 21, 1, len(lines), 1))
    assert [(each.card, each.fails) for each in found if each.host != "liar"] == [("good3-3", True)]


@pytest.mark.parametrize(
    ("declared", "invented", "compared"),
    [(None, 8, 8), (None, 64, 16), (None, 2000, 16), (8, 480, 8), (1, 480, 1), (56, 56, 56)],
)
def test_a_host_has_as_many_cards_as_declared(
    declared: int | None, invented: int, compared: int
) -> None:
    lines = [
        Line(name, f"{name}-{card}", "x.tflops", ("H100",), [50.0])
        for name, cards in (("honest", 8), ("liar", invented))
        for card in range(cards)
    ]
    found = votes.limited(lines, {} if declared is None else {"liar": declared})
    assert sum(line.host == "honest" for line in found) == 8
    assert sum(line.host == "liar" for line in found) == compared


def test_a_card_that_was_replaced_takes_the_place_of_none_that_is_there() -> None:
    before, now = [50.0, 50.0, None], [None, 50.0, 50.0]
    lines = [
        Line("gpu01", f"GPU-{card}", "x.tflops", ("H100",) * 3, before if card == 2 else now)
        for card in range(9)
    ]
    found = votes.limited(lines, {"gpu01": 8})
    assert [line.card for line in found] == [f"GPU-{card}" for card in range(9) if card != 2]


@pytest.mark.parametrize("cards", [1, 3, 8])
@pytest.mark.parametrize("hosts", [1, 2, 7, 20])
def test_hosts_with_as_many_cards_have_the_plain_median(hosts: int, cards: int) -> None:
    chance = random.Random(hosts * cards)
    values = [chance.gauss(0, 1) for _ in range(hosts * cards)]
    names = [f"gpu{position % hosts}" for position in range(hosts * cards)]
    assert votes.median_of_hosts(values, names) == statistics.median(values)


def test_each_host_has_the_same_weight() -> None:
    owners = np.array([0, 0, 1, 2, 2, 2, 2])
    assert votes.weights(owners).tolist() == [0.5, 0.5, 1, 0.25, 0.25, 0.25, 0.25]
    assert votes.median([1, 1, 2, 3, 3, 3, 3], owners) == 2
    assert votes.median([1, 2, 9, 9, 9, 9], np.array([0, 1, 2, 2, 2, 2])) == 2
    # Two hosts that differ: the middle between them.
    assert votes.median([1, 2, 2, 2], np.array([0, 1, 1, 1])) == 1.5
