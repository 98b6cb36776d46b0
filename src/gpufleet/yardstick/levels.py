"""Which cards have always been worse than their siblings: their offsets against each other.

Every card has one offset, so the fleet has as many examples as cards and no more: a bound beyond
all of them needs an assumption. Beyond the worst tenth, healthy offsets fall at least as fast as an
exponential distribution whose mean comes from the worst tenth itself, without the judged card, and
is taken at the upper end of its error. A normal distribution falls faster.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from .fit import MAD_TO_SIGMA, Rows, counted, medians
from .values import LEAST_SIBLINGS, NOTE_FACTOR, Budget, Finding, Kind, Line, Spread

# The tail begins where a tenth of a normal distribution is below. Its mean excess there is 0.47
# deviations; a smaller one that few cards show is not believed.
TAIL_SHARE, TAIL_BEGIN, LEAST_EXCESS = 0.1, 1.2816, 0.5
# A note is rarer than one in so many, also in a small fleet.
MOST_NOTES = 0.01
# An offset is the median of so many nights or more.
LEAST_NIGHTS = 3


def offsets(lines: Sequence[Line], residuals: Rows) -> dict[str, dict[int, float]]:
    """By group of tonight: each line's offset, by position of the line.

    All nights count, so that a change has become permanent when most of them show it. A line that
    was not measured in the last night has none.
    """
    found: dict[str, dict[int, float]] = defaultdict(dict)
    known = counted(residuals) >= LEAST_NIGHTS
    usual = medians(residuals).tolist()
    for position in np.flatnonzero(known & ~np.isnan(residuals[:, -1])).tolist():
        found[lines[position].groups[-1]][position] = usual[position]
    return {group: each for group, each in found.items() if len(each) > LEAST_SIBLINGS}


def findings(
    kind: Kind,
    lines: Sequence[Line],
    known: Mapping[str, Mapping[int, float]],
    budget: Budget,
) -> list[Finding]:
    """The cards that are permanently beyond the bound of their group."""
    found = []
    for group, values in known.items():
        centre = statistics.median(values.values())
        sigma = max(
            MAD_TO_SIGMA * statistics.median(abs(each - centre) for each in values.values()),
            kind.resolution,
        )
        begin = TAIL_BEGIN * sigma
        excesses = {
            position: centre - value - begin
            for position, value in values.items()
            if centre - value > begin
        }
        total = sum(excesses.values())
        for position, excess in excesses.items():
            others = len(excesses) - 1
            mean = LEAST_EXCESS * sigma
            if others:
                mean = max(mean, (total - excess) / others)
            mean *= 1 + 2 / math.sqrt(max(others, 1))
            chance = budget.chance("level")
            fails, notes = (
                max(begin + mean * math.log(TAIL_SHARE / min(TAIL_SHARE, each)), kind.least_loss)
                for each in (chance, max(chance, min(NOTE_FACTOR * chance, MOST_NOTES)))
            )
            loss = excess + begin
            if loss >= notes:
                line = lines[position]
                found.append(
                    Finding(
                        "level",
                        kind.name,
                        line.measure,
                        group,
                        kind.change(-loss),
                        kind.change(-fails),
                        0,
                        len(values) - 1,
                        loss >= fails,
                        line.host,
                        line.card,
                    )
                )
    return found


def spreads(
    kind: Kind,
    lines: Sequence[Line],
    known: Mapping[str, Mapping[int, float]],
    centres: Mapping[str, float],
) -> list[Spread]:
    """The distribution of each group in the last nights."""
    return [
        Spread(
            kind.name,
            lines[next(iter(values))].measure,
            group,
            centres[group],
            {
                (lines[position].host, lines[position].card): kind.change(value)
                for position, value in values.items()
            },
        )
        for group, values in known.items()
        if group in centres
    ]
