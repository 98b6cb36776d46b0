"""Which cards have more errors in the last night than the fleet's own nights justify.

Counts have another noise than speeds: most nights have none, and where there are some, they come in
bursts, so that the deviation grows with the count itself (a Poisson distribution with a rate that
changes from night to night). So ratios are compared: (tonight's errors + 1) / (usual errors + 1).
How large they are in healthy nights is counted, as for other values, and one night is enough.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from .runs import Runs
from .shifts import CHANGED, LEAST_OFFSET_NIGHTS
from .values import ERRORS, LEAST_SIBLINGS, NOTE_FACTOR, Budget, Finding, Line

# How many nights the usual count comes from, before those that are tested, and the lengths of runs
# that are tested: a large rise shows in its first night, a small one in the third.
NIGHTS = 30
LENGTHS = (1, 3)
# The nights that are read: those with which the last night and the one before it are tested.
WINDOW = NIGHTS + max(LENGTHS) + 1


def ratio(count: float, usual: float) -> float:
    """How many times the usual count it is; one more of each, since most are 0."""
    return (count + 1) / (usual + 1)


def growths(readings: Sequence[float | None]) -> list[float | None]:
    """By night, the new errors since the reading before; `readings`: of a counter, oldest first.

    A counter that is smaller than before began again at 0, with a boot, a load of the driver or a
    reset: it has at least as many new errors as it shows. Several nights without a reading share
    what is new equally. The first reading says nothing.
    """
    found: list[float | None] = [None] * len(readings)
    if readings and readings.count(readings[0]) == len(readings) and readings[0] is not None:
        # Most counters stay as they are.
        return [None, *[0.0] * (len(readings) - 1)]
    before: float | None = None
    gap = 0
    for night, reading in enumerate(readings):
        gap += 1
        if reading is None:
            continue
        if before is not None:
            found[night] = (reading - before if reading >= before else reading) / gap
        before, gap = reading, 0
    return found


def rises(lines: Sequence[Line], budget: Budget) -> list[Finding]:
    """The cards whose count rose in the last night. Values are new errors of each night."""
    return rises_both(lines, budget)[1]


def rises_both(lines: Sequence[Line], budget: Budget) -> tuple[list[Finding], list[Finding]]:
    """The cards whose count rose in the night before the last one, and in the last one.

    A card's usual count is the mean of its own earlier nights and of one night of its group: a card
    without past nights is compared with its group alone. Both nights have the same usual counts and
    limits.
    """
    groups: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in lines:
        if line.groups[-1]:
            groups[line.measure, line.groups[-1]].append(line)
    known: list[tuple[Line, float, int]] = []
    hosts: list[str] = []
    noises: list[list[float]] = []
    for members in groups.values():
        if len(members) <= LEAST_SIBLINGS:
            continue
        past = [_past(line) for line in members]
        usual = _usual_of_group(members, past)
        # Most cards have the same counts: none.
        alike: dict[tuple[float | None, ...], tuple[float, list[float]]] = {}
        for line, own in zip(members, past, strict=True):
            values = tuple(line.values)
            if values not in alike:
                alike[values] = _noise(values, own, usual)
            expected, noise = alike[values]
            if noise:
                hosts.append(line.host)
                noises.append(noise)
            known.append((line, expected, len(members) - 1))
    width = max(map(len, noises), default=0)
    rows = [[*each, *[np.nan] * (width - len(each))] for each in noises]
    runs = Runs(hosts, np.array(rows).reshape(len(rows), width))
    chance = budget.chance("rise")
    fails, notes = (runs.limits(factor * chance, LENGTHS) for factor in (1.0, NOTE_FACTOR))
    return _judged(known, fails, notes, 1), _judged(known, fails, notes, 0)


def _usual_of_group(members: Sequence[Line], past: Sequence[Sequence[float]]) -> float:
    """The median over the hosts of a group of what is usual for a card of the host."""
    of_hosts: dict[str, list[float]] = defaultdict(list)
    for line, own in zip(members, past, strict=True):
        of_hosts[line.host] += own
    means = [statistics.fmean(each) for each in of_hosts.values() if each]
    return statistics.median(means) if means else 0.0


def _judged(
    known: Sequence[tuple[Line, float, int]],
    fails: Mapping[int, float],
    notes: Mapping[int, float],
    dropped: int,
) -> list[Finding]:
    """The rises without so many of the last nights. `known`: lines, usual counts, siblings."""
    found = []
    for line, expected, siblings in known:
        values = line.values[: len(line.values) - dropped][-max(LENGTHS) :]
        # Nothing rises where nothing is counted.
        if not values or not values[-1]:
            continue
        last = [value for value in values if value is not None]
        ratios = {
            length: ratio(min(last[-length:]), expected)
            for length in LENGTHS
            if length <= len(last)
        }
        if not any(each >= notes[length] for length, each in ratios.items()):
            continue
        length = max(ratios, key=lambda each: ratios[each] / fails[each])
        found.append(
            Finding(
                "rise",
                ERRORS,
                line.measure,
                line.groups[-1],
                min(last[-length:]) - expected,
                fails[length] * (expected + 1) - 1 - expected,
                length,
                siblings,
                ratios[length] >= fails[length],
                line.host,
                line.card,
            )
        )
    return found


def _noise(
    values: Sequence[float | None], own: Sequence[float], usual: float
) -> tuple[float, list[float]]:
    """The usual count of a card, and its nights as examples; none if it is no healthy one."""
    expected = (sum(own) + usual) / (len(own) + 1)
    last = [value for value in values[-max(LENGTHS) :] if value is not None]
    half = len(own) // 2
    # A card that has errors in most nights is no healthy example.
    rising = last and -ratio(statistics.median(last), expected) < CHANGED
    if half < LEAST_OFFSET_NIGHTS or rising:
        return expected, []
    before = (sum(own[:half]) + usual) / (half + 1)
    noise = [-ratio(each, before) for each in own[half:]]
    return expected, noise if statistics.median(noise) > CHANGED else []


def _past(line: Line) -> list[float]:
    end = len(line.values) - max(LENGTHS) - 1
    return [value for value in line.values[max(0, end - NIGHTS) : max(0, end)] if value is not None]
