"""Cards that become slow are named, healthy ones are not, and groups have one finding."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gpufleet.yardstick.analysis import analyse
from gpufleet.yardstick.values import Analysis, Budget, Kind, Line

SPEED = Kind("throughput", "lower", True, 0.02, 0.001)
HEAT = Kind("temperature", "higher", False, 5.0, 0.5)
NIGHTS, HOSTS, PER_HOST = 50, 12, 4
Change = Callable[[int, int, float], float]


def lines(
    change: Change, level: float = 50.0, cards: int = HOSTS * PER_HOST, noise: float = 0.008
) -> list[Line]:
    """Cards that differ by 2 %, and nights by `noise`; `change(card, night, value)` adds a fault."""
    chance = random.Random(5)
    groups = ("H100, driver 550",) * NIGHTS
    found = []
    for card in range(cards):
        usual = level * (1 + chance.gauss(0, 0.02))
        values = [
            change(card, night, usual * (1 + chance.gauss(0, noise))) for night in range(NIGHTS)
        ]
        found.append(Line(f"host{card // PER_HOST}", f"card{card}", "fp32", groups, values))
    return found


def compared(kind: Kind, change: Change, cards: int = HOSTS * PER_HOST) -> Analysis:
    level = 60.0 if kind is HEAT else 50.0
    return analyse(kind, lines(change, level, cards), Budget(1, HOSTS, 4, cards * 4, 4))


def unchanged(card: int, night: int, value: float) -> float:
    return value


def test_a_healthy_fleet_has_no_finding() -> None:
    found = compared(SPEED, unchanged)
    assert [each for each in found.findings if each.fails] == []
    assert len(found.compared) == HOSTS * PER_HOST
    assert [spread.group for spread in found.spreads] == ["H100, driver 550"]
    assert found.spreads[0].centre == pytest.approx(50, rel=0.02)


@pytest.mark.parametrize(("loss", "nights"), [(0.10, 3), (0.05, 7), (0.05, 10)])
def test_a_slow_card_is_named(loss: float, nights: int) -> None:
    found = compared(
        SPEED,
        lambda card, night, value: value * (1 - loss * (card == 9 and night >= NIGHTS - nights)),
    )
    (finding,) = (each for each in found.findings if each.fails)
    assert (finding.method, finding.host, finding.card) == ("shift", "host2", "card9")
    assert finding.change == pytest.approx(-loss, abs=0.02)
    assert finding.change < finding.bound < 0
    assert finding.nights >= 3
    assert finding.siblings == HOSTS * PER_HOST - 1


def test_one_slow_night_is_no_finding() -> None:
    found = compared(
        SPEED, lambda card, night, value: value * (0.7 if card == 9 and night == NIGHTS - 1 else 1)
    )
    assert [each for each in found.findings if each.fails] == []


def test_a_card_stays_named_for_a_month() -> None:
    found = compared(
        SPEED, lambda card, night, value: value * (0.9 if card == 9 and night >= 22 else 1)
    )
    assert [each.card for each in found.findings if each.fails] == ["card9"]


def test_a_recovered_card_is_not_named() -> None:
    found = compared(
        SPEED, lambda card, night, value: value * (0.9 if card == 9 and night < 49 else 1)
    )
    assert [each for each in found.findings if each.fails] == []


def test_a_faster_card_is_no_finding() -> None:
    found = compared(
        SPEED, lambda card, night, value: value * (1.2 if card == 9 and night >= 40 else 1)
    )
    assert [each for each in found.findings if each.fails] == []


def test_a_hot_card_is_named_in_degrees() -> None:
    found = compared(
        HEAT, lambda card, night, value: value + (15 if card == 9 and night >= 46 else 0)
    )
    (finding,) = (each for each in found.findings if each.fails)
    assert finding.card == "card9"
    assert finding.change == pytest.approx(15, abs=1.5)


def test_a_card_that_was_always_far_slower_is_named() -> None:
    found = compared(SPEED, lambda card, night, value: value * (0.7 if card == 9 else 1))
    (finding,) = (each for each in found.findings if each.fails)
    assert (finding.method, finding.card, finding.nights) == ("level", "card9", 0)


def test_a_group_that_became_slower_is_one_finding() -> None:
    found = compared(SPEED, lambda card, night, value: value * (0.9 if night >= 46 else 1))
    (finding,) = (each for each in found.findings if each.fails)
    assert (finding.method, finding.host, finding.nights) == ("group", "", 4)
    assert finding.change == pytest.approx(-0.1, abs=0.02)


def test_an_upgrade_that_made_cards_slower_is_one_finding_of_the_new_group() -> None:
    upgraded = ("H100, driver 550",) * 45 + ("H100, driver 560",) * 5
    known = [
        Line(line.host, line.card, line.measure, upgraded, line.values)
        for line in lines(lambda card, night, value: value * (0.9 if night >= 45 else 1))
    ]
    found = analyse(SPEED, known, Budget(1, HOSTS, 4, 200, 4))
    (finding,) = (each for each in found.findings if each.fails)
    assert (finding.method, finding.group) == ("group", "H100, driver 560")


def test_hosts_that_became_slower_together_are_one_finding() -> None:
    found = compared(
        SPEED, lambda card, night, value: value * (0.9 if card < 20 and night >= 45 else 1)
    )
    (finding,) = (each for each in found.findings if each.fails)
    assert (finding.method, finding.hosts) == ("shared", tuple(f"host{each}" for each in range(5)))


def test_fewer_than_eight_siblings_are_not_compared() -> None:
    found = compared(
        SPEED, lambda card, night, value: value * (0.5 if card == 3 and night > 40 else 1), cards=8
    )
    assert found == Analysis()


def test_few_nights_are_not_compared_with_the_past() -> None:
    known = [
        Line(line.host, line.card, line.measure, line.groups[-12:], line.values[-12:])
        for line in lines(unchanged)
    ]
    found = analyse(SPEED, known, Budget(1, HOSTS, 4, 200, 4))
    assert found.compared == set() and len(found.spreads) == 1


def test_a_card_that_was_not_measured_tonight_is_not_judged() -> None:
    known = lines(lambda card, night, value: value * (0.8 if card == 9 and night >= 40 else 1))
    known[9] = Line("host2", "card9", "fp32", known[9].groups, [*known[9].values[:-1], None])
    assert [
        each for each in analyse(SPEED, known, Budget(1, HOSTS, 4, 200, 4)).findings if each.fails
    ] == []
