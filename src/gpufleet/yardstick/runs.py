"""How often healthy cards stay below a limit for nights in a row. Nothing is assumed normal.

The nights themselves say it: of all hosts' residuals, in units of each card's own noise, the runs
below each limit are counted. A limit has to be rarer than what the nights of a month show, so the
counts are continued beyond the tenth deepest run:

- n runs seen count as n + 1 + 2 sqrt(n + 1), about the upper end of their 95 % interval.
- From there on the probability falls as a power of the depth: the fourth for one night, as the tail
  of Student's t distribution with four degrees of freedom, much slower than a normal one. Each
  further night adds half of what an independent night would, up to the twelfth power, since what
  lasts (a warm room, an offset that is not known exactly) makes nights alike.
- It is never less than the share that was seen: what healthy cards did names nobody.

Not all nights are healthy. The worst host is left out, and one more of each hundred.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from . import votes
from .fit import Positions, Rows, counted, packed

# The lengths of runs that are tested: a host may have a job that is gone two nights later.
LENGTHS = (3, 5, 7, 10)
# Runs are counted up to the longest of them, and from this depth on, in units of the noise.
LONGEST, SHALLOWEST = max(LENGTHS), 1.0
# The count from which on the probability is continued, and its power by the length of the run.
ANCHOR, TAIL_POWER, MOST_POWER = 10, 4.0, 12.0
# One of so many hosts is left out, and one more, where there are enough of them.
TRIM, LEAST_TRIMMED = 100, 10
# At most so many hosts of one night are examples of what jobs do.
FEW = 3
# Limits are searched on this grid, in units of the noise: 1 to 250, in steps of 4 %.
GRID = tuple(SHALLOWEST * 1.04**step for step in range(142))


class Runs:
    """The runs of healthy nights, and the limits that follow from them.

    A host counts once a night, by the worst of its cards and measures: they share its load, its
    room and its measurement, and it is hosts that a false alarm costs.
    """

    def __init__(self, hosts: Sequence[str], noises: Rows) -> None:
        """`noises`: residuals of lines in units of their noise, lower is worse; `hosts`: theirs."""
        owners = votes.owners(hosts)
        number = len(set(hosts))
        # The lines of a host in a row.
        order = np.argsort(owners, kind="stable")
        begins = np.searchsorted(owners[order], np.arange(number))
        values, places = packed(noises[order])
        known = counted(values)
        deepest = self._deepest(-values, places, begins)
        kept = np.full(number, True)
        kept[_worst_hosts(deepest[LENGTHS[0] - 1])] = False
        self._depths = [
            np.sort(depths[kept][depths[kept] >= SHALLOWEST]).tolist() for depths in deepest
        ]
        # The deepest of each night, the deepest night first.
        self._worst_nights = np.sort(-np.sort(-deepest[0][kept], axis=0)[:FEW], axis=None)[::-1]
        # By length of a run: how many there could have been.
        nights = np.maximum.reduceat(known, begins)[kept] if len(begins) else known
        self._possible = [int(np.maximum(0, nights - length).sum()) for length in range(LONGEST)]

    @staticmethod
    def _deepest(depths: Rows, places: Positions, begins: Positions) -> list[Rows]:
        """By length of a run: the deepest one of each host that ends in each night."""
        found = []
        runs = np.where(np.isnan(depths), -np.inf, depths)
        for length in range(LONGEST):
            if length:
                # The shallowest of the last one, two, three nights, and so on.
                runs[:, 1:] = np.minimum(runs[:, :-1], depths[:, 1:])
                runs[:, :length] = -np.inf
                runs[np.isnan(depths)] = -np.inf
            nights = np.empty_like(runs)
            np.put_along_axis(nights, places, runs, axis=1)
            found.append(np.maximum.reduceat(nights, begins) if len(begins) else nights)
        return found

    def probability(self, limit: float, length: int) -> float:
        """An upper limit of the probability that `length` nights in a row are below the limit."""
        depths, possible = self._depths[length - 1], self._possible[length - 1]
        if not possible:
            return 1.0
        seen = len(depths) - bisect_left(depths, limit)
        anchor = depths[-ANCHOR] if len(depths) >= ANCHOR else SHALLOWEST
        if limit <= anchor:
            return min(1.0, _upper(seen) / possible)
        power = min(MOST_POWER, TAIL_POWER * (1 + (length - 1) / 2))
        share = min(1.0, _upper(min(ANCHOR, len(depths))) / possible)
        return max(seen / possible, share * math.pow(anchor / limit, power))

    def rare_night(self) -> float:
        """The depth that no more than `ANCHOR` nights of all hosts reach, or 0 of fewer nights.

        Of each night the `FEW` deepest hosts count: what more of them had was no job of one host.
        """
        depths = self._worst_nights
        return max(0.0, float(depths[ANCHOR - 1])) if len(depths) >= ANCHOR else 0.0

    def limits(self, probability: float, lengths: Sequence[int] = LENGTHS) -> dict[int, float]:
        """By length: the smallest limit that a run passes at most with its part of the probability.

        Infinite where no number of nights like these justifies one.
        """
        found = {}
        for length in lengths:
            step = len(GRID)
            while step and self.probability(GRID[step - 1], length) <= probability / len(lengths):
                step -= 1
            found[length] = GRID[step] if step < len(GRID) else math.inf
        return found


def _worst_hosts(deepest: Rows) -> Positions:
    """The hosts with the deepest runs, which may have been faulty and repaired since."""
    hosts = len(deepest)
    if hosts < LEAST_TRIMMED or not deepest.size:
        return np.empty(0, int)
    worst = deepest.max(axis=1)
    ordered: Positions = np.argsort(-worst, kind="stable")[: 1 + hosts // TRIM]
    found: Positions = ordered[worst[ordered] >= SHALLOWEST]
    return found


def _upper(count: int) -> float:
    return count + 1 + 2 * math.sqrt(count + 1)
