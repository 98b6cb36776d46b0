"""Which losses cards share with their hosts, and which are their own.

A loaded host or a hot room slows all cards of a host about as much, and a faulty card is slower
than its neighbours. So what a card's neighbours lost as well is not its own, and what most cards of
a host have in common is judged as one value of the host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Sequence

import numpy as np

from .fit import MAD_TO_SIGMA, Rows, counted, medians
from .shifts import LEAST_OFFSET_NIGHTS, Parts
from .values import ALL, Kind, Line

# Neighbours lost something where it is clearer than so many of their usual deviations.
CLEAR = 3.0
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
        shared = common < -np.maximum(kind.least_loss, CLEAR * spread)[:, None]
        own[cards] -= np.where(shared, common, 0.0)
        # What neighbours lost hides a smaller loss of the card: that is no sign that it recovered.
        hidden = shared & (shifts[cards] - common > common)
        hidden[:, : nights.tested.start] = False
        own[cards] = np.where(hidden, np.nan, own[cards])
    divided_cards = [position for cards in members.values() for position in cards]
    whole = [
        Line(host, ALL, lines[cards[0]].measure, lines[cards[0]].groups, ())
        for host, cards in members.items()
    ]
    return (
        ([lines[position] for position in divided_cards], own[divided_cards]),
        (
            whole + [lines[position] for position in alone],
            np.concatenate([hosts, residuals[alone]]),
        ),
    )


def _common(shifts: Rows) -> tuple[Rows, Rows]:
    """What the neighbours of each card lost, and what the host lost, by night.

    More than half of the cards of a host lost as much as the host. More than half of all cards, the
    card included, lost as much as its neighbours if it did: so a loss is either that of the host or
    that of its cards. Without neighbours a card shares nothing; of a host less than half of whose
    cards are known, nothing is known.
    """
    known = counted(shifts.T)
    ordered = np.sort(shifts, axis=0)  # NaN last
    ranks = np.argsort(np.argsort(shifts, axis=0), axis=0)
    night, half = np.arange(shifts.shape[1]), known // 2
    position = np.maximum(half - 1, 0)
    following = np.minimum(position + 1, len(shifts) - 1)
    neighbours = np.where(position < ranks, ordered[position, night], ordered[following, night])
    neighbours = np.where((known > 1) & ~np.isnan(shifts), neighbours, 0.0)
    enough = (known > 1) & (2 * known >= len(shifts))
    host = ordered[np.minimum(half, len(shifts) - 1), night]
    return neighbours, np.where(enough, host, np.nan)
