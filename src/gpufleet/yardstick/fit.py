"""Separate what nights and groups have in common from what is a card's own: a median polish.

A value is the level of its group in its night, plus the card's permanent offset, plus noise. Levels
are medians over cards, offsets medians over nights, so that neither follows a few outliers. An
offset is kept when a card changes its group by a driver upgrade.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import sub

from .values import LEAST_SIBLINGS, Kind, Line

Row = list[float | None]
# By night: the level of each group that has enough cards.
Levels = list[dict[str, float]]


def oriented(kind: Kind, lines: Sequence[Line]) -> list[Row]:
    """The values of each line on the scale of the comparison."""
    return [kind.oriented(line.values) for line in lines]


def residuals(
    lines: Sequence[Line], rows: Sequence[Row], reference: range
) -> tuple[list[Row], Levels]:
    """Subtract the level of each night and group; what is left is the card's offset and its noise.

    All lines are of one measure. `reference`: the nights that offsets are estimated from. A night
    in which the group has too few cards is None.
    """
    past = [row[reference.start : reference.stop] for row in rows]
    first = _levels(lines, past, None, reference.start)
    rough = [median(row) for row in _without(lines, past, first, reference.start)]
    levels = _levels(lines, rows, rough)
    return _without(lines, rows, levels), levels


def _without(
    lines: Sequence[Line], rows: Sequence[Row], levels: Levels, begin: int = 0
) -> list[Row]:
    """The values less the level of their night and group, from night `begin` on."""
    by_history: dict[tuple[str, ...], list[float | None]] = {}
    found: list[Row] = []
    for line, row in zip(lines, rows, strict=True):
        own = by_history.get(line.groups)
        if own is None:
            own = by_history[line.groups] = [
                level.get(group) for level, group in zip(levels, line.groups[begin:], strict=False)
            ]
        try:
            found.append(list(map(sub, row, own)))
        except TypeError:
            # A few cards were not measured in each night.
            found.append(
                [
                    None if value is None or level is None else value - level
                    for value, level in zip(row, own, strict=True)
                ]
            )
    return found


def _levels(
    lines: Sequence[Line],
    rows: Sequence[Row],
    offsets: Sequence[float | None] | None,
    begin: int = 0,
) -> Levels:
    """The median over the cards of each group and night, from `begin` on.

    Less their offsets, where these are known; a card without one does not count then.
    """
    cohorts: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for position, line in enumerate(lines):
        if offsets is None or offsets[position] is not None:
            cohorts[line.groups].append(position)
    columns = [
        (
            groups,
            list(zip(*(rows[position] for position in positions), strict=True)),
            offsets and [offsets[position] or 0.0 for position in positions],
        )
        for groups, positions in cohorts.items()
    ]
    levels: Levels = []
    for night in range(len(rows[0]) if rows else 0):
        values: dict[str, list[float]] = defaultdict(list)
        for groups, nights, own in columns:
            if own is None:
                known = [value for value in nights[night] if value is not None]
            else:
                known = [
                    value - offset
                    for value, offset in zip(nights[night], own, strict=True)
                    if value is not None
                ]
            values[groups[begin + night]] += known
        levels.append(
            {
                group: statistics.median(each)
                for group, each in values.items()
                if group and len(each) > LEAST_SIBLINGS
            }
        )
    return levels


def median(values: Iterable[float | None]) -> float | None:
    """The median of what is known; None of nothing."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
