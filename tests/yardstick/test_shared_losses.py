"""Whose a loss is: that of a card, of its host, or of many hosts."""

from __future__ import annotations

import numpy as np
import pytest

from gpufleet.yardstick import fit, shifts
from gpufleet.yardstick.analysis import analyse, analyse_both
from gpufleet.yardstick.values import ALL, Budget, Finding, Line
from tests.support.sibling_lines import (
    HOSTS,
    NIGHTS,
    PER_HOST,
    SPEED,
    Change,
    compared,
    lines,
    parted,
)

MANY_HOSTS = 30


def failing(change: Change, hosts: int = MANY_HOSTS, seed: int = 5) -> list[Finding]:
    """The findings that fail in a fleet of so many hosts."""
    return failing_of(lines(change, cards=hosts * PER_HOST, seed=seed))


def failing_of(known: list[Line]) -> list[Finding]:
    """The findings that fail of these lines."""
    hosts = len({line.host for line in known})
    found = analyse(SPEED, known, Budget(1, hosts, 4, len(known) * 4, 4)).findings
    return [each for each in found if each.fails]


def own_losses(change: Change, per_host: int = PER_HOST, noise: float = 0.0005) -> fit.Rows:
    """The losses of one host's cards themselves, as differences from their usual value."""
    known = lines(change, cards=per_host, per_host=per_host, noise=noise)
    (_, own), _ = parted(known, fit.oriented(SPEED, known))
    return own - np.nanmedian(own[:, :20], axis=1)[:, None]


# -- the cards of one host -------------------------------------------------------------------------


def test_a_loss_of_neighbours_below_the_least_one_is_not_subtracted() -> None:
    own = own_losses(lambda card, night, value: value * (0.99 if night >= 44 else 1))
    assert own[:, 44:] == pytest.approx(np.log(0.99), abs=0.003)


def test_a_card_that_lost_more_than_its_neighbours_is_not_hidden_by_them() -> None:
    def change(most: float) -> Change:
        return lambda card, night, value: (
            value * ((most if card == 0 else 0.96) if night >= 44 else 1)
        )

    assert own_losses(change(0.88))[0, 44:] == pytest.approx(np.log(0.88 / 0.96), abs=0.003)
    # It lost less than they did: whether it has lost anything itself cannot be said.
    assert np.isnan(own_losses(change(0.94))[0, 44:]).all()


def test_nights_of_the_past_are_never_hidden() -> None:
    own = own_losses(lambda card, night, value: value * (0.92 if 20 <= night < 30 else 1))
    assert not np.isnan(own).any()
    assert own[:, 20:30] == pytest.approx(0, abs=0.003)


def test_a_card_with_few_nights_is_no_neighbour() -> None:
    """The usual value of such a card is not known: its first nights were slow ones."""
    known = lines(lambda card, night, value: value, cards=2, per_host=2, noise=0.0005)
    new = [None] * 37 + [30.0] * 3 + [50.0] * 10
    known[1] = Line("host0", "card1", "fp32", known[1].groups, new)
    (_, own), (hosts, _) = parted(known, fit.oriented(SPEED, known))
    assert own[0] - np.median(own[0]) == pytest.approx(0, abs=0.003)
    assert hosts == []


def test_a_host_with_one_card_left_is_judged_as_that_card() -> None:
    known = lines(
        lambda card, night, value: value * (0.9 if card == 8 and night >= 45 else 1), per_host=2
    )
    gone = ("H100, driver 550",) * 40 + ("",) * 10
    known[9] = Line("host4", "card9", "fp32", gone, [*known[9].values[:40], *[None] * 10])
    found = analyse(SPEED, known, Budget(1, 24, 4, 200, 4)).findings
    assert [(each.host, each.card) for each in found if each.fails] == [("host4", "card8")]


# -- many hosts ------------------------------------------------------------------------------------


def test_single_cards_of_several_hosts_share_nothing() -> None:
    """Each of four hosts has one slow card of four: they may be broken."""
    found = failing(
        lambda card, night, value: (
            value * (0.9 if card < 16 and card % 4 == 0 and night > 44 else 1)
        )
    )
    assert {(each.method, each.host, each.card) for each in found} == {
        ("shift", f"host{number}", f"card{4 * number}") for number in range(4)
    }


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_two_rooms_that_are_hot_at_once_are_one_finding(seed: int) -> None:
    def rooms(card: int, night: int, value: float) -> float:
        if card < 20 and night >= 42:
            return value * 0.92
        return value * (0.95 if 20 <= card < 40 and night >= 44 else 1)

    (found,) = failing(rooms, seed=seed)
    assert found.hosts == tuple(sorted(f"host{number}" for number in range(10)))


