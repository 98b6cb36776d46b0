"""Read the values of cards from the history, and compare them with their siblings.

A group is model, SKU and driver of a card in a night; the toolkit is a part of a measure's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gpufleet.catalog import yardstick as facts
from gpufleet.yardstick.analysis import Analysis, analyse
from gpufleet.yardstick.shifts import WINDOW
from gpufleet.yardstick.values import LEAST_SIBLINGS, Budget, Kind, Line

from . import versions
from .recording import split_measure

# One night more than is compared: what is new tonight follows from the night before.
NIGHTS = WINDOW + 1

# By host and measure, the number or text of each night.
Numbers = Mapping[tuple[str, str], Sequence[float | None]]
Texts = Mapping[str, Sequence[str | None]]


class Values(Protocol):
    """What is read of the history, of some nights."""

    def numbers(self, named: str) -> Numbers:
        """The numbers of the measures that a pattern matches."""

    def texts(self, name: str) -> Texts:
        """The texts of a measure, by host."""


def compare(values: Values, nights: int, alerts_per_month: float) -> tuple[Analysis, Analysis]:
    """Compare the last of so many nights, and the night before: (before, tonight)."""
    kinds = facts.kinds()
    groups = _Groups(values)
    found = Analysis(), Analysis()
    read = {pattern: _lines(values.numbers(pattern), groups, nights) for pattern in kinds}
    lines = [line for each in read.values() for line in each]
    budget = Budget(
        alerts_per_month,
        len({line.host for line in lines}),
        len(kinds),
        len(lines),
        len({(line.groups[-1], line.measure) for line in lines}),
    )
    for pattern, kind in kinds.items():
        members = read.pop(pattern)
        for whole, first in zip(found, (0, 1), strict=True):
            if nights - 1 + first > 0:
                whole.add(analyse(kind, _slice(members, first, nights - 1 + first), budget))
    return found


def distributions(values: Values, nights: int) -> Analysis:
    """The distribution of each group and measure in the last of so many nights."""
    return compare(values, nights, 1.0)[1]


def _slice(lines: Sequence[Line], first: int, last: int) -> list[Line]:
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    return [
        Line(
            line.host,
            line.card,
            line.measure,
            shared.setdefault(line.groups, line.groups[first:last]),
            line.values[first:last],
        )
        for line in lines
    ]


def _lines(numbers: Numbers, groups: _Groups, nights: int) -> list[Line]:
    found = []
    for (host, name), values in numbers.items():
        card, measure = split_measure(name)
        if card.startswith("gpu.") and len(numbers) > LEAST_SIBLINGS:
            uuid = card.removeprefix("gpu.")
            found.append(Line(host, uuid, measure, groups.of(host, uuid, nights), values))
    return found


class _Groups:
    """By host and card, its group in each night."""

    def __init__(self, values: Values) -> None:
        self._drivers, self._cards, self._skus = (
            values.texts(name) for name in ("driver.version", "gpus", "skus")
        )
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}
        # Cards with the same history share one tuple.
        self._shared: dict[tuple[str, ...], tuple[str, ...]] = {}

    def of(self, host: str, uuid: str, nights: int) -> tuple[str, ...]:
        """The card's group in each night; empty where it is not known."""
        key = host, uuid
        if key not in self._known:
            none = [None] * nights
            found = tuple(
                _group(uuid, cards, skus, driver)
                for cards, skus, driver in zip(
                    self._cards.get(host, none),
                    self._skus.get(host, none),
                    self._drivers.get(host, none),
                    strict=True,
                )
            )
            self._known[key] = self._shared.setdefault(found, found)
        return self._known[key]


def _group(uuid: str, cards: str | None, skus: str | None, driver: str | None) -> str:
    card = versions.cards(cards or "").get(uuid)
    if card is None or driver is None:
        return ""
    sku = dict(row.partition(" ")[::2] for row in (skus or "").split("; ")).get(uuid)
    return ", ".join(filter(None, (card[1], sku, f"driver {driver}")))


__all__ = ["NIGHTS", "Kind", "Values", "compare", "distributions"]
