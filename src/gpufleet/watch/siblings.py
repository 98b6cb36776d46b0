"""Read the values of cards from the history, and compare them with their siblings.

A group is model, SKU and driver of a card in a night; the toolkit is a part of a measure's name.
A value of a host, such as the time of an import, is compared where all of its cards are one group.
Of each host as many cards are compared as it is declared to have: it may invent others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpufleet.catalog import yardstick as facts
from gpufleet.yardstick import counts
from gpufleet.yardstick.analysis import analyse_both
from gpufleet.yardstick.values import LEAST_SIBLINGS, WINDOW, Analysis, Budget, Line
from gpufleet.yardstick.votes import limited

from . import versions
from .measures import DECLARED, ERRORS
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
    declared = _declared(history, last)
    found = Analysis(), Analysis()
    read = {
        pattern: _lines(
            (known or {}).get(pattern) or history.numbers(last, pattern), groups, nights, declared
        )
        for pattern in kinds
    }
    lines = [line for each in read.values() for line in each]
    errors = _counts(history, last, groups, declared)
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


def _declared(history: History, runs: list[RecordedRun]) -> dict[str, int]:
    """By host, the last number of cards that it was declared to have; a value of a host is one."""
    found = {}
    for (host, _), numbers in history.numbers(runs, DECLARED).items():
        known = [int(number) for number in numbers if number is not None]
        if known:
            found[host] = max(known[-1], 1)
    return found


def _lines(
    numbers: Numbers, groups: _Groups, nights: int, declared: Mapping[str, int]
) -> list[Line]:
    found: list[Line] = []
    if len(numbers) <= LEAST_SIBLINGS:
        return found
    for (host, name), values in numbers.items():
        device, measure = split_measure(name)
        if device.startswith(CARD) or not device:
            card = device.removeprefix(CARD)
            found.append(Line(host, card, measure, groups.of(host, card, nights), values))
    return limited(found, declared)


def _counts(
    history: History, runs: list[RecordedRun], groups: _Groups, declared: Mapping[str, int]
) -> list[Line]:
    """The new errors of each card and night. A counter's first reading tells no growth."""
    last = runs[-counts.WINDOW - 1 :]
    readings = _lines(history.numbers(last, f"{CARD}*{ERRORS}"), groups, len(runs), declared)
    nights = len(last) - 1
    return [
        Line(
            line.host,
            line.card,
            line.measure.removesuffix(ERRORS),
            line.groups[len(runs) - nights :],
            counts.growths(line.values)[1:],
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
        # Most nights are as the night before.
        self._parsed: dict[tuple[str | None, ...], dict[str, str]] = {}
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}
        self._hosts: dict[str, list[dict[str, str]]] = {}
        # Cards with the same history share one tuple.
        self._shared: dict[tuple[str, ...], tuple[str, ...]] = {}

    def of(self, host: str, uuid: str, nights: int) -> tuple[str, ...]:
        """The card's group in each night; empty where it is not known."""
        if host not in self._hosts:
            none = [None] * nights
            lines = (texts.get(host, none) for texts in (self._cards, self._skus, self._drivers))
            self._hosts[host] = [self._of_night(*texts) for texts in zip(*lines, strict=True)]
        if (host, uuid) not in self._known:
            groups = tuple([known.get(uuid, "") for known in self._hosts[host]])
            self._known[host, uuid] = self._shared.setdefault(groups, groups)
        return self._known[host, uuid]

    def _of_night(self, *texts: str | None) -> dict[str, str]:
        if texts not in self._parsed:
            self._parsed[texts] = _groups(*texts)
        return self._parsed[texts]


def _groups(cards: str | None, skus: str | None, driver: str | None) -> dict[str, str]:
    """By card its group, and without a card that of all of them, if they are one group."""
    if cards is None or driver is None:
        return {}
    sku = dict(row.partition(" ")[::2] for row in (skus or "").split("; "))
    found = {
        uuid: ", ".join(filter(None, (model, sku.get(uuid), f"driver {driver}")))
        for uuid, (_, model) in versions.cards(cards).items()
    }
    own = set(found.values())
    return {**found, "": own.pop()} if len(own) == 1 else found