def test_a_host_in_a_hot_room_that_lost_far_more_is_named() -> None:
    found = failing(
        lambda card, night, value: (
            value * ((0.7 if card < 4 else 0.93) if card < 24 and night >= 45 else 1)
        )
    )
    assert {(each.method, each.host) for each in found} == {("shared", ""), ("shift", "host0")}
    (shared,) = (each for each in found if each.hosts)
    assert shared.hosts == tuple(f"host{number}" for number in range(1, 6))


@pytest.mark.parametrize("per_host", [1, 4])
@pytest.mark.parametrize(
    ("loss", "nights", "named"), [(0.04, 3, False), (0.08, 3, True), (0.04, 5, True)]
)
def test_a_job_of_three_nights_slows_a_host_as_much_as_one_of_a_night(
    loss: float, nights: int, named: bool, per_host: int
) -> None:
    """A month has many jobs of one night, and hardly one of three."""

    def jobs(card: int, night: int, value: float) -> float:
        host = card // per_host
        if host == 7:
            return value * (1 - loss * (night >= NIGHTS - nights))
        return value * (0.96 if night % 30 == host else 1)

    found = failing_of(lines(jobs, cards=MANY_HOSTS * per_host, per_host=per_host))
    assert {each.host for each in found} == ({"host7"} if named else set())


def test_hosts_that_lose_as_much_as_jobs_cost_together_are_one_finding_in_the_third_night() -> None:
    def rack(card: int, night: int, value: float) -> float:
        host = card // PER_HOST
        lost = night >= NIGHTS - 3 if host < 8 else night % 30 == host
        return value * (0.96 if lost else 1)

    (found,) = failing(rack)
    assert found.hosts == tuple(f"host{number}" for number in range(8))


def test_what_many_hosts_lost_in_one_night_is_no_example_of_a_job() -> None:
    def outage(card: int, night: int, value: float) -> float:
        host = card // PER_HOST
        if host == 20:
            return value * (0.9 if night >= NIGHTS - 3 else 1)
        return value * (0.6 if host < 14 and night == 30 else 1)

    assert {(each.host, each.card) for each in failing(outage)} == {("host20", ALL)}


@pytest.mark.parametrize("nights", [5, 6, 7])
def test_a_host_that_lost_more_than_twice_as_much_as_its_room_is_named(nights: int) -> None:
    def rooms(card: int, night: int, value: float) -> float:
        value *= 0.96 if card < 32 and night >= NIGHTS - 8 else 1
        return value * (0.94 if card < 4 and night >= NIGHTS - nights else 1)

    found = failing(rooms)
    assert {(each.method, each.host) for each in found} == {("shared", ""), ("shift", "host0")}


@pytest.mark.parametrize(("loss", "named"), [(0.04, set()), (0.15, {("shift", "host0")})])
def test_a_job_in_a_host_of_a_hot_room_is_not_named_for_what_the_room_lost(
    loss: float, named: set[tuple[str, str]]
) -> None:
    """Jobs of a night slowed other hosts by as much."""

    def rooms(card: int, night: int, value: float) -> float:
        host = card // 8
        value *= 0.97 if host < 8 and night >= NIGHTS - 7 else 1
        value *= 0.96 if night == host + 10 else 1
        return value * (1 - loss * (host == 0 and night >= NIGHTS - 4))

    found = failing_of(lines(rooms, cards=MANY_HOSTS * 8, per_host=8))
    assert {(each.method, each.host) for each in found} == {("shared", "")} | named
    assert [each.hosts for each in found if each.hosts] == [
        tuple(f"host{number}" for number in range(len(named), 8))
    ]


