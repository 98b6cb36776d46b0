"""Which cards have become worse than they were, measured against their siblings of the same nights.

The nights are divided into three parts. The older half of the reference nights gives a card's usual
offset, and the newer half shows how far healthy cards stray from it: that is what limits are made
of. The last nights are tested against the offset of the whole reference.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import votes
from .fit import MAD_TO_SIGMA, Rows, counted, medians, packed
from .runs import LENGTHS, Runs
from .values import MOST_REFERENCE, NOTE_FACTOR, TESTED, Finding, Kind, Line

# The nights before those that are tested: at least so many.
LEAST_REFERENCE = 14
# A card needs so many values in the half of the reference that its offset comes from.
LEAST_OFFSET_NIGHTS = 7
# Factor from the median of absolute differences of successive nights to one night's deviation, for
# normal noise. A lasting change of the card adds one difference only.
DIFFERENCE_TO_SIGMA = MAD_TO_SIGMA / math.sqrt(2)
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


@dataclass(frozen=True)
class Noises:
    """Lines in units of their own noise: the nights that calibrate, and those that are tested.

    `last`: the nights that are tested, and some before them; `window`: how many are tested.
    """

    lines: Sequence[Line]
    sigmas: Rows
    calibrating: Rows
    last: Rows
    window: int

    def tested(self, dropped: int = 0) -> Rows:
        """The nights that are tested without so many of the last nights: as many, from before."""
        end = max(0, self.last.shape[1] - dropped)
        return self.last[:, max(0, end - self.window) : end]


@dataclass(frozen=True, slots=True)
class Noise:
    """One line in units of its own noise: what is known of the nights that are tested."""

    line: Line
    sigma: float
    tested: Sequence[float]


def noises(
    kind: Kind,
    lines: Sequence[Line],
    residuals: Rows,
    nights: Parts,
    *,
    groups: Collection[str],
    earlier: int,
) -> Noises:
    """The lines of one measure that have enough nights to be compared with their own past.

    `groups`: those that have enough cards tonight. `earlier`: how many nights before those that are
    tested are known as well, to tell what was found in them.
    """
    older, newer, reference = (
        residuals[:, part.start : part.stop]
        for part in (nights.older, nights.newer, nights.reference)
    )
    last = residuals[:, max(0, nights.tested.start - earlier) :]
    ready = np.array([line.groups[-1] in groups for line in lines], bool)
    ready &= (counted(older) >= LEAST_OFFSET_NIGHTS) & (counted(reference) >= LEAST_REFERENCE)
    older, newer, reference, last = (rows[ready] for rows in (older, newer, reference, last))
    own = [line for line, is_ready in zip(lines, ready, strict=True) if is_ready]
    sigmas = DIFFERENCE_TO_SIGMA * medians(np.abs(np.diff(packed(reference)[0])))
    by_group: dict[str, list[int]] = defaultdict(list)
    for position, line in enumerate(own):
        by_group[line.groups[-1]].append(position)
    usual = np.full(len(own), kind.resolution)
    for positions in by_group.values():
        hosts = (own[position].host for position in positions)
        usual[positions] = max(
            kind.resolution, votes.median_of_hosts(sigmas[positions].tolist(), hosts)
        )
    # The noise of a quiet card is underestimated now and then.
    sigmas = np.maximum(sigmas, usual)
    return Noises(
        own,
        sigmas,
        (newer - medians(older)[:, None]) / sigmas[:, None],
        (last - medians(reference)[:, None]) / sigmas[:, None],
        len(nights.tested),
    )


def healthy_runs(known: Sequence[Noises]) -> Runs:
    """The runs of the calibrating nights, without cards that changed in them or since."""
    healthy = [
        ~((medians(each.calibrating) < CHANGED) | (medians(each.tested()) < CHANGED))
        for each in known
    ]
    hosts = [
        line.host
        for each, kept in zip(known, healthy, strict=True)
        for line, is_kept in zip(each.lines, kept, strict=True)
        if is_kept
    ]
    rows = [each.calibrating[kept] for each, kept in zip(known, healthy, strict=True)]
    return Runs(hosts, np.concatenate(rows) if rows else np.empty((0, 0)))


@dataclass(frozen=True, slots=True)
class Shift:
    """One line that is beyond a limit.

    `grade`: `fails`; `shared`: it fails if enough others lost as much, and is a note else; `note`;
    `near`: beyond `NEAR` of that of a fault which others share, or soon so. `length`, `limit`: of
    the run that names it. `runs`: by length, how deep all nights of its run are, and the limit of a
    fault.
    """

    noise: Noise
    length: int
    limit: float
    grade: str
    runs: Sequence[tuple[float, float]]

    def losses(self, kind: Kind) -> list[tuple[float, float]]:
        """By length of a run: what was lost in each of its nights, and the loss that is a fault."""
        return [
            (
                abs(kind.change(-depth * self.noise.sigma)),
                abs(kind.change(-max(limit * self.noise.sigma, kind.least_loss))),
            )
            for depth, limit in self.runs
        ]

    def finding(self, kind: Kind, siblings: int) -> Finding:
        """The line as a finding of its own."""
        known = self.noise.tested
        # It began where about half of the loss is there, whatever the limit is.
        half = statistics.median(known[-self.length :]) / 2
        lasts = next(
            (nights for nights, each in enumerate(reversed(known)) if each > half), len(known)
        )
        nights = max(lasts, self.length)
        loss = statistics.median(known[-nights:]) * self.noise.sigma
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


class Limits(NamedTuple):
    """By length of a run, from which depth on it is a fault, one if others share it, or a note."""

    fails: dict[int, float]
    shared: dict[int, float]
    notes: dict[int, float]


def limits(runs: Runs, chance: float, *, jobs: bool) -> Limits:
    """The limits that the runs of healthy nights justify for a probability of a false alarm.

    `jobs`: a job may slow the lines for the shortest run of nights. A month has too few such runs
    to count them, but each of their nights is as deep as one of a job that is gone the next night.
    """
    shared, notes = runs.limits(chance), runs.limits(NOTE_FACTOR * chance)
    shortest = min(LENGTHS)
    rare = runs.rare_night() if jobs else 0.0
    return Limits({**shared, shortest: max(shared[shortest], rare)}, shared, notes)


def shifts(kind: Kind, known: Sequence[Noises], limits: Limits, dropped: int = 0) -> list[Shift]:
    """The lines whose last nights are beyond a limit, or near it.

    `dropped`: so many of the last nights are left out.
    """
    grades = (
        ("fails", limits.fails, 1.0),
        ("shared", limits.shared, 1.0),
        ("note", limits.notes, 1.0),
        ("near", limits.shared, NEAR),
    )
    # Most lines are not as deep tonight as the smallest of these limits.
    nearest = min(part * min(each.values()) for _, each, part in grades)
    # A host that shares a loss may have it some nights less: a job slows it before or after.
    shorter = {length: LENGTHS[max(0, at - 1)] for at, length in enumerate(LENGTHS)}
    found = []
    for each in known:
        tested = each.tested(dropped)
        if not tested.shape[1]:
            continue
        lines = np.flatnonzero(-tested[:, -1] >= nearest)
        depths = _depths(tested[lines])
        least = kind.least_loss / each.sigmas[lines]
        rest = np.ones(len(lines), bool)
        for grade, limit, part in grades:
            # The run with the lowest limit is the one that names a line.
            for length in sorted(limit, key=limit.__getitem__):
                run = shorter[length] if grade == "near" else length
                if run not in depths:
                    continue
                beyond = rest & (depths[run] >= np.maximum(limit[length], least) * part)
                for at in np.flatnonzero(beyond).tolist():
                    line = int(lines[at])
                    row = tested[line]
                    noise = Noise(
                        each.lines[line], float(each.sigmas[line]), row[~np.isnan(row)].tolist()
                    )
                    runs = [
                        (float(depth[at]), limits.fails[nights])
                        for nights, depth in depths.items()
                        if depth[at] > 0 and math.isfinite(limits.fails[nights])
                    ]
                    found.append(Shift(noise, run, limit[length], grade, runs))
                rest &= ~beyond
    return found


def _depths(tested: Rows) -> dict[int, Rows]:
    """By length of a run, the limit that the last nights of each line all stay below.

    Nights that did not measure a line do not count; what has too few others is infinitely high.
    """
    last_first, _ = packed(tested[:, ::-1])
    known = counted(tested)
    return {
        length: np.where(known >= length, -last_first[:, :length].max(axis=1), -np.inf)
        for length in LENGTHS
        if length <= tested.shape[1]
    }
