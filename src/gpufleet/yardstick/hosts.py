"""Which losses cards share with their hosts, and which are their own.

A loaded host or a hot room slows all cards of a host about as much, and a faulty card is slower
than its neighbours. So what a card's neighbours lost as well is not its own, and what most cards of
a host have in common is judged as one value of the host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Sequence

import numpy as np

from .fit import Positions, Rows, counted, medians
from .shifts import DIFFERENCE_TO_SIGMA, LEAST_OFFSET_NIGHTS, Parts
from .values import ALL, Kind, Line

# Neighbours lost something where it is clearer than so many of their usual deviations.
CLEAR = 3.0
# An unmeasured card is taken as in its last night for so many nights.
FILLED = 5
# So many cards of a host have little noise in common: what is left is their room and load.
MANY = 6
# Lines of one measure, and a row of residuals for each.
Lined = tuple[list[Line], Rows]


def with_several_cards(lines: Collection[Line]) -> set[str]:
    """The hosts that have two cards or more tonight, in whichever measure."""
    cards: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        if line.groups[-1]:
            cards[line.host].add(line.card)
    return {host for host, own in cards.items() if len(own) > 1}


def divided(
    kind: Kind,
    lines: Sequence[Line],
    residuals: Rows,
    nights: Parts,
    *,
    several: Container[str],
    groups: Container[str],
) -> tuple[Lined, Lined]:
    """The cards without what their neighbours lost as well, and the hosts.

    `several`: the hosts with several cards; a card that is alone is among the hosts, as it is.
    `groups`: those that are compared tonight; lines of others are left out.
    """
    members: dict[str, list[int]] = defaultdict(list)
    alone: list[int] = []
    for position, line in enumerate(lines):
        if line.groups[-1] in groups:
            (members[line.host] if line.host in several else alone).append(position)
    past = slice(nights.reference.start, nights.reference.stop)
    reference = residuals[:, past]
    usual = np.where(counted(reference) >= LEAST_OFFSET_NIGHTS, medians(reference), np.nan)
    shifts = residuals - usual[:, None]
    own = residuals.copy()
    hosts = np.empty((len(members), residuals.shape[1]))
    by_size: dict[int, list[int]] = defaultdict(list)
    positions = [*members.values()]
    for number, cards in enumerate(positions):
        by_size[len(cards)].append(number)
    for numbers in by_size.values():
        alike = np.array([positions[number] for number in numbers])
        own[alike], hosts[numbers] = _divided(kind, own[alike], shifts[alike], nights)
    divided_cards = [position for cards in members.values() for position in cards]
    known = counted(hosts) > 0
    whole = [
        Line(host, ALL, lines[cards[0]].measure, _groups([lines[card] for card in cards]), ())
        for (host, cards), is_known in zip(members.items(), known, strict=True)
        if is_known
    ]
    return (
        ([lines[position] for position in divided_cards], own[divided_cards]),
        (
            whole + [lines[position] for position in alone],
            np.concatenate([hosts[known], residuals[alone]]),
        ),
    )


def _groups(lines: Sequence[Line]) -> tuple[str, ...]:
    """The groups of most cards."""
    ((tonight, _),) = Counter(line.groups[-1] for line in lines).most_common(1)
    return next(line.groups for line in lines if line.groups[-1] == tonight)


def _divided(kind: Kind, residuals: Rows, shifts: Rows, nights: Parts) -> tuple[Rows, Rows]:
    """The residuals of cards without what their neighbours lost, and those of their hosts.

    `residuals`, `shifts`: by host, card and night, of hosts with the same number of cards. The
    hosts are by host and night.
    """
    common, hosts = _common(shifts)
    past = common[..., nights.reference.start : nights.reference.stop]
    # A lasting change adds one difference of successive nights only.
    differences = np.abs(np.diff(past)).reshape(-1, max(0, past.shape[-1] - 1))
    spread = DIFFERENCE_TO_SIGMA * medians(differences).reshape(common.shape[:2])
    clear = np.maximum(kind.least_loss, CLEAR * spread)[..., None]
    shared = common < -clear
    # A gain of neighbours that were repaired is no loss of the card.
    little = (_known_cards(shifts) >= MANY)[:, None] & (common <= clear)
    # A card that did not lose as much in a night of the past gained nothing by that.
    lost = np.maximum(common, np.minimum(shifts, 0.0))
    lost[..., nights.tested.start :] = common[..., nights.tested.start :]
    own = residuals - np.where(shared, lost, np.where(little, common, 0.0))
    # A loss of neighbours hides a smaller loss of the card: that is no sign that it recovered. Nor
    # has a host recovered some of whose cards are as slow as it was.
    hidden = shared & (shifts - common > common)
    slow = (shifts < -2 * clear).any(axis=1) & (hosts > -clear.min(axis=1))
    hidden[..., : nights.tested.start] = slow[:, : nights.tested.start] = False
    return np.where(hidden, np.nan, own), np.where(slow, np.nan, hosts)


def _known_cards(rows: Rows) -> Positions:
    """How many cards are known, by host and night."""
    known: Positions = np.count_nonzero(~np.isnan(rows), axis=1)
    return known


def _common(shifts: Rows) -> tuple[Rows, Rows]:
    """The losses of each card's neighbours, and of its host, by night.

    More than half of the cards of a host lost as much as the host. More than half of all cards, the
    card included, lost as much as its neighbours if it did: so a loss is either that of the host or
    that of its cards. Which, depends on cards that are not measured in each night: they are taken
    as in their last night, else the answer would change from night to night.
    """
    filled = shifts.copy()
    for _ in range(FILLED):
        filled[..., 1:] = np.where(np.isnan(filled[..., 1:]), filled[..., :-1], filled[..., 1:])
    known = _known_cards(filled)
    ordered = np.sort(filled, axis=1)  # NaN last
    ranks = np.argsort(np.argsort(filled, axis=1), axis=1)

    def at(rank: Positions) -> Rows:
        """The loss at this rank among the cards of each host and night."""
        found: Rows = np.take_along_axis(
            ordered, np.clip(rank, 0, shifts.shape[1] - 1)[:, None], axis=1
        )
        return found

    half = known // 2
    middle = np.maximum(half - 1, 0)
    neighbours = np.where(middle[:, None] < ranks, at(middle), at(middle + 1))
    neighbours = np.where((known > 1)[:, None] & ~np.isnan(shifts), neighbours, 0.0)
    measured = (known > 1) & (_known_cards(shifts) > 0)
    return neighbours, np.where(measured, at(half)[:, 0], np.nan)
