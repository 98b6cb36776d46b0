"""Read the values of cards from the history, and compare them with their siblings.

A group is model, SKU and driver of a card in a night; the toolkit is a part of a measure's name.
A value of a host, such as the time of an import, is compared where all of its cards are one group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpufleet.catalog import yardstick as facts
from gpufleet.yardstick import counts
from gpufleet.yardstick.analysis import Analysis, analyse_both
from gpufleet.yardstick.shifts import WINDOW
from gpufleet.yardstick.values import LEAST_SIBLINGS, Budget, Line

from . import versions
from .measures import ERRORS
from .recording import split_measure

if TYPE_CHECKING:
    from .history import History, RecordedRun

# By host and measure, the number of each night.
Numbers = Mapping[tuple[str, str], Sequence[float | None]]
# How the name of a card's measure begins.
CARD = "gpu."


def compare(
    history: History,
    runs: Sequence[RecordedRun],
    alerts_per_month: float,
    known: Mapping[str, Numbers] | None = None,
) -> tuple[Analysis, Analysis]:
    """Compare the cards in the run before the last one, and in the last one.

    `runs`: at most `WINDOW` of them count. `known`: numbers of these runs that were read already,
    by the pattern of their names.
    """
    last = list(runs[-WINDOW:])
    nights = len(last)
    kinds = facts.kinds()
    groups = _Groups(history, last)
    found = Analysis(), Analysis()
    read = {
        pattern: _lines(
            (known or {}).get(pattern) or history.numbers(last, pattern), groups, nights
        )
        for pattern in kinds
    }
    lines = [line for each in read.values() for line in each]
    errors = _counts(history, last, groups)
    budget = Budget(
        alerts_per_month,
        len({line.host for line in (*lines, *errors)}),
        sum(bool(members) for members in read.values()),
        len(lines),
        len({(line.groups[-1], line.measure) for line in lines}),
    )
    for pattern, kind in kinds.items():
        members = read.pop(pattern)
        for whole, night in zip(found, analyse_both(kind, members, budget), strict=True):
            whole.add(night)
    for whole, rises in zip(found, counts.rises_both(errors, budget), strict=True):
        whole.findings += rises
    found[1].counted = {(line.host, line.card) for line in errors if line.values[-1] is not None}
    return found


def _lines(numbers: Numbers, groups: _Groups, nights: int) -> list[Line]:
    found: list[Line] = []
    if len(numbers) <= LEAST_SIBLINGS:
        return found
    for (host, name), values in numbers.items():
        device, measure = split_measure(name)
        if device.startswith(CARD) or not device:
            card = device.removeprefix(CARD)
            found.append(Line(host, card, measure, groups.of(host, card, nights), values))
    return found


def _counts(history: History, runs: list[RecordedRun], groups: _Groups) -> list[Line]:
    """The new errors of each card and night. A counter's first reading tells no growth."""
    last = runs[-counts.WINDOW - 1 :]
    readings = _lines(history.numbers(last, f"{CARD}*{ERRORS}"), groups, len(runs))
    nights = len(last) - 1
    return [
        replace(
            line,
            measure=line.measure.removesuffix(ERRORS),
            groups=line.groups[len(runs) - nights :],
            values=counts.growths(line.values)[1:],
        )
        for line in readings
        if nights
    ]


class _Groups:
    """By host and card, its group in each night; without a card, that of all cards of the host."""

    def __init__(self, history: History, runs: list[RecordedRun]) -> None:
        self._drivers, self._cards, self._skus = (
            history.texts(runs, name) for name in ("driver.version", "gpus", "skus")
        )
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}
        # Cards with the same history share one tuple.
        self._shared: dict[tuple[str, ...], tuple[str, ...]] = {}

    def of(self, host: str, uuid: str, nights: int) -> tuple[str, ...]:
        """The card's group in each night; empty where it is not known."""
        key = host, uuid
        if key not in self._known:
            none = [None] * nights
            # Most nights are as the night before.
            names: dict[tuple[str | None, ...], str] = {}
            found = []
            for texts in zip(
                self._cards.get(host, none),
                self._skus.get(host, none),
                self._drivers.get(host, none),
                strict=True,
            ):
                if texts not in names:
                    names[texts] = _group(uuid, *texts)
                found.append(names[texts])
            groups = tuple(found)
            self._known[key] = self._shared.setdefault(groups, groups)
        return self._known[key]


def _group(uuid: str, cards: str | None, skus: str | None, driver: str | None) -> str:
    known = versions.cards(cards or "")
    if not uuid:
        own = {_group(each, cards, skus, driver) for each in known}
        return own.pop() if len(own) == 1 else ""
    card = known.get(uuid)
    if card is None or driver is None:
        return ""
    sku = dict(row.partition(" ")[::2] for row in (skus or "").split("; ")).get(uuid)
    return ", ".join(filter(None, (card[1], sku, f"driver {driver}")))
