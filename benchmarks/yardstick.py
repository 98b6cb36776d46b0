# Apache-2.0, see LICENSE
"""False hosts a month, and nights until a faulty card is named, in simulated fleets.

One month of fleets of 10 to 10,000 cards (`simulated_fleet.py`), with cards that become slow or
have more errors. Beside the fleet's own yardstick: a fixed limit, SuperBench's rule and the median
absolute deviation without correction. These see only throughputs and bandwidths, without noise of
start-up times and temperatures. Needs no lab. Writes the pictures of docs/explanation/yardstick.md.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing import Pool

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.table import Table

from gpufleet.yardstick import counts
from gpufleet.yardstick.analysis import analyse
from gpufleet.yardstick.values import ALL, NIGHTS_PER_MONTH, WINDOW, Budget, Finding

from .common import ROOT
from .simulated_fleet import BANDWIDTH, COUNTERS, MEASURES, NIGHTS, SPEED, Fault, Fleet

# By size: the seeds of its fleets, and how many cards of each fault a fleet has. No constant and no
# rule of the yardstick was chosen by these fleets.
FLEETS: Mapping[int, tuple[Sequence[int], int]] = {
    10: (range(120, 144), 1),
    100: (range(120, 129), 1),
    1000: (range(140, 152), 6),
    10_000: (range(220, 226), 40),
}
# The fleets of the comparison with other methods.
COMPARED, COMPARED_FLEETS, COMPARED_FAULTS = 400, 2, 2
FIRST = NIGHTS - NIGHTS_PER_MONTH
DELAYS = ROOT / "docs" / "explanation" / "yardstick-delays.svg"
CURVES = ROOT / "docs" / "explanation" / "yardstick-curves.svg"
OWN, FIXED, SUPERBENCH, MAD = "own nights", "fixed limit", "SuperBench", "MAD, no correction"
# The setting that is usual for each method, and others for the curves.
SETTINGS: Mapping[str, tuple[float, Sequence[float]]] = {
    OWN: (1.0, (0.01, 1.0, 100.0)),
    FIXED: (0.9, (0.75, 0.8, 0.85, 0.9, 0.95, 0.97)),
    SUPERBENCH: (0.05, (0.2, 0.15, 0.12, 0.1, 0.07, 0.05, 0.03)),
    MAD: (3.5, (10.0, 7.0, 5.0, 4.0, 3.5, 3.0, 2.5)),
}
SLOW, SLOWER, ERRORS = "5 % slower", "10 % slower", "errors rise"
ROWS = "rows remapped"
LIMITS = {SLOWER: 3, SLOW: 10, ERRORS: 1, ROWS: 3}


@dataclass
class Month:
    """The result of a method in a month: healthy hosts that it named, and each faulty card's delay.

    `delays`: by fault, the night in which each card was named, 1 is the first; inf: not named.
    `shared`: findings of groups and of hosts that slowed down together.
    """

    false_hosts: set[str] = field(default_factory=set)
    delays: dict[str, list[float]] = field(default_factory=dict)
    shared: int = 0
    seconds: float = 0.0


def faulty(cards: int, seed: int, each: int) -> Fleet:
    """A fleet with so many cards of each fault, on hosts of their own."""
    chance = np.random.default_rng(seed + 10_000)
    per_host = 8 if cards >= 64 else 5
    hosts = chance.permutation(cards // per_host) * per_host
    counters = cycle(COUNTERS)
    kinds = [kind for _ in range(each) for kind in ((0.1, ""), (0.05, ""), (0.0, next(counters)))]
    if len(hosts) < 3:
        # A fleet of two hosts has one faulty card, in turn of each kind.
        loss, counter = kinds[seed % 3]
        kinds = [(loss, counter and list(COUNTERS)[seed // 3 % 3])]
    faults = [
        Fault(int(card), int(night), loss, counter)
        for card, night, (loss, counter) in zip(
            hosts, chance.integers(FIRST, NIGHTS - 10, len(hosts)), kinds, strict=False
        )
    ]
    return Fleet(cards, seed, faults)


def title(fault: Fault) -> str:
    """The name of its kind."""
    if fault.counter:
        return ROWS if fault.counter == "remapped rows" else ERRORS
    return SLOWER if fault.loss > 0.07 else SLOW


def own(fleet: Fleet, alerts: float = 1.0) -> Month:
    """A month of the fleet's own yardstick, night by night."""
    hosts = int(fleet.hosts[-1]) + 1
    kinds = list({id(measure.kind): measure.kind for measure in MEASURES}.values())
    groups = len(MEASURES) * len({each[-1] for each in fleet.groups})
    budget = Budget(alerts, hosts, len(kinds), fleet.cards * len(MEASURES), groups)
    named: dict[str, int] = {}
    hosts_named: set[str] = set()
    found = Month()
    shared: set[tuple[str, str, str]] = set()
    began = time.process_time()
    for night in range(FIRST, NIGHTS):
        first = max(0, night - WINDOW + 1)
        findings = counts.rises(list(fleet.lines(fleet.errors, first, night)), budget)
        for kind in kinds:
            values = {
                measure.name: fleet.values[measure.name]
                for measure in MEASURES
                if measure.kind is kind
            }
            findings += analyse(kind, fleet.lines(values, first, night), budget).findings
        shared |= {_key(each) for each in findings if each.method in {"group", "shared"}}
        for each in findings:
            if not each.fails or not each.host:
                continue
            if each.card == ALL:
                hosts_named.add(each.host)
            elif not _before(fleet, each, night):
                named.setdefault(each.card, night)
    found.seconds = (time.process_time() - began) / NIGHTS_PER_MONTH
    found.shared = len(shared)
    cards = {f"card {fault.card}": fault for fault in fleet.faults}
    ill = {fleet.host(fault.card) for fault in fleet.faults}
    found.false_hosts = {*hosts_named, *(fleet.host(int(card.split()[1])) for card in named)} - ill
    for card, fault in cards.items():
        delay = named[card] - fault.night + 1 if card in named else math.inf
        found.delays.setdefault(title(fault), []).append(delay)
    return found


