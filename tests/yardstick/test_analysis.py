"""Cards that become slow are named, healthy ones are not, and groups have one finding."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from gpufleet.yardstick import fit
from gpufleet.yardstick.analysis import analyse
from gpufleet.yardstick.means import means
from gpufleet.yardstick.values import ALL, Analysis, Budget, Line
from tests.support.sibling_lines import (
    HEAT,
    HOSTS,
    NIGHTS,
    PER_HOST,
    SPEED,
    Change,
    compared,
    lines,
    parted,
    unchanged,
)


def test_a_healthy_fleet_has_no_finding() -> None:
    found = compared(SPEED, unchanged)
    assert [each for each in found.findings if each.fails] == []
    assert sum(card != ALL for _, card, _ in found.compared) == HOSTS * PER_HOST
    assert sum(card == ALL for _, card, _ in found.compared) == HOSTS
    assert found.judged == found.compared
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


@pytest.mark.parametrize(("per_host", "names"), [(4, [ALL]), (2, [ALL]), (1, ["card8"])])
def test_a_slow_host_is_one_finding(per_host: int, names: list[str]) -> None:
    found = compared(
        SPEED,
        lambda card, night, value: (
            value * (0.9 if card // per_host == 8 // per_host and night >= 46 else 1)
        ),
        per_host=per_host,
    )
    failing = [each for each in found.findings if each.fails]
    assert [each.card for each in failing] == names
    assert {(each.method, each.host) for each in failing} == {("shift", f"host{8 // per_host}")}


def test_a_card_is_named_in_a_room_that_slows_down() -> None:
    """It lost no more than twice what its neighbours lost; only those say that it is slower."""

    def hot(card: int, night: int, value: float) -> float:
        return (
            value
            * (0.95 if card < 20 and night >= 44 else 1)
            * (0.95 if card == 9 and night >= 46 else 1)
        )

    failing = [each for each in compared(SPEED, hot).findings if each.fails]
    assert {(each.method, each.card) for each in failing} == {("shared", ALL), ("shift", "card9")}


def test_a_host_that_is_loaded_when_its_room_recovers_is_not_named_at_once() -> None:
    """Its nights in the hot room were not its own."""

    def loaded(until: int) -> list[str]:
        found = compared(
            SPEED,
            lambda card, night, value: (
                value
                * (
                    0.9
                    if (card < 20 and 38 <= night < until) or (card < 4 and night >= until)
                    else 1
                )
            ),
        )
        return [each.host for each in found.findings if each.fails and each.method == "shift"]

    assert loaded(NIGHTS - 2) == []
    assert loaded(NIGHTS - 4) == ["host0"]


def test_what_hosts_share_explains_a_measure_in_which_they_lost_as_much() -> None:
    """Four hosts are slow in one measure, and so many of them in another one."""

    def named(hosts: int) -> set[str]:
        def slow(hosts: int) -> Change:
            return lambda card, night, value: (
                value * (0.93 if card < hosts * PER_HOST and night >= 45 else 1)
            )

        known = [*lines(slow(4)), *lines(slow(hosts), measure="fp16", seed=6)]
        findings = analyse(SPEED, known, Budget(1, HOSTS, 1, len(known), 2)).findings
        assert {(each.method, each.measure) for each in findings if each.hosts} >= {
            ("shared", "fp32")
        }
        return {each.host for each in findings if each.fails and each.host}

    # Too few of them for a finding of their own measure.
    assert named(3) == set()
    assert named(1) == {"host0"}


def test_hosts_that_became_slower_together_are_one_finding() -> None:
    found = compared(
        SPEED, lambda card, night, value: value * (0.9 if card < 20 and night >= 45 else 1)
    )
    (finding,) = (each for each in found.findings if each.fails)
    assert (finding.method, finding.hosts) == ("shared", tuple(f"host{each}" for each in range(5)))


def test_hosts_of_several_groups_that_became_slower_together_are_not_named_one_by_one() -> None:
    """Two hosts of each model stand in the hot room: too few for each group alone."""
    known = [
        Line(
            line.host,
            line.card,
            line.measure,
            (f"model {number // PER_HOST % 3}",) * NIGHTS,
            line.values,
        )
        for number, line in enumerate(
            lines(
                lambda card, night, value: value * (0.92 if card < 24 and night >= 45 else 1),
                cards=2 * HOSTS * PER_HOST,
            )
        )
    ]
    found = analyse(SPEED, known, Budget(1, 2 * HOSTS, 4, 200, 4)).findings
    assert {each.method for each in found if each.fails} == {"shared"}
    assert {host for each in found for host in each.hosts} == {f"host{each}" for each in range(6)}


def test_a_loss_in_the_noise_of_each_measure_is_found_in_their_mean() -> None:
    def slow(card: int, night: int, value: float) -> float:
        return value * (0.95 if card == 9 and night >= NIGHTS - 3 else 1)

    several = [
        line
        for number, measure in enumerate(("fp32", "fp16", "int8", "fp64", "bf16"))
        for line in lines(slow, noise=0.025, measure=measure, seed=number)
    ]
    budget = Budget(1, HOSTS, 1, len(several), 5)
    for number in range(0, len(several), HOSTS * PER_HOST):
        alone = analyse(SPEED, several[number : number + HOSTS * PER_HOST], budget)
        assert [each for each in alone.findings if each.fails] == []
    found = analyse(SPEED, several, budget)
    (finding,) = (each for each in found.findings if each.fails)
    assert (finding.measure, finding.card, finding.nights) == ("mean throughput", "card9", 3)
    assert finding.change == pytest.approx(-0.05, abs=0.015)
    # It is shown in the distribution of each measure.
    assert [spread.measure for spread in found.spreads if finding in found.of(spread)] == [
        "fp32",
        "fp16",
        "int8",
        "fp64",
        "bf16",
    ]


def test_a_night_without_one_of_the_measures_has_no_mean() -> None:
    """The other measure alone differs by the card's permanent offset in the missing one."""
    both = lines(unchanged), lines(unchanged, measure="fp16", seed=6)
    residuals = [fit.oriented(SPEED, each) for each in both]
    residuals[1][9, 3] = math.nan
    several, rows = means(SPEED, [*zip(both, residuals, strict=True)])
    assert [line.card for line in several] == [line.card for line in both[0]]
    assert [*zip(*np.nonzero(np.isnan(rows)), strict=True)] == [(9, 3)]
    assert rows[9, 4] == pytest.approx((residuals[0][9, 4] + residuals[1][9, 4]) / 2)
    assert means(SPEED, [(both[0], residuals[0])])[0] == []


