"""Which groups have become worse as a whole."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import comb

from .fit import Levels
from .runs import TAIL_POWER
from .shifts import LEAST_REFERENCE, Parts
from .values import Budget, Finding, Kind, Line

# A group is worse when so many nights in a row are further below than twice the worst night of the
# reference: nights of a group depend on each other more than those of single cards.
NIGHTS, MARGIN = 3, 2.0


def drifts(
    kind: Kind, lines: Sequence[Line], levels: Levels, nights: Parts, budget: Budget
) -> list[Finding]:
    """The groups of one measure that are worse than in the reference nights.

    The hosts of a group are followed back: before an upgrade they were another group.
    """
    histories: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for _, groups in {(line.host, line.groups) for line in lines}:
        histories[groups[-1]][groups] += 1
    cards = Counter(line.groups[-1] for line in lines)
    found = []
    for group in histories if nights.tested else ():
        past = histories[group].most_common(1)[0][0]
        heights = [levels[night].get(past[night]) for night in range(len(levels))]
        reference = [
            value for value in (heights[night] for night in nights.reference) if value is not None
        ]
        last = [value for value in heights[nights.tested.start :] if value is not None]
        if not group or heights[-1] is None:
            continue
        if len(reference) < LEAST_REFERENCE or len(last) < NIGHTS:
            continue
        centre = statistics.median(reference)
        # So likely are the last nights the lowest of all, where the order of nights is random.
        lowest = 1 / comb(len(reference) + NIGHTS, NIGHTS)
        stretch = max(1.0, lowest / budget.chance("group")) ** (1 / TAIL_POWER)
        bound = max(MARGIN * stretch * (centre - min(reference)), kind.least_loss, kind.resolution)
        below = 0
        for value in reversed(last):
            if centre - value < bound:
                break
            below += 1
        if below >= NIGHTS:
            found.append(
                Finding(
                    "group",
                    kind.name,
                    lines[0].measure,
                    group,
                    kind.change(statistics.median(last[-below:]) - centre),
                    kind.change(-bound),
                    below,
                    cards[group],
                    fails=True,
                )
            )
    return found
