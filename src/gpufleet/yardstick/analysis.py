"""One kind of values of some nights to findings and distributions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from . import fit, groups, hosts, levels, shifts
from .groups import Sizes
from .hosts import Lined
from .means import means
from .values import LEAST_SIBLINGS, Analysis, Budget, Finding, Kind, Line

# The last night, and the one before it.
NIGHTS_JUDGED = 2


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
    sizes: Sizes
    # The last one first.
    nights: Sequence[groups.Night]


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
    measures: list[_Measure] = []
    divided: list[tuple[Lined, Lined]] = []
    for members in by_name.values():
        if len(members) <= LEAST_SIBLINGS:
            continue
        nights = shifts.parts(len(members[0].values))
        residuals, heights = fit.residuals(members, fit.oriented(kind, members), nights.reference)
        measures.append(_Measure(members, nights, residuals, heights))
        divided.append(hosts.divided(members, residuals, nights.reference))
    scales = [_scale(kind, budget, measures, each) for each in zip(*divided, strict=True)]
    tonight, before = (
        _judged(kind, measures, scales, budget=budget, dropped=dropped)
        for dropped in range(NIGHTS_JUDGED)
    )
    tonight.compared = {
        (line.host, line.card, line.measure)
        for scale in scales
        for noises in scale.known
        for line in noises.lines
    }
    return before, tonight


def _scale(
    kind: Kind, budget: Budget, measures: Sequence[_Measure], members: Sequence[Lined]
) -> _Scale:
    """The lines of all measures, and the means of each card or host."""
    known: list[shifts.Noises] = []
    sizes: Sizes = {}
    for each, (lines, rows) in zip(measures, members, strict=True):
        groups_now = each.heights[-1].keys()
        known.append(shifts.noises(kind, lines, rows, each.nights, groups_now))
        sizes |= _sizes(lines, groups_now)
    lines, rows = means(kind, members)
    if lines:
        grouped = {group for group, _ in sizes}
        known.append(shifts.noises(kind, lines, rows, measures[0].nights, grouped))
        sizes |= _sizes(lines, grouped)
    limits = shifts.limits(shifts.healthy_runs(known), budget)
    nights = [
        groups.Night(kind, shifts.shifts(kind, known, limits, dropped), sizes)
        for dropped in range(NIGHTS_JUDGED + groups.SHARED_NIGHTS)
    ]
    return _Scale(known, sizes, nights)


def _sizes(lines: Sequence[Line], groups: Collection[str]) -> Sizes:
    found = {(group, line.measure): Counter[str]() for line in lines[:1] for group in groups}
    for line in lines:
        if line.groups[-1] in groups:
            found[line.groups[-1], line.measure][line.host] += 1
    return found


def _judged(
    kind: Kind,
    measures: Sequence[_Measure],
    scales: Sequence[_Scale],
    *,
    budget: Budget,
    dropped: int,
) -> Analysis:
    """The findings without so many of the last nights."""
    found = Analysis()
    permanent: list[Finding] = []
    for each in measures:
        end = len(each.heights) - dropped
        rows, heights = each.residuals[:, :end], each.heights[:end]
        if not heights:
            continue
        offsets = levels.offsets(each.lines, rows)
        permanent += levels.findings(kind, each.lines, offsets, budget)
        centres = {
            group: kind.value(level) for group, level in heights[-1].items() if group in offsets
        }
        found.spreads += levels.spreads(kind, each.lines, offsets, centres)
        found.findings += groups.drifts(kind, each.lines, heights, each.nights, budget)
    changed = [
        finding
        for scale in scales
        for finding in groups.judged(kind, scale.nights[dropped:], scale.sizes)
    ]
    found.findings += changed
    # What has changed is said once.
    cards = {(each.host, each.card, each.measure) for each in changed}
    found.findings += [
        each for each in permanent if (each.host, each.card, each.measure) not in cards
    ]
    return found
