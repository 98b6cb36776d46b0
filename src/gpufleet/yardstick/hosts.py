"""Which losses cards share with their hosts, and which are their own.

A loaded host or a hot room slows all cards of a host about as much, and a faulty card is slower
than its neighbours. So what a card's neighbours lost as well is not its own, and what most cards of
a host have in common is judged as one value of the host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Sequence

import numpy as np

from .fit import MAD_TO_SIGMA, Rows, counted, medians
from .shifts import LEAST_OFFSET_NIGHTS, Parts
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
    for number, cards in enumerate(members.values()):
        common, hosts[number] = _common(shifts[cards])
        spread = MAD_TO_SIGMA * medians(np.abs(common[:, past]))
        clear = np.maximum(kind.least_loss, CLEAR * spread)[:, None]
        shared = common < -clear
        # What neighbours gained, when they were repaired, is no loss of the card.
        little = (counted(shifts[cards].T) >= MANY) & (common <= clear)
        own[cards] -= np.where(shared | little, common, 0.0)
        # What neighbours lost hides a smaller loss of the card: that is no sign that it recovered.
        # Nor has a host recovered some of whose cards are as slow as it was.
        hidden = shared & (shifts[cards] - common > common)
        slow = (shifts[cards] < -2 * clear).any(axis=0) & (hosts[number] > -clear.min())
        hidden[:, : nights.tested.start] = slow[: nights.tested.start] = False
        own[cards] = np.where(hidden, np.nan, own[cards])
        hosts[number, slow] = np.nan
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


def _common(shifts: Rows) -> tuple[Rows, Rows]:
    """What the neighbours of each card lost, and what the host lost, by night.

    More than half of the cards of a host lost as much as the host. More than half of all cards, the
    card included, lost as much as its neighbours if it did: so a loss is either that of the host or
    that of its cards. Which, depends on cards that are not measured in each night: they are taken
    as in their last night, else the answer would change from night to night.
    """
    filled = shifts.copy()
    for _ in range(FILLED):
        filled[:, 1:] = np.where(np.isnan(filled[:, 1:]), filled[:, :-1], filled[:, 1:])
    known = counted(filled.T)
    ordered = np.sort(filled, axis=0)  # NaN last
    ranks = np.argsort(np.argsort(filled, axis=0), axis=0)
    night, half = np.arange(shifts.shape[1]), known // 2
    position = np.maximum(half - 1, 0)
    following = np.minimum(position + 1, len(shifts) - 1)
    neighbours = np.where(position < ranks, ordered[position, night], ordered[following, night])
    neighbours = np.where((known > 1) & ~np.isnan(shifts), neighbours, 0.0)
    measured = (known > 1) & (counted(shifts.T) > 0)
    host = ordered[np.minimum(half, len(shifts) - 1), night]
    return neighbours, np.where(measured, host, np.nan)