def _key(each: Finding) -> tuple[str, str, str]:
    return each.method, each.measure, each.group


def _before(fleet: Fleet, each: Finding, night: int) -> bool:
    """Return whether a faulty card is named before its fault begins."""
    return any(each.card == f"card {fault.card}" and night < fault.night for fault in fleet.faults)


# -- other methods ---------------------------------------------------------------------------------


def other(fleet: Fleet, method: str, setting: float) -> Month:
    """A month of a method that judges each night alone."""
    low = np.zeros((fleet.cards, NIGHTS), bool)
    groups = np.array(fleet.groups)
    models = np.array([each[-1].split(",")[0] for each in fleet.groups])
    for measure in MEASURES:
        if measure.kind in {SPEED, BANDWIDTH}:
            values = fleet.values[measure.name]
            for model in sorted(set(models)):
                inside = models == model
                nominal = measure.level * (1.7 if model.endswith("1") else 1.0)
                low[inside] |= _low(values[inside], groups[inside], nominal, method, setting)
    found = Month()
    ill = {fleet.host(fault.card) for fault in fleet.faults}
    named = low[:, FIRST:].any(axis=1)
    found.false_hosts = {fleet.host(int(card)) for card in np.flatnonzero(named)} - ill
    for fault in fleet.faults:
        if fault.loss:
            nights = np.flatnonzero(low[fault.card, fault.night :])
            delay = float(nights[0]) + 1 if len(nights) else math.inf
            found.delays.setdefault(title(fault), []).append(delay)
    return found


