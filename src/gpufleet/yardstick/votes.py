"""Each host has one vote, whatever number of cards it reports.

A host may invent cards. So its cards share the weight of one host in each median of a group, and
those beyond what is declared for it are not compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .values import Line

# The cards of a host for which no number is declared that are compared at most: more than a server
# has.
MOST_CARDS = 16
# The sum of weights is known to this part of it.
ROUNDING = 1e-9


def limited(lines: Sequence[Line], declared: Mapping[str, int]) -> list[Line]:
    """The lines that are compared: of each host and measure those of as many cards as declared.

    Those that were measured last come first: a card that was replaced is not compared any more.
    `declared`: by host, its number of cards; without one they are `MOST_CARDS`.
    """
    cards: dict[tuple[str, str], list[int]] = defaultdict(list)
    for position, line in enumerate(lines):
        cards[line.host, line.measure].append(position)
    found = []
    for (host, _), positions in cards.items():
        most = declared.get(host, MOST_CARDS)
        if len(positions) > most:
            positions.sort(key=lambda position: _nights_since(lines[position].values))
        found += positions[:most]
    return [lines[position] for position in sorted(found)]


def _nights_since(values: Sequence[float | None]) -> int:
    """How many nights ago the last known value was measured."""
    known = (ago for ago, value in enumerate(reversed(values)) if value is not None)
    return next(known, len(values))


def owners(hosts: Iterable[str]) -> NDArray[np.intp]:
    """A number for each of the hosts, the same where the host is the same."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(host, len(numbers)) for host in hosts], np.intp)


def weights(owners: NDArray[np.intp]) -> NDArray[np.float64]:
    """The weight of each value: those of one host have one together."""
    found: NDArray[np.float64] = 1 / np.bincount(owners)[owners]
    return found


def median(values: ArrayLike, owners: NDArray[np.intp]) -> float:
    """The median of some values, in which each host has the same weight.

    `owners`: the number of each value's host.
    """
    known = np.asarray(values, float)
    share = weights(owners)
    if share.min() == share.max():
        return float(np.median(known))
    order = np.argsort(known, kind="stable")
    below = np.cumsum(share[order])
    half, rounding = below[-1] / 2, below[-1] * ROUNDING
    low, high = np.searchsorted(below, (half - rounding, half + rounding))
    return float(known[order[[low, high]]].mean())


def median_of_hosts(values: Sequence[float], hosts: Iterable[str]) -> float:
    """The same, by the names of the hosts."""
    return median(values, owners(hosts))