@pytest.mark.parametrize(("loss", "first"), [(0.2, 45), (0.07, 40)])
def test_what_hosts_share_explains_no_larger_or_earlier_loss_in_another_measure(
    loss: float, first: int
) -> None:
    """Six hosts are slow in one measure since five nights, and host0 in another one too."""
    known = [
        *lines(
            lambda card, night, value: value * (0.93 if card < 24 and night >= 45 else 1),
            cards=MANY_HOSTS * PER_HOST,
        ),
        *lines(
            lambda card, night, value: value * (1 - loss * (card < 4 and night >= first)),
            cards=MANY_HOSTS * PER_HOST,
            measure="fp16",
            seed=6,
        ),
    ]
    found = analyse(SPEED, known, Budget(1, MANY_HOSTS, 1, len(known), 2)).findings
    assert ("fp16", "host0") in {(each.measure, each.host) for each in found if each.fails}


@pytest.mark.parametrize(("others", "named"), [(1, True), (2, False)])
def test_most_of_the_others_lost_as_much_where_a_loss_is_explained(
    others: int, named: bool
) -> None:
    """Four hosts share a loss in one measure. In another one host0 and so many of them are slow."""

    def slow(hosts: int) -> Change:
        return lambda card, night, value: value * (0.93 if card < 4 * hosts and night > 44 else 1)

    cards = MANY_HOSTS * PER_HOST
    known = [
        *lines(slow(4), cards=cards),
        *lines(slow(1 + others), cards=cards, measure="fp16", seed=6),
    ]
    found = analyse(SPEED, known, Budget(1, MANY_HOSTS, 1, len(known), 2)).findings
    assert any(each.fails and each.measure == "fp16" for each in found) == named


@pytest.mark.parametrize("left", range(7))
def test_hosts_that_are_as_slow_when_their_room_recovers_still_share_it(left: int) -> None:
    def room(card: int, night: int, value: float) -> float:
        slow = card < 24 and night >= 42 and (night < NIGHTS - 1 or card < 4 * left)
        return value * (0.9 if slow else 1)

    found = failing(room)
    assert [each.method for each in found] == ["shared"] * bool(left)
    assert [each.hosts for each in found] == [
        tuple(f"host{number}" for number in range(left)) for _ in found
    ]


@pytest.mark.parametrize("nights", [*range(3, 40, 4)])
def test_what_has_changed_and_is_permanent_is_said_once(nights: int) -> None:
    found = compared(
        SPEED,
        lambda card, night, value: value * (0.8 if card == 9 and night >= NIGHTS - nights else 1),
        HOSTS * PER_HOST,
    ).findings
    named = [(each.host, each.card, each.measure) for each in found if each.fails]
    assert named == [("host2", "card9", "fp32")]