def _low(
    values: NDArray[np.float64],
    groups: NDArray[np.str_],
    nominal: float,
    method: str,
    setting: float,
) -> NDArray[np.bool_]:
    if method == FIXED:
        return values < setting * nominal
    if method == SUPERBENCH:
        # The criterion is learned once from the fleet's results; by how much worse is defective.
        return values < (1 - setting) * np.nanmedian(values[:, :10])
    found = np.zeros(values.shape, bool)
    for night in range(values.shape[1]):
        for group in set(groups[:, night]):
            inside = groups[:, night] == group
            column = values[inside, night]
            if np.isfinite(column).sum() > 8:
                usual = np.nanmedian(column)
                spread = 1.4826 * np.nanmedian(np.abs(column - usual))
                found[inside, night] = column < usual - setting * spread
    return found


def named_within(months: Iterable[Month], fault: str, nights: float) -> float:
    """The share of the cards with this fault that were named by then."""
    delays = [delay for month in months for delay in month.delays.get(fault, ())]
    return sum(delay <= nights for delay in delays) / len(delays) if delays else math.nan


def false_hosts(months: Sequence[Month]) -> float:
    """Healthy hosts that were named, per month of one fleet."""
    return statistics.fmean(len(month.false_hosts) for month in months)


def compared(method: str, setting: float, seed: int) -> Month:
    """One fleet of the comparison, judged by a method."""
    fleet = faulty(COMPARED, seed, COMPARED_FAULTS)
    return own(fleet, setting) if method == OWN else other(fleet, method, setting)


def sized(cards: int, seed: int) -> Month:
    """One fleet of a size, judged by its own nights."""
    return own(faulty(cards, seed, FLEETS[cards][1]))


# -- pictures --------------------------------------------------------------------------------------

COLOURS = {OWN: "#00695c", FIXED: "#b71c1c", SUPERBENCH: "#5e35b1", MAD: "#a15c00"}
LEFT, TOP, WIDTH, HEIGHT = 60, 20, 470, 300


