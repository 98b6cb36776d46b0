"""The numbers of one measure in one run, of all cards, as one value in the file of the history.

Runs are read by measure, for all of their cards or for one host: as rows, each number costs a line
of a query, and its keys as much space as itself twice. A value has the cards in ascending order,
then their numbers, both as 64 bits little-endian, compressed: most counters stay as they are. The
compression has a checksum, so that a damaged value is not read as other numbers.
"""

from __future__ import annotations

import math
import sqlite3
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

# A card is one number: the id of its host, and that of the device in these bits.
DEVICE_BITS = 32
# The fastest of zlib's levels; the others save a tenth.
_LEVEL = 1


class Column(NamedTuple):
    """Cards in ascending order, and the number of each."""

    cards: array[int]
    numbers: array[float]


def card(host: int, device: int) -> int:
    """The number of a device of a host, by their ids."""
    return host << DEVICE_BITS | device


def host_of(number: int) -> int:
    """The id of a card's host."""
    return number >> DEVICE_BITS


def device_of(number: int) -> int:
    """The id of a card's device."""
    return number & (1 << DEVICE_BITS) - 1


def packed(values: Mapping[int, float]) -> bytes:
    """The numbers by card as one value; what is not finite is left out."""
    known = sorted((key, value) for key, value in values.items() if math.isfinite(value))
    cards, numbers = array("q", (key for key, _ in known)), array("d", (each for _, each in known))
    return zlib.compress(cards.tobytes() + numbers.tobytes(), _LEVEL)


def unpacked(value: object, host: int | None = None) -> Column:
    """The cards and numbers of a value, of all hosts or one; none of a missing or damaged one."""
    column = Column(array("q"), array("d"))
    try:
        raw = zlib.decompress(value) if isinstance(value, bytes) else b""
        half = len(raw) // 2
        column.cards.frombytes(raw[:half])
        column.numbers.frombytes(raw[half:])
    except (zlib.error, ValueError):
        return Column(array("q"), array("d"))
    if host is None:
        return column
    begin, end = (bisect_left(column.cards, card(each, 0)) for each in (host, host + 1))
    return Column(column.cards[begin:end], column.numbers[begin:end])


def lines(columns: Sequence[Column]) -> Iterator[tuple[int, tuple[float | None, ...]]]:
    """Each card with its number in each of these columns."""
    by_card = [dict(zip(*each, strict=True)) for each in columns]
    cards = list(dict.fromkeys(chain.from_iterable(by_card)))
    return zip(cards, zip(*(map(each.get, cards) for each in by_card), strict=True), strict=True)


def changed(columns: Iterable[Column]) -> set[int]:
    """The cards whose number is not the same in all columns that have it."""
    first: dict[int, float] = {}
    found: set[int] = set()
    before = Column(array("q"), array("d"))
    for column in columns:
        # Most nights are as the night before.
        if column != before:
            found.update(
                key
                for key, number in zip(*column, strict=True)
                if first.setdefault(key, number) != number
            )
        before = column
    return found


class _Packed:
    """An aggregate function of SQLite: `packed` of a card's host, device and number."""

    def __init__(self) -> None:
        self.values: dict[int, float] = {}

    def step(self, host: int, device: int, value: object) -> None:
        # A damaged file may have a text there.
        if isinstance(value, float | int):
            self.values[card(host, device)] = value

    def finalize(self) -> bytes:
        return packed(self.values)


def register(database: sqlite3.Connection) -> None:
    """Give a connection the aggregate function `packed(host, device, value)`."""
    database.create_aggregate("packed", 3, _Packed)  # type: ignore[arg-type]