@pytest.mark.parametrize("per_host", [2, 4, 8])
@pytest.mark.parametrize("nights", [35, NIGHTS])
def test_a_host_that_is_permanently_slower_is_one_finding(per_host: int, nights: int) -> None:
    """Its cards hide each other among the cards of the fleet."""
    known = lines(
        lambda card, night, value: (
            value * (0.8 if card // per_host == 2 and night >= NIGHTS - nights else 1)
        ),
        cards=MANY_HOSTS * per_host,
        per_host=per_host,
    )
    found = analyse(SPEED, known, Budget(1, MANY_HOSTS, 4, len(known) * 4, 4)).findings
    assert [(each.method, each.host, each.card) for each in found if each.fails] == [
        ("level", "host2", ALL)
    ]


@pytest.mark.parametrize(("per_host", "slow"), [(2, 1), (4, 2), (8, 4)])
def test_permanently_slow_cards_are_named_where_they_are_not_most_of_their_host(
    per_host: int, slow: int
) -> None:
    known = lines(
        lambda card, night, value: value * (0.75 if card in range(16, 16 + slow) else 1),
        cards=MANY_HOSTS * per_host,
        per_host=per_host,
    )
    found = analyse(SPEED, known, Budget(1, MANY_HOSTS, 4, len(known) * 4, 4)).findings
    assert {each.card for each in found if each.fails} == {
        f"card{card}" for card in range(16, 16 + slow)
    }


@pytest.mark.parametrize("hosts", [4, 8])
def test_a_permanently_slow_host_is_named_among_few(hosts: int) -> None:
    known = lines(
        lambda card, night, value: value * (0.75 if card < 8 else 1), cards=hosts * 8, per_host=8
    )
    found = analyse(SPEED, known, Budget(1, hosts, 4, len(known) * 4, 4)).findings
    assert [(each.host, each.card) for each in found if each.fails] == [("host0", ALL)]


def test_hosts_that_were_loaded_before_their_room_became_hot_share_its_loss() -> None:
    """Their runs are longer than those of most, as another room is hot since a few nights."""

    def rooms(card: int, night: int, value: float) -> float:
        if card < 4:
            return value * (0.95 if night >= NIGHTS - 10 else 1)
        if card < 24:
            return value * (0.95 if night >= NIGHTS - 9 else 1)
        return value * (0.95 if 24 <= card < 72 and night >= NIGHTS - 4 else 1)

    found = failing(rooms, hosts=60)
    assert {(each.method, each.host) for each in found} == {("shared", "")}
    assert set(found[0].hosts) == {f"host{number}" for number in range(18)}


@pytest.mark.parametrize("per_host", [1, 2, 4, 8])
def test_two_permanently_slow_hosts_do_not_hide_each_other(per_host: int) -> None:
    known = lines(
        lambda card, night, value: value * (0.8 if card // per_host in {2, 7} else 1),
        cards=MANY_HOSTS * per_host,
        per_host=per_host,
    )
    found = analyse(SPEED, known, Budget(1, MANY_HOSTS, 4, len(known) * 4, 4)).findings
    assert {each.host for each in found if each.fails} == {"host2", "host7"}


@pytest.mark.parametrize("extra", [0.965, 0.8])
def test_a_permanently_slow_card_stays_named_when_it_or_its_host_loses_more(extra: float) -> None:
    def change(whole_host: bool) -> Change:
        return lambda card, night, value: (
            value
            * (0.65 if card == 9 else 1)
            * (extra if (card == 9 or (whole_host and 8 <= card < 12)) and night >= 46 else 1)
        )

    for whole_host in (False, True):
        found = compared(SPEED, change(whole_host)).findings
        assert "card9" in {each.card for each in found if each.fails}


@pytest.mark.parametrize("nights", range(3, 27))
@pytest.mark.parametrize("per_host", [2, 4, 8])
def test_the_cards_of_a_slow_host_are_not_named_one_by_one_while_its_loss_lasts(
    nights: int, per_host: int
) -> None:
    found = failing_of(
        lines(
            lambda card, night, value: (
                value * (0.9 if card // per_host == 2 and night >= NIGHTS - nights else 1)
            ),
            cards=MANY_HOSTS * per_host,
            per_host=per_host,
        )
    )
    assert {(each.host, each.card) for each in found} == {("host2", ALL)}


def test_a_run_of_ten_nights_is_no_news_in_its_eleventh() -> None:
    """The night before had ten nights as well."""
    known = lines(
        # Losses of a week made the limits of short runs wide.
        lambda card, night, value: (
            value
            * (0.93 if card < 20 and 24 <= night < 32 else 1)
            * (0.945 if card // PER_HOST == 9 and night >= NIGHTS - 11 else 1)
        ),
        cards=MANY_HOSTS * PER_HOST,
    )
    budget = Budget(1, MANY_HOSTS, 4, len(known) * 4, 4)
    before, tonight = (
        {(each.host, each.card) for each in found.findings if each.fails}
        for found in analyse_both(SPEED, known, budget)
    )
    assert before == tonight == {("host9", ALL)}


@pytest.mark.parametrize(("nights", "near"), [(4, False), (5, True), (6, True)])
def test_hosts_share_what_a_loaded_one_had_a_night_longer(nights: int, near: bool) -> None:
    """The limit of seven nights is far below that of five, which loads have made wide."""
    limits = dict(zip((3, 5, 7, 10), (9.0, 6.0, 2.2, 2.1), strict=True))
    groups = ("H100, driver 550",) * NIGHTS
    known = [Line(f"host{number}", ALL, "fp32", groups, ()) for number in range(6)]
    tested = np.zeros((6, 10))
    tested[:, -nights:] = tested[0, -7:] = -2.5
    noises = shifts.Noises(known, np.full(6, 0.01), tested, tested, 10)
    found = shifts.shifts(SPEED, [noises], shifts.Limits(limits, limits, limits))
    assert [(each.noise.line.host, each.grade) for each in found if each.grade == "fails"] == [
        ("host0", "fails")
    ]
    assert [each.grade for each in found if each.grade == "near"] == ["near"] * (5 * near)
