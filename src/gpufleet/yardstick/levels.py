"""Which cards and hosts have always been worse than others: their offsets against each other.

Cards of one host that are all slow hide each other, so hosts are compared as well. Every card has
one offset, so the fleet has as many examples as cards and no more: a bound beyond all of them needs
an assumption. Beyond the worst tenth, healthy offsets fall at least as fast as an exponential
distribution whose mean comes from the worst tenth itself, without the judged card, and is taken at
the upper end of its error. A normal distribution falls faster.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .fit import MAD_TO_SIGMA, Rows, counted, medians
from .values import ALL, LEAST_SIBLINGS, NOTE_FACTOR, Finding, Kind, Line, Spread

# The tail begins where a tenth of a normal distribution is below. Its mean excess there is 0.47
# deviations; a smaller one that few cards show is not believed.
TAIL_SHARE, TAIL_BEGIN, LEAST_EXCESS = 0.1, 1.2816, 0.5
# A note is rarer than one in so many, also in a small fleet.
MOST_NOTES = 0.01
# An offset is the median of so many nights or more.
LEAST_NIGHTS = 3


class Offset(NamedTuple):
    """How far a line is from its group: in all nights, and in the last `LEAST_NIGHTS`."""

    usual: float
    lately: float


# By group of tonight, and by position of the line.
Offsets = Mapping[str, Mapping[int, Offset]]


def offsets(lines: Sequence[Line], residuals: Rows) -> Offsets:
    """The offset of each line.

    All nights count, so that a change has become permanent when most of them show it. A line that
    was not measured in the last night has none.
    """
    found: dict[str, dict[int, Offset]] = defaultdict(dict)
    known = counted(residuals) >= LEAST_NIGHTS
    usual, lately = medians(residuals).tolist(), medians(residuals[:, -LEAST_NIGHTS:]).tolist()
    for position in np.flatnonzero(known & ~np.isnan(residuals[:, -1])).tolist():
        found[lines[position].groups[-1]][position] = Offset(usual[position], lately[position])
    return {group: each for group, each in found.items() if len(each) > LEAST_SIBLINGS}


def of_hosts(lines: Sequence[Line], known: Offsets) -> tuple[list[Line], Offsets]:
    """The hosts with several cards in a group, and the median offset of these cards."""
    hosts: list[Line] = []
    found: dict[str, dict[int, Offset]] = {}
    for group, values in known.items():
        cards: dict[str, list[int]] = defaultdict(list)
        for position in values:
            cards[lines[position].host].append(position)
        several = {host: own for host, own in cards.items() if len(own) > 1}
        if len(several) > LEAST_SIBLINGS:
            found[group] = {
                number: _median([values[position] for position in own])
                for number, own in enumerate(several.values(), len(hosts))
            }
            hosts += [
                Line(host, ALL, lines[own[0]].measure, lines[own[0]].groups, ())
                for host, own in several.items()
            ]
    return hosts, found


def _median(known: Sequence[Offset]) -> Offset:
    return Offset(
        statistics.median(each.usual for each in known),
        statistics.median(each.lately for each in known),
    )


def findings(kind: Kind, lines: Sequence[Line], known: Offsets, chance: float) -> list[Finding]:
    """The cards or hosts that are permanently beyond the bound of their group, and still are.

    `chance`: the probability of a false alarm that each may have.
    """
    found = []
    for group, members in known.items():
        values = {position: offset.usual for position, offset in members.items()}
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
            fails, notes = (
                max(begin + mean * math.log(TAIL_SHARE / min(TAIL_SHARE, tail)), kind.least_loss)
                for tail in (chance, max(chance, min(NOTE_FACTOR * chance, MOST_NOTES)))
            )
            loss = excess + begin
            # Most nights still show the loss of one that was repaired, the last ones do not.
            still = centre - members[position].lately >= loss / 2
            if loss >= notes and still:
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
    kind: Kind, lines: Sequence[Line], known: Offsets, centres: Mapping[str, float]
) -> list[Spread]:
    """The distribution of each group in the last nights."""
    return [
        Spread(
            kind.name,
            lines[next(iter(values))].measure,
            group,
            centres[group],
            {
                (lines[position].host, lines[position].card): kind.change(offset.usual)
                for position, offset in values.items()
            },
        )
        for group, values in known.items()
        if group in centres
    ]
