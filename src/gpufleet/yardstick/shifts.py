"""Which cards have become worse than they were, measured against their siblings of the same nights.

The nights are divided into three parts. The older half of the reference nights gives a card's usual
offset, and the newer half shows how far healthy cards stray from it: that is what limits are made
of. The last nights are tested against the offset of the whole reference.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .fit import Row, median
from .runs import LENGTHS, Runs
from .values import NOTE_FACTOR, Budget, Finding, Kind, Line

# The nights that are tested, and the reference before them: at least so many, at most so many.
TESTED, LEAST_REFERENCE, MOST_REFERENCE = 10, 14, 40
WINDOW = TESTED + MOST_REFERENCE
# A card needs so many values in the half of the reference that its offset comes from.
LEAST_OFFSET_NIGHTS = 7
# Factor from the median of absolute differences of successive nights to one night's deviation, for
# normal noise. A lasting change of the card adds one difference only.
DIFFERENCE_TO_SIGMA = 1.4826 / math.sqrt(2)
# A card whose usual noise is below this in a part of the nights has changed: it is no example.
CHANGED = -3.0
# A card that is beyond this part of a limit may share what others have.
NEAR = 0.5


class Parts(NamedTuple):
    """The nights of the comparison, by position."""

    older: range
    newer: range
    tested: range

    @property
    def reference(self) -> range:
        """The nights before those that are tested."""
        return range(self.older.start, self.newer.stop)


def parts(nights: int) -> Parts:
    """Divide so many nights; without enough of them nothing is tested."""
    tested = max(0, min(TESTED, nights - LEAST_REFERENCE))
    end = nights - tested
    begin = max(0, end - MOST_REFERENCE)
    middle = (begin + end) // 2
    return Parts(range(begin, middle), range(middle, end), range(end, nights))


@dataclass(frozen=True, slots=True)
class Noise:
    """One line in units of its own noise: the nights that calibrate, and those that are tested."""

    line: Line
    sigma: float
    calibrating: Row
    tested: Row

    def depths(self) -> dict[int, float]:
        """By length of a run, the limit that the last nights all stay below; tonight is one."""
        if not self.tested or self.tested[-1] is None:
            return {}
        known = [-value for value in self.tested if value is not None]
        return {length: min(known[-length:]) for length in LENGTHS if length <= len(known)}


def noises(
    kind: Kind, lines: Sequence[Line], residuals: Sequence[Row], nights: Parts
) -> list[Noise]:
    """The lines of one measure that have enough nights to be compared with their own past."""
    ready: list[tuple[Line, Row, float, float, float]] = []
    by_group: dict[str, list[float]] = defaultdict(list)
    for line, row in zip(lines, residuals, strict=True):
        older, newer = (_known(row, part) for part in (nights.older, nights.newer))
        known = older + newer
        if len(older) < LEAST_OFFSET_NIGHTS or len(known) < LEAST_REFERENCE:
            continue
        steps = [abs(one - other) for one, other in zip(known, known[1:])]  # noqa: B905, RUF007
        sigma = DIFFERENCE_TO_SIGMA * statistics.median(steps)
        ready.append((line, row, statistics.median(older), statistics.median(known), sigma))
        by_group[line.groups[-1]].append(sigma)
    usual = {group: statistics.median(each) for group, each in by_group.items()}
    found = []
    for line, row, before, offset, own in ready:
        # The noise of a quiet card is underestimated now and then.
        sigma = max(own, usual[line.groups[-1]], kind.resolution)
        found.append(
            Noise(
                line,
                sigma,
                [
                    None if value is None else (value - before) / sigma
                    for value in row[nights.newer.start : nights.newer.stop]
                ],
                [
                    None if value is None else (value - offset) / sigma
                    for value in row[nights.tested.start : nights.tested.stop]
                ],
            )
        )
    return found


def _known(row: Row, nights: range) -> list[float]:
    return [value for value in row[nights.start : nights.stop] if value is not None]


def healthy_runs(known: Sequence[Noise]) -> Runs:
    """The runs of the calibrating nights, without cards that changed in them or since."""
    return Runs(
        (noise.line.host, noise.calibrating)
        for noise in known
        if not any(_changed(part) for part in (noise.calibrating, noise.tested))
    )


def _changed(part: Row) -> bool:
    # Few cards have a night like this, and a median takes long.
    if not any(value < CHANGED for value in part if value is not None):
        return False
    usual = median(part)
    return usual is not None and usual < CHANGED


@dataclass(frozen=True, slots=True)
class Shift:
    """One line that is beyond a limit; `near`: beyond `NEAR` of the limit of a fault."""

    noise: Noise
    length: int
    limit: float
    grade: str

    def finding(self, kind: Kind, siblings: int) -> Finding:
        """The line as a finding of its own."""
        known = [value for value in self.noise.tested if value is not None]
        nights = 0
        for value in reversed(known):
            if -value < self.limit:
                break
            nights += 1
        loss = statistics.median(known[-max(nights, self.length) :]) * self.noise.sigma
        line = self.noise.line
        return Finding(
            "shift",
            kind.name,
            line.measure,
            line.groups[-1],
            kind.change(loss),
            kind.change(-max(self.limit * self.noise.sigma, kind.least_loss)),
            nights,
            siblings,
            self.grade == "fails",
            line.host,
            line.card,
        )


def shifts(
    kind: Kind, known: Sequence[Noise], runs: Runs, budget: Budget, dropped: int = 0
) -> list[Shift]:
    """The lines whose last nights are beyond a limit, or near it.

    `runs`: those of healthy nights. `dropped`: so many of the last nights are left out.
    """
    chance = budget.chance("shift")
    fails, notes = (runs.limits(factor * chance) for factor in (1.0, NOTE_FACTOR))
    grades = (("fails", fails, 1.0), ("note", notes, 1.0), ("near", fails, NEAR))
    # Most lines are not as deep tonight as the smallest of these limits.
    nearest = min(part * min(limits.values()) for _, limits, part in grades)
    found = []
    for whole in known:
        tested = whole.tested[:-dropped] if dropped else whole.tested
        if not tested or tested[-1] is None or -tested[-1] < nearest:
            continue
        noise = replace(whole, tested=tested)
        depths = noise.depths()
        least = kind.least_loss / noise.sigma
        for grade, limits, part in grades:
            passed = [
                length
                for length, depth in depths.items()
                if depth >= limits[length] * part and depth >= least * part
            ]
            if passed:
                length = min(passed, key=lambda each: limits[each])
                found.append(Shift(noise, length, limits[length], grade))
                break
    return found