def frame(label: str, below: str, ticks: Mapping[str, float]) -> list[str]:
    """The axes: shares upwards, and the named ticks from 0 to 1."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 370"'
        f' font-family="system-ui, sans-serif" font-size="13" role="img" aria-label="{label}">',
        '<rect width="760" height="370" fill="#fff"/>',
    ]
    for percent in range(0, 101, 25):
        at = TOP + HEIGHT * (1 - percent / 100)
        parts += [
            f'<path d="M{LEFT} {at:.1f}H{LEFT + WIDTH}" stroke="#ddd"/>',
            f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{percent} %</text>',
        ]
    parts += [
        f'<text x="{LEFT + WIDTH * x:.1f}" y="{TOP + HEIGHT + 20}" text-anchor="middle">'
        f"{text}</text>"
        for text, x in ticks.items()
    ]
    parts.append(
        f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 40}" text-anchor="middle">{below}</text>'
    )
    return parts


def curve(points: Sequence[tuple[float, float]], colour: str, dashed: bool) -> list[str]:
    """A line with its points; both from 0 to 1."""
    placed = [(LEFT + WIDTH * x, TOP + HEIGHT * (1 - y)) for x, y in points]
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
    return [
        f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in placed),
    ]


def legend(methods: Iterable[str]) -> list[str]:
    """The methods by colour, and the faults by dashes."""
    rows = [*methods, "whole line: 10 % slower", "dashes: 5 % slower"]
    return [
        f'<text x="{LEFT + WIDTH + 14}" y="{TOP + 20 + 20 * row}"'
        f' fill="{COLOURS.get(text, "#333")}">{text}</text>'
        for row, text in enumerate(rows)
    ]


def delays_picture(months: Mapping[str, Sequence[Month]]) -> str:
    """The share of faulty cards that are named, by nights since the fault began."""
    parts = frame(
        "Share of faulty cards that are named, by nights since the fault began",
        "nights since the fault began; upwards the share of faulty cards that are named",
        {str(night): (night - 1) / 9 for night in range(1, 11)},
    )
    for method, found in months.items():
        for fault in (SLOWER, SLOW):
            points = [
                ((night - 1) / 9, named_within(found, fault, night)) for night in range(1, 11)
            ]
            parts += curve(points, COLOURS[method], fault == SLOW)
    return "\n".join([*parts, *legend(months), "</svg>", ""])


def curves_picture(months: Mapping[str, Mapping[float, Sequence[Month]]]) -> str:
    """The share that is named in time, by false hosts a month, one point for each setting."""

    def across(number: float) -> float:
        return min(1.0, max(0.0, (math.log10(max(number, 0.1)) + 1) / 3))

    parts = frame(
        "Share of faulty cards that are named in time, by false hosts a month",
        f"false hosts a month of {COMPARED // 8} hosts; upwards the share that is named in time",
        {"0.1 or none": 0.0, "1": 1 / 3, "10": 2 / 3, "100": 1.0},
    )
    for method, settings in months.items():
        for fault in (SLOWER, SLOW):
            points = sorted(
                (across(false_hosts(found)), named_within(found, fault, LIMITS[fault]))
                for found in settings.values()
            )
            parts += curve(points, COLOURS[method], fault == SLOW)
    return "\n".join([*parts, *legend(months), "</svg>", ""])


# -- tables ----------------------------------------------------------------------------------------


def sizes_table(months: Mapping[int, Sequence[Month]]) -> Table:
    """Fleets of all sizes, judged by their own nights."""
    shown = Table(title="budget: one false host a month", min_width=60)
    columns = ("cards", "fleets", "false hosts a month", f"{SLOWER}, 3 nights", f"{SLOW}, 10")
    for heading in (*columns, f"{ERRORS}, 1", f"{ROWS}, 3", "shared findings a month", "s a night"):
        shown.add_column(heading, justify="right")
    for cards, found in months.items():
        shown.add_row(
            f"{cards:,}",
            str(len(found)),
            f"{false_hosts(found):.2f}",
            *(share(named_within(found, fault, LIMITS[fault])) for fault in LIMITS),
            f"{statistics.fmean(month.shared for month in found):.1f}",
            f"{statistics.fmean(month.seconds for month in found):.1f}",
        )
    return shown


def methods_table(months: Mapping[str, Mapping[float, Sequence[Month]]]) -> Table:
    """The methods side by side, each with its usual setting."""
    shown = Table(title=f"{COMPARED} cards", min_width=60)
    for heading in ("method", "setting", "false hosts a month", f"{SLOWER}, 3", f"{SLOW}, 10"):
        shown.add_column(heading, justify="left" if heading == "method" else "right")
    for method, settings in months.items():
        usual = SETTINGS[method][0]
        found = settings[usual]
        shown.add_row(
            method,
            f"{usual:g}",
            f"{false_hosts(found):.1f}",
            *(share(named_within(found, fault, LIMITS[fault])) for fault in (SLOWER, SLOW)),
        )
    return shown


def share(value: float) -> str:
    """A share as text."""
    return "" if math.isnan(value) else f"{value:.0%}"


def measure(rounds: int, console: Console) -> Group:
    """Both tables and both pictures; the simulation is seeded, so that one round is enough."""
    del rounds
    with Pool(os.cpu_count()) as pool, console.status("simulated fleets"):
        by_size = {
            cards: pool.starmap(sized, [(cards, seed) for seed in seeds])
            for cards, (seeds, _) in FLEETS.items()
        }
        by_method = {
            method: {
                setting: pool.starmap(
                    compared, [(method, setting, 50 + seed) for seed in range(COMPARED_FLEETS)]
                )
                for setting in settings
            }
            for method, (_, settings) in SETTINGS.items()
        }
    usual = {method: by_method[method][SETTINGS[method][0]] for method in by_method}
    DELAYS.write_text(delays_picture(usual), encoding="utf-8")
    CURVES.write_text(curves_picture(by_method), encoding="utf-8")
    return Group(sizes_table(by_size), methods_table(by_method))
