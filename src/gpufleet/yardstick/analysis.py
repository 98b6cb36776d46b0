"""One kind of values of some nights to findings and distributions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from . import fit, groups, levels, shifts
from .groups import Sizes
from .means import means
from .runs import Runs
from .values import LEAST_SIBLINGS, Analysis, Budget, Finding, Kind, Line


@dataclass(frozen=True)
class _Measure:
    """The lines of one measure, without what nights and groups have in common."""

    lines: list[Line]
    nights: shifts.Parts
    residuals: fit.Rows
    heights: fit.Levels


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
    known: list[shifts.Noises] = []
    sizes: Sizes = {}
    for members in by_name.values():
        if len(members) <= LEAST_SIBLINGS:
            continue
        nights = shifts.parts(len(members[0].values))
        residuals, heights = fit.residuals(members, fit.oriented(kind, members), nights.reference)
        measures.append(_Measure(members, nights, residuals, heights))
        known.append(shifts.noises(kind, members, residuals, nights, heights[-1]))
        sizes |= _sizes(members, heights[-1])
    lines, residuals = means(kind, [(each.lines, each.residuals) for each in measures])
    if lines:
        grouped = {group for group, _ in sizes}
        known.append(shifts.noises(kind, lines, residuals, measures[0].nights, grouped))
        sizes |= _sizes(lines, grouped)
    runs = shifts.healthy_runs(known)
    before, tonight = (
        _judged(kind, measures, known, runs, budget=budget, sizes=sizes, dropped=dropped)
        for dropped in (1, 0)
    )
    tonight.compared = {
        (line.host, line.card, line.measure) for noises in known for line in noises.lines
    }
    return before, tonight


def _sizes(lines: Sequence[Line], groups: Collection[str]) -> Sizes:
    found = {(group, lines[0].measure): Counter[str]() for group in groups}
    for line in lines:
        if line.groups[-1] in groups:
            found[line.groups[-1], line.measure][line.host] += 1
    return found


def _judged(
    kind: Kind,
    measures: Sequence[_Measure],
    known: Sequence[shifts.Noises],
    runs: Runs,
    *,
    budget: Budget,
    sizes: Sizes,
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
    changed = groups.judged(kind, shifts.shifts(kind, known, runs, budget, dropped), sizes)
    found.findings += changed
    # What has changed is said once.
    cards = {(each.host, each.card, each.measure) for each in changed}
    found.findings += [
        each for each in permanent if (each.host, each.card, each.measure) not in cards
    ]
    return found
