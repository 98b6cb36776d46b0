"""The numbers of one measure in one run, of some hosts, as one value in the file of the history.

As rows, each number costs a line of a query, and keys of twice its own size. A value has the cards
in ascending order, then their numbers, both as 64 bits little-endian, compressed: most counters
stay as they are. The compression has a checksum, so that a damaged value is not read as other
numbers. Hosts are divided into blocks, since people ask for all of them, and for one of them.
"""

from __future__ import annotations

import math
import sqlite3
import zlib
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import NamedTuple

# A card is one number: the id of its host, and that of the device in these bits.
DEVICE_BITS = 32
# So many hosts with ids in a row are a block.
BLOCK_HOSTS = 32
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


def block_of(host: int) -> int:
    """The block that has a host."""
    return host // BLOCK_HOSTS


def packed(values: Mapping[int, float]) -> list[tuple[int, bytes]]:
    """Blocks of the numbers by card, each with its value; infinite numbers and NaN are left out."""
    blocks: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for key in sorted(values):
        if math.isfinite(values[key]):
            blocks[block_of(host_of(key))].append((key, values[key]))
    return [
        (
            block,
            zlib.compress(
                array("q", [key for key, _ in known]).tobytes()
                + array("d", [number for _, number in known]).tobytes(),
                _LEVEL,
            ),
        )
        for block, known in blocks.items()
    ]


def column(values: Iterable[object], hosts: Collection[int] | None = None) -> Column:
    """The cards and numbers of blocks, of all hosts or some; a damaged value has none."""
    found = Column(array("q"), array("d"))
    for value in values:
        cards, numbers = array("q"), array("d")
        try:
            raw = zlib.decompress(value) if isinstance(value, bytes) else b""
            cards.frombytes(raw[: len(raw) // 2])
            numbers.frombytes(raw[len(raw) // 2 :])
        except (zlib.error, ValueError):
            continue
        if hosts is None:
            found.cards.extend(cards)
            found.numbers.extend(numbers)
            continue
        for key, number in zip(cards, numbers, strict=True):
            if host_of(key) in hosts:
                found.cards.append(key)
                found.numbers.append(number)
    return found


def lines(columns: Sequence[Column]) -> Iterator[tuple[int, tuple[float | None, ...]]]:
    """Each card with its number in each of these columns."""
    cards = dict.fromkeys(chain.from_iterable(each.cards for each in columns))
    place = {key: position for position, key in enumerate(cards)}
    rows: list[list[float | None]] = []
    for each in columns:
        row: list[float | None] = [None] * len(place)
        for key, number in zip(*each, strict=True):
            row[place[key]] = number
        rows.append(row)
    return zip(place, zip(*rows, strict=True), strict=True)


def changed(columns: Iterable[Column]) -> set[int]:
    """The cards whose number is not the same in all columns that have it."""
    first: dict[int, float] = {}
    found: set[int] = set()
    before = Column(array("q"), array("d"))
    for each in columns:
        # Most nights are as the night before.
        if each != before:
            found.update(
                key
                for key, number in zip(*each, strict=True)
                if first.setdefault(key, number) != number
            )
        before = each
    return found


def convert(database: sqlite3.Connection) -> None:
    """Make values of the rows of former releases, whose table is `numbers`.

    A damaged file may have anything in a row: what is no number of a card is left out.
    """
    rows = database.execute(
        "SELECT night, measure, host, device, value FROM numbers ORDER BY night, measure"
    )
    for (night, measure), group in groupby(rows, lambda row: row[:2]):
        values = {
            card(host, device): float(value)
            for *_, host, device, value in group
            if isinstance(value, int | float)
            and isinstance(host, int)
            and isinstance(device, int)
            and 0 <= host < 1 << (63 - DEVICE_BITS)
            and 0 <= device < 1 << DEVICE_BITS
        }
        database.executemany(
            "INSERT INTO series VALUES (?, ?, ?, ?)",
            ((night, measure, block, value) for block, value in packed(values)),
        )
