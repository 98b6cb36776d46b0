"""A rise of errors is named the same night; the background of a fleet is not."""

from __future__ import annotations

import random

from gpufleet.yardstick.counts import growths, rises, rises_both
from gpufleet.yardstick.values import Budget, Line

BUDGET = Budget(1, 20, 4, 160, 4)


def lines(rises_by: dict[int, list[float]] | None = None, cards: int = 80) -> list[Line]:
    """Four of five cards without errors, others with some in a third of their nights."""
    chance = random.Random(2)
    groups = ("H100",) * 40
    found = []
    for card in range(cards):
        values = [
            float(card % 5 == 0 and chance.random() < 0.3) * chance.randint(1, 4) for _ in range(40)
        ]
        for night, more in enumerate((rises_by or {}).get(card, []), 1):
            values[-night] += more
        found.append(Line(f"host{card // 4}", f"card{card}", "corrected", groups, list(values)))
    return found


def named(known: list[Line]) -> list[tuple[str, int]]:
    return [(each.card, each.nights) for each in rises(known, BUDGET) if each.fails]


def test_new_errors_are_counted_between_readings() -> None:
    assert growths([None, 5, 5, 8, None, None, 14]) == [None, None, 0, 3, None, None, 2]


def test_a_smaller_counter_began_again_at_zero() -> None:
    assert growths([5, 2, 2, 0]) == [None, 2, 0, 0]


def test_a_counter_that_stays_has_no_new_errors() -> None:
    assert growths([5, 5, 5]) == [None, 0, 0]
    assert growths([None, None]) == [None, None]


def test_the_night_before_is_judged_by_the_same_limits() -> None:
    before, tonight = rises_both(lines({7: [0, 100]}), BUDGET)
    assert [each.card for each in before if each.fails] == ["card7"]
    assert tonight == []


def test_background_is_no_finding() -> None:
    assert named(lines()) == []


def test_a_rise_is_named_in_its_first_night() -> None:
    assert named(lines({7: [100]})) == [("card7", 1)]


def test_a_rise_that_is_over_is_not_named() -> None:
    assert named(lines({7: [0, 100]})) == []


def test_a_small_rise_is_named_in_its_third_night() -> None:
    assert named(lines({7: [6]})) == []
    assert named(lines({7: [6, 7, 6]})) == [("card7", 3)]


def test_one_error_is_no_finding() -> None:
    assert named(lines({7: [1]})) == []


def test_a_card_is_not_compared_without_siblings() -> None:
    assert rises(lines({7: [100]}, cards=8), BUDGET) == []
