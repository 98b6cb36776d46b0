"""What the cards of a host have in common, and what is a card's own.

A loaded host or a hot room slows all cards of a host about as much, and a faulty card is slower
than its neighbours. So a card is judged by its difference from its host, and each host by what its
cards have in common.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from .fit import Rows, counted, medians
from .values import Line

# The median of two cards follows each of them, so that such hosts are not divided.
LEAST_CARDS = 3

# Lines of one measure, and a row of residuals for each.
Lined = tuple[list[Line], Rows]


def divided(lines: Sequence[Line], residuals: Rows, reference: range) -> tuple[Lined, Lined]:
    """The cards without what their hosts have in common, and the hosts.

    Cards of hosts with fewer than `LEAST_CARDS` cards are among the hosts, as they are. A night in
    which fewer of a host's cards are known is NaN. `reference`: the nights that tell what is usual
    for a card, since the cards that are known differ from night to night.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for position, line in enumerate(lines):
        members[line.host].append(position)
    several = {host: cards for host, cards in members.items() if len(cards) >= LEAST_CARDS}
    alone = [
        position for host, cards in members.items() if host not in several for position in cards
    ]
    usual = medians(residuals[:, reference.start : reference.stop])
    shifts = residuals - usual[:, None]
    common = np.array([_common(shifts[cards]) for cards in several.values()])
    common = common.reshape(len(several), residuals.shape[1])
    own = [position for cards in several.values() for position in cards]
    counts = [len(cards) for cards in several.values()]
    hosts = [
        Line(host, "", lines[cards[0]].measure, lines[cards[0]].groups, ())
        for host, cards in several.items()
    ]
    return (
        ([lines[position] for position in own], residuals[own] - np.repeat(common, counts, axis=0)),
        (
            hosts + [lines[position] for position in alone],
            np.concatenate([common, residuals[alone]]),
        ),
    )


def _common(shifts: Rows) -> Rows:
    """By night: the median of a host's cards."""
    nights = shifts.T
    found = medians(nights)
    found[counted(nights) < LEAST_CARDS] = np.nan
    return found
