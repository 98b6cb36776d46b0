"""The mean of a card's measures of one kind, as one more measure: a slow card is slow in all.

The noise of the measures is partly independent, so that their mean has less of it. By how much, its
own nights say, as for each measure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .fit import Rows
from .values import Kind, Line


def means(kind: Kind, measures: Sequence[tuple[Sequence[Line], Rows]]) -> tuple[list[Line], Rows]:
    """The lines of the means of cards that have two measures or more, and their residuals.

    `measures`: the lines of each and their residuals. A night in which one of a card's measures is
    missing is NaN, since the permanent offset of the others differs.
    """
    first: dict[tuple[str, str], Line] = {}
    for lines, _ in measures:
        for line in lines:
            first.setdefault((line.host, line.card), line)
    number = {card: position for position, card in enumerate(first)}
    nights = measures[0][1].shape[1] if measures else 0
    totals, counts = np.zeros((len(first), nights)), np.zeros(len(first))
    for lines, residuals in measures:
        cards = [number[line.host, line.card] for line in lines]
        totals[cards] += residuals
        counts[cards] += 1
    several = counts > 1
    found = [
        Line(line.host, line.card, kind.mean, line.groups, ())
        for line, is_several in zip(first.values(), several, strict=True)
        if is_several
    ]
    return found, totals[several] / counts[several, None]
