"""Separate what nights and groups have in common from what is a card's own: a median polish.

A value is the level of its group in its night, plus the card's permanent offset, plus noise. Levels
are medians over hosts, offsets medians over nights, so that neither follows a few outliers. An
offset is kept when a card changes its group by a driver upgrade.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from . import votes
from .values import LEAST_SIBLINGS, Kind, Line

# A row has the nights of one line, oldest first; NaN stands for a night without a value.
Rows = NDArray[np.float64]
Positions = NDArray[np.intp]
# Factor from the median absolute deviation to the standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826
# By night: the level of each group that has enough cards.
Levels = list[dict[str, float]]


def oriented(kind: Kind, lines: Sequence[Line]) -> Rows:
    """The values of each line, which are finite, on the scale where lower is worse."""
    rows = np.array([line.values for line in lines], float)
    sign = 1 if kind.worse == "lower" else -1
    return sign * (np.log(np.where(rows > 0, rows, np.nan)) if kind.relative else rows)


def residuals(lines: Sequence[Line], rows: Rows, reference: range) -> tuple[Rows, Levels]:
    """Subtract the level of each night and group; what is left is the card's offset and its noise.

    All lines are of one measure. `reference`: the nights that offsets are estimated from. A night
    in which the group has too few cards is NaN.
    """
    cohorts, hosts = _cohorts(lines), votes.owners(line.host for line in lines)
    begin = reference.start
    past = rows[:, begin : reference.stop]
    rough = medians(_without(cohorts, past, _levels(cohorts, past, hosts, begin), begin))
    levels = _levels(cohorts, rows - rough[:, None], hosts)
    return _without(cohorts, rows, levels), levels


def medians(rows: Rows) -> Rows:
    """The median of what is known in each row; NaN of nothing."""
    if not rows.size:
        return np.full(len(rows), np.nan)
    ordered = np.sort(rows)  # NaN last
    known, line = counted(rows), np.arange(len(rows))
    low, high = ordered[line, np.maximum(known - 1, 0) // 2], ordered[line, known // 2]
    middle: Rows = (low + high) / 2
    return middle


def counted(rows: Rows) -> Positions:
    """How many values of each row are known."""
    known: Positions = np.count_nonzero(~np.isnan(rows), axis=1)
    return known


def packed(rows: Rows) -> tuple[Rows, Positions]:
    """The known values of each row, then NaN; and their former positions."""
    order = np.argsort(np.isnan(rows), axis=1, kind="stable")
    return np.take_along_axis(rows, order, axis=1), order


def _cohorts(lines: Sequence[Line]) -> dict[tuple[str, ...], Positions]:
    """The positions of the lines that were in the same groups."""
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for position, line in enumerate(lines):
        found[line.groups].append(position)
    return {groups: np.array(positions) for groups, positions in found.items()}


def _without(
    cohorts: Mapping[tuple[str, ...], Positions], rows: Rows, levels: Levels, begin: int = 0
) -> Rows:
    """The values less the level of their night and group, from night `begin` on."""
    found = np.empty_like(rows)
    for groups, positions in cohorts.items():
        own = [
            level.get(group, np.nan) for level, group in zip(levels, groups[begin:], strict=False)
        ]
        found[positions] = rows[positions] - np.array(own)
    return found


def _levels(
    cohorts: Mapping[tuple[str, ...], Positions], rows: Rows, hosts: Positions, begin: int = 0
) -> Levels:
    """The median over the hosts of each group and night, from `begin` on.

    `hosts`: the number of each row's host.
    """
    levels: Levels = []
    for night, column in enumerate(rows.T, begin):
        members: dict[str, list[Positions]] = defaultdict(list)
        for groups, positions in cohorts.items():
            members[groups[night]].append(positions)
        measured = ~np.isnan(column)
        known = {
            group: positions[measured[positions]]
            for group, each in members.items()
            if group
            for positions in [np.concatenate(each)]
        }
        levels.append(
            {
                group: votes.median(column[positions], hosts[positions])
                for group, positions in known.items()
                if len(positions) > LEAST_SIBLINGS
            }
        )
    return levels
