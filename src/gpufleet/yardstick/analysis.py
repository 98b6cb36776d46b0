"""One kind of values of some nights to findings and distributions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from . import fit, groups, hosts, levels, sharing, shifts
from .hosts import Lined
from .means import means
from .sharing import Sizes
from .values import ALL, LEAST_SIBLINGS, Analysis, Budget, Finding, Kind, Line

# A card that lost more than so many times what its host lost is named beside it.
MOST = 2.0
# The last night, and the one before it.
NIGHTS_JUDGED = 2
# So many of the last nights are left out at most: what was found and shared before each of them.
MOST_DROPPED = NIGHTS_JUDGED - 1 + sharing.HIDDEN_NIGHTS + sharing.SHARED_NIGHTS


@dataclass(frozen=True)
class _Measure:
    """The lines of one measure, without what nights and groups have in common."""

    lines: list[Line]
    nights: shifts.Parts
    residuals: fit.Rows
    heights: fit.Levels


@dataclass(frozen=True)
class _Scale:
    """Cards in their hosts, or hosts: their lines, and what is worse in the last nights."""

    known: Sequence[shifts.Noises]
    # The last one first.
    nights: Sequence[sharing.Night]


def analyse(kind: Kind, lines: Iterable[Line], budget: Budget) -> Analysis:
    """Compare the values of one kind in some nights; the last one is judged."""
    return analyse_both(kind, lines, budget)[1]


def analyse_both(kind: Kind, values: Iterable[Line], budget: Budget) -> tuple[Analysis, Analysis]:
    """Analyse the night before the last one, and the last one.

    Both have the same offsets, limits and groups, so that only the last night makes a difference.
    """
    by_name: dict[str, list[Line]] = defaultdict(list)
    for line in values:
        by_name[line.measure].append(line)
    several = hosts.with_several_cards([line for each in by_name.values() for line in each])
    measures: list[_Measure] = []
    divided: list[tuple[Lined, Lined]] = []
    for members in by_name.values():
        if len(members) <= LEAST_SIBLINGS:
            continue
        nights = shifts.parts(len(members[0].values))
        residuals, heights = fit.residuals(members, fit.oriented(kind, members), nights.reference)
        measures.append(_Measure(members, nights, residuals, heights))
        divided.append(
            hosts.divided(
                kind, members, residuals, nights, several=several, groups=heights[-1].keys()
            )
        )
    sizes = _sizes(kind, measures)
    members_of = [each for each in zip(*divided, strict=True) if any(lines for lines, _ in each)]
    chance = budget.chance("shift") / max(len(members_of), 1)
    scales = [_scale(kind, chance, measures, each, sizes, several=several) for each in members_of]
    tonight, before = (
        _judged(kind, measures, scales, budget=budget, dropped=dropped)
        for dropped in range(NIGHTS_JUDGED)
    )
    for scale in scales:
        tonight.judged |= scale.nights[0].judged
        for noises in scale.known:
            tonight.compared |= {(line.host, line.card, line.measure) for line in noises.lines}
    return before, tonight


def _sizes(kind: Kind, measures: Sequence[_Measure]) -> Sizes:
    """How many cards each host has of each group and measure; of the mean, those of any measure."""
    cards: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    for each in measures:
        for line in each.lines:
            if line.groups[-1] in each.heights[-1]:
                for measure in (line.measure, kind.mean):
                    cards[line.groups[-1], measure].add((line.host, line.card))
    return {key: Counter(host for host, _ in known) for key, known in cards.items()}


def _scale(
    kind: Kind,
    chance: float,
    measures: Sequence[_Measure],
    members: Sequence[Lined],
    sizes: Sizes,
    *,
    several: Container[str],
) -> _Scale:
    """The lines of all measures, and the means of each card or host.

    `several`: the hosts with several cards. What these cards lost themselves is no job's.
    """
    known = [
        shifts.noises(
            kind, lines, rows, each.nights, groups=each.heights[-1].keys(), earlier=MOST_DROPPED
        )
        for each, (lines, rows) in zip(measures, members, strict=True)
    ]
    lines, rows = means(kind, members)
    if lines:
        grouped = {group for group, _ in sizes}
        known.append(
            shifts.noises(
                kind, lines, rows, measures[0].nights, groups=grouped, earlier=MOST_DROPPED
            )
        )
    jobs = any(
        line.card == ALL or line.host not in several for each in known for line in each.lines
    )
    limits = shifts.limits(shifts.healthy_runs(known), chance, jobs=jobs)
    counts = sharing.line_counts(known)
    nights = [
        sharing.Night(
            kind,
            shifts.shifts(kind, known, limits, dropped),
            sizes,
            sharing.Losses(known, counts, dropped),
        )
        for dropped in range(MOST_DROPPED + 1)
    ]
    return _Scale(known, nights)


def _judged(
    kind: Kind,
    measures: Sequence[_Measure],
    scales: Sequence[_Scale],
    *,
    budget: Budget,
    dropped: int,
) -> Analysis:
    """The findings without so many of the last nights, and the distributions of the last one."""
    found = Analysis()
    measured = None if dropped else _measured(measures)
    found.findings = [
        finding
        for scale in scales
        for finding in sharing.standing(kind, scale.nights[dropped:], measured)
    ]
    for each in measures:
        end = len(each.heights) - dropped
        rows, heights = each.residuals[:, :end], each.heights[:end]
        if not heights:
            continue
        cards = levels.of_cards(kind, each.lines, rows)
        compared = [level for level in (levels.of_hosts(cards), cards) if level.offsets]
        usual_of_hosts = {
            level.lines[position].host: kind.change(MOST * min(offset.usual, 0.0))
            for level in compared[:-1]
            for offsets in level.offsets.values()
            for position, offset in offsets.items()
        }
        for level in compared:
            # A line that was not measured in the night before was as in its last night.
            known = replace(level, measured=range(len(level.lines))) if dropped else level
            chance = budget.chance("level") / len(compared)
            for one in levels.findings(kind, known, chance):
                # A change is reported once, and one that cards have in common only of their host.
                common = abs(one.change) <= abs(usual_of_hosts.get(one.host, 0.0))
                if not any(_includes(other, one, common) for other in found.findings):
                    found.findings.append(one)
        if not dropped:
            centres = {group: kind.value(height) for group, height in heights[-1].items()}
            found.spreads += levels.spreads(kind, cards, centres)
            for level in compared:
                found.levelled |= level.judged()
        found.findings += groups.drifts(kind, each.lines, heights, each.nights, budget)
    return found


def _includes(known: Finding, one: Finding, common: bool) -> bool:
    """Return whether a finding says the same as a permanent one would say.

    `common`: the cards of the host have the permanent loss in common.
    """
    return (
        (known.host, known.measure) == (one.host, one.measure)
        and (known.fails or not one.fails)
        and (known.card == one.card or (known.card == ALL and common))
    )


def _measured(measures: Sequence[_Measure]) -> set[tuple[str, str]]:
    """The hosts and cards of which the last night has a value."""
    return {
        (line.host, card)
        for each in measures
        for line, value in zip(each.lines, each.residuals[:, -1].tolist(), strict=True)
        if not math.isnan(value)
        for card in (line.card, ALL)
    }
