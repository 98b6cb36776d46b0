"""All kinds of values of some nights to findings and distributions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from . import fit, groups, levels, shifts
from .values import LEAST_SIBLINGS, Budget, Finding, Kind, Line, Spread


@dataclass
class Analysis:
    """What one night's values say.

    `compared`: the (host, card, measure) of the lines that have enough nights and siblings
    to be compared; nobody else's own past is judged here.
    """

    findings: list[Finding] = field(default_factory=list)
    spreads: list[Spread] = field(default_factory=list)
    compared: set[tuple[str, str, str]] = field(default_factory=set)

    def add(self, other: Analysis) -> None:
        """Add what the values of another kind say."""
        self.findings += other.findings
        self.spreads += other.spreads
        self.compared |= other.compared


def analyse(kind: Kind, lines: Iterable[Line], budget: Budget) -> Analysis:
    """Compare the values of one kind in some nights, the last one is judged."""
    found = Analysis()
    by_measure: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_measure[line.measure].append(line)
    known: list[shifts.Noise] = []
    permanent: list[Finding] = []
    sizes: dict[tuple[str, str], tuple[int, int]] = {}
    for measure, members in by_measure.items():
        if len(members) <= LEAST_SIBLINGS:
            continue
        nights = shifts.parts(len(members[0].values))
        rows = fit.oriented(kind, members)
        residuals, heights = fit.residuals(members, rows, nights.reference)
        noises = shifts.noises(kind, members, residuals, nights)
        known += noises
        for group in heights[-1]:
            inside = [line for line in members if line.groups[-1] == group]
            sizes[group, measure] = len({line.host for line in inside}), len(inside)
        offsets = levels.offsets(members, residuals)
        permanent += levels.findings(kind, members, offsets, budget)
        centres = {
            group: kind.value(level) for group, level in heights[-1].items() if group in offsets
        }
        found.spreads += levels.spreads(kind, members, offsets, centres)
        found.findings += groups.drifts(kind, members, heights, nights, budget)
    passed = [
        shift
        for shift in shifts.shifts(kind, known, budget)
        if (shift.noise.line.groups[-1], shift.noise.line.measure) in sizes
    ]
    changed = groups.judged(kind, passed, sizes)
    found.findings += changed
    # What has changed is said once.
    cards = {(each.host, each.card, each.measure) for each in changed}
    found.findings += [
        each for each in permanent if (each.host, each.card, each.measure) not in cards
    ]
    found.compared = {
        (noise.line.host, noise.line.card, noise.line.measure)
        for noise in known
        if (noise.line.groups[-1], noise.line.measure) in sizes
    }
    return found