@pytest.mark.parametrize("per_host", range(2, 9))
def test_what_more_than_half_of_a_hosts_cards_lost_is_the_hosts_and_not_the_cards(
    per_host: int,
) -> None:
    for slow in range(per_host + 1):

        def change(card: int, night: int, value: float, slow: int = slow) -> float:
            return value * (0.92 if card < slow and night == NIGHTS - 1 else 1)

        known = lines(change, cards=per_host, per_host=per_host, noise=0.001)
        (_, own), (_, (host,)) = parted(known, fit.oriented(SPEED, known))
        rows = own[:, -1] - np.nanmedian(own[:, :-1], axis=1)
        is_hosts = slow > per_host / 2
        assert (host[-1] < -0.07) == is_hosts, slow
        assert [bool(each < -0.07) for each in rows[:slow]] == [not is_hosts] * slow
        assert [bool(np.isnan(each)) for each in rows[:slow]] == [is_hosts] * slow
        assert not (rows[slow:] < -0.02).any()


def test_what_neighbours_gain_is_no_loss_of_a_card() -> None:
    """Three of its neighbours were slow, and were repaired."""
    found = compared(
        SPEED, lambda card, night, value: value * (0.9 if 8 <= card < 11 and night < 42 else 1)
    )
    assert [each for each in found.findings if each.fails and each.card == "card11"] == []


def test_nights_in_which_neighbours_are_as_slow_tell_nothing_of_a_card() -> None:
    def change(card: int, night: int, value: float) -> float:
        slow = (card == 9 and night >= 42) or (8 <= card < 12 and night >= NIGHTS - 2)
        return value * (0.92 if slow else 1)

    found = compared(SPEED, change)
    assert ("host2", "card9", "fp32") in found.compared - found.judged
    assert ("host2", "card8", "fp32") not in found.judged
    # What was found of it holds on, and nobody else is named.
    assert [each.card for each in found.findings if each.fails] == ["card9"]


def test_a_host_some_of_whose_cards_stay_slow_has_not_recovered() -> None:
    """Three of four cards were slow, and one of them was repaired tonight."""

    def change(card: int, night: int, value: float) -> float:
        slow = 8 <= card < 11 and night >= 42 and not (card == 10 and night == NIGHTS - 1)
        return value * (0.92 if slow else 1)

    found = compared(SPEED, change)
    assert ("host2", ALL, "fp32") in found.compared - found.judged
    assert [each.card for each in found.findings if each.fails] == [ALL]


@pytest.mark.parametrize("slow", [2, 3])
def test_a_loss_is_named_where_cards_are_not_measured_now_and_then(slow: int) -> None:
    """Whose it is does not change from night to night with the cards that are measured."""
    chance = random.Random(2)
    known = [
        Line(
            line.host,
            line.card,
            line.measure,
            line.groups,
            [value if chance.random() > 0.1 else None for value in line.values],
        )
        for line in lines(
            lambda card, night, value: value * (0.9 if 6 <= card < 6 + slow and night >= 43 else 1),
            per_host=3,
        )
    ]
    found = analyse(SPEED, known, Budget(1, HOSTS, 4, 200, 4)).findings
    assert {each.host for each in found if each.fails} == {"host2"}


def test_a_host_is_judged_by_the_cards_that_it_has() -> None:
    """Its first card was replaced ten nights ago, and another one is not measured any more."""
    known = lines(lambda card, night, value: value * (0.85 if card < 4 and night >= 42 else 1))
    gone = ("H100, driver 550",) * 40 + ("",) * 10
    values = [*known[0].values[:40], *[None] * 10]
    known[0] = Line("host0", "card0", "fp32", gone, values)
    known.append(Line("host0", "new", "fp32", known[1].groups, [None] * 40 + [50.0] * 10))
    known[1] = Line("host0", "card1", "fp32", known[1].groups, [*known[1].values[:45], *[None] * 5])
    found = analyse(SPEED, known, Budget(1, HOSTS, 4, 200, 4))
    assert {(each.host, each.card) for each in found.findings if each.fails} == {("host0", ALL)}


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
