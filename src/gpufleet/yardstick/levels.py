"""Which cards and hosts have always been worse than others: their offsets against each other.

Every card has one offset, so the fleet has as many examples as cards and no more: a bound beyond
all of them needs an assumption. Beyond the worst tenth, healthy offsets fall at least as fast as an
exponential distribution whose mean comes from the worst tenth itself, without the cards of the
judged one's host and of the worst other one, and is taken at the upper end of its error. A normal
distribution falls faster.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import votes
from .fit import MAD_TO_SIGMA, Rows, counted, medians, packed
from .values import ALL, LEAST_SIBLINGS, NOTE_FACTOR, Finding, Kind, Line, Spread

# The tail begins where a tenth of a normal distribution is below. Its mean excess there is 0.47
# deviations; a smaller one that few cards show is not believed.
TAIL_SHARE, TAIL_BEGIN, LEAST_EXCESS = 0.1, 1.2816, 0.5
# A note is rarer than one in so many, also in a small fleet.
MOST_NOTES = 0.01
# An offset is the median of so many nights or more. What so many last nights do not show any more
# is over.
LEAST_NIGHTS = 3
# One other host is left out of the examples, and one more of so many.
HOSTS_LEFT_OUT = 100
# Fewer hosts with several cards are not compared: of two it is not known which one is slow.
LEAST_HOSTS = 4
# How far the median of normal values strays, in their deviations, by the root of their number.
MEDIAN_DEVIATION = 1.2533


class Offset(NamedTuple):
    """How far a line is from its group: in all nights, and in its last `LEAST_NIGHTS`."""

    usual: float
    lately: float

    @property
    def over(self) -> bool:
        """True if its last nights do not show the loss of the others."""
        return self.usual < 0 and self.lately > self.usual / 2


# By group of tonight, and by position of the line.
Offsets = Mapping[str, Mapping[int, Offset]]


@dataclass(frozen=True)
class Level:
    """Cards or hosts that are compared with each other, and the offset of each.

    `measured`: the positions of those that the last night measured; others are not judged.
    `least`: by group, the least deviation of the offsets.
    """

    lines: Sequence[Line]
    offsets: Offsets
    measured: Collection[int]
    least: Mapping[str, float]

    def judged(self) -> set[tuple[str, str, str]]:
        """The host, card and measure of each that is judged."""
        return {
            (self.lines[position].host, self.lines[position].card, self.lines[position].measure)
            for each in self.offsets.values()
            for position in each
            if position in self.measured
        }


def of_cards(kind: Kind, lines: Sequence[Line], residuals: Rows) -> Level:
    """The offset of each card that has enough nights, measured in the last one or not.

    All nights count, so that a change has become permanent when most of them show it.
    """
    found: dict[str, dict[int, Offset]] = defaultdict(dict)
    last_first = packed(residuals[:, ::-1])[0]
    usual, lately = medians(residuals).tolist(), medians(last_first[:, :LEAST_NIGHTS]).tolist()
    for position in np.flatnonzero(counted(residuals) >= LEAST_NIGHTS).tolist():
        if group := lines[position].groups[-1]:
            found[group][position] = Offset(usual[position], lately[position])
    known = {group: each for group, each in found.items() if len(each) > LEAST_SIBLINGS}
    measured = set(np.flatnonzero(~np.isnan(residuals[:, -1])).tolist())
    return Level(lines, known, measured, dict.fromkeys(known, kind.resolution))


def of_hosts(cards: Level) -> Level:
    """The hosts with several cards in a group, where they are enough.

    The offset of a host is what more than half of its cards lost. It is judged where one of them is
    measured: what is known of the others is from their last nights.
    """
    lines: list[Line] = []
    found: dict[str, dict[int, Offset]] = {}
    measured: set[int] = set()
    least: dict[str, float] = {}
    for group, values in cards.offsets.items():
        members: dict[str, list[int]] = defaultdict(list)
        for position in values:
            members[cards.lines[position].host].append(position)
        several = [own for own in members.values() if len(own) > 1]
        if len(several) < LEAST_HOSTS:
            continue
        size = statistics.median(map(len, several))
        sigma = _of_group(cards, group)[1]
        least[group] = MEDIAN_DEVIATION * sigma / math.sqrt(size)
        found[group] = {}
        for own in several:
            if any(position in cards.measured for position in own):
                measured.add(len(lines))
            usual, lately = (
                sorted(each)[len(own) // 2]
                for each in zip(*(values[position] for position in own), strict=True)
            )
            found[group][len(lines)] = Offset(usual, lately)
            first = cards.lines[own[0]]
            lines.append(Line(first.host, ALL, first.measure, first.groups, ()))
    return Level(lines, found, measured, least)


def _of_group(level: Level, group: str) -> tuple[float, float]:
    """The centre of a group, and the standard deviation if most of its values are normal."""
    offsets = level.offsets[group]
    hosts = votes.owners(level.lines[position].host for position in offsets)
    values = np.array([each.usual for each in offsets.values()])
    centre = votes.median(values, hosts)
    deviation = MAD_TO_SIGMA * votes.median(abs(values - centre), hosts)
    return centre, max(deviation, level.least[group])


def findings(kind: Kind, level: Level, chance: float) -> list[Finding]:
    """The cards or hosts that are permanently beyond the bound of their group.

    `chance`: the probability of a false alarm that each may have.
    """
    found = []
    for group, offsets in level.offsets.items():
        values = {position: each.usual for position, each in offsets.items()}
        centre, sigma = _of_group(level, group)
        begin = TAIL_BEGIN * sigma
        excesses = {
            position: centre - value - begin
            for position, value in values.items()
            if centre - value > begin and not offsets[position].over
        }
        hosts: dict[str, list[float]] = defaultdict(list)
        for position, excess in excesses.items():
            hosts[level.lines[position].host].append(excess)
        total = sum(excesses.values())
        ranked = sorted(hosts, key=lambda host: -sum(hosts[host]))
        left_out = 1 + len({level.lines[position].host for position in values}) // HOSTS_LEFT_OUT
        for position, excess in excesses.items():
            # The worst of the other hosts may be faulty as well.
            own = level.lines[position].host
            others = [host for host in ranked[: left_out + 1] if host != own][:left_out]
            without = [each for host in (own, *others) for each in hosts[host]]
            # Where fewer are in the tail than there are of a normal distribution, it is shorter.
            count = max(len(excesses) - len(without), TAIL_SHARE * len(values), 1)
            rest = (total - sum(without)) / count
            mean = max(LEAST_EXCESS * sigma, rest) * (1 + 2 / math.sqrt(count))
            fails, notes = (
                max(begin + mean * math.log(TAIL_SHARE / min(TAIL_SHARE, rare)), kind.least_loss)
                for rare in (chance, max(chance, min(NOTE_FACTOR * chance, MOST_NOTES)))
            )
            loss = excess + begin
            if loss >= notes and position in level.measured:
                line = level.lines[position]
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


def spreads(kind: Kind, cards: Level, centres: Mapping[str, float]) -> list[Spread]:
    """The distribution of each group in the last nights, of the cards that the last one measured.

    `centres`: the level of each group in the last night.
    """
    found = []
    for group, values in cards.offsets.items():
        known = {
            (cards.lines[position].host, cards.lines[position].card): kind.change(each.usual)
            for position, each in values.items()
            if position in cards.measured
        }
        if group in centres and known:
            measure = cards.lines[next(iter(values))].measure
            found.append(Spread(kind.name, measure, group, centres[group], known))
    return found
