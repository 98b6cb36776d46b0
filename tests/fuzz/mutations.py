"""Mutate one place of a JSON document: types, extremes, Unicode, depth, what is missing or extra.

Seeded: the same number gives the same mutant. Mutants are bytes, as a host would send them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]

# Stand for JSON that Python's writer would not write.
RAW = {
    "@1e999@": "1e999",
    "@-1e999@": "-1e999",
    "@nan@": "NaN",
    "@deep@": "[" * 3000 + "]" * 3000,
    "@surrogate@": '"\\ud800x"',
    "@long@": "9" * 5000,
    "@twice@": '{"a": 1, "a": [2]}',
}
CONTROL = "\x1b]0;owned\x07\x1b[31m\x00\x08\x9b2J\x7f\u202e\u2066\u200b\ufeff\u2028\r\nPASS"
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    0.5,
    -0.0,
    1e-300,
    1e300,
    2**31,
    2**63,
    2**64 - 1,
    2**64,
    10**400,
    *RAW,
    "",
    " ",
    "x",
    "0",
    "-1",
    "nan",
    "1.2.3",
    "99999999999.0.0",
    "²",
    "٣.٤",
    "/",
    "//",
    "/..",
    "../../etc",
    "a/b",
    "a@b",
    "%s%n{0}",
    "None",
    "[bold]x[/]",
    "</script>",
    "'; --",
    CONTROL,
    "é" * 3000,
    "a" * 20_000,
    "/" * 4000,
    "1" * 6000 + "x",
    "-" * 8000,
    "a@" * 5000,
    "-----BEGIN X-----" * 500,
    [],
    {},
    [None],
    [[]],
    [{}],
    {"": None},
    {"a": {"b": [1]}},
    [1, "x", None],
    ["x"] * 3000,
    [{}] * 3000,
    {str(number): {} for number in range(2000)},
    {CONTROL: CONTROL},
)


@dataclass(frozen=True)
class Mutant:
    """The bytes of a mutated document, and where it differs."""

    raw: bytes
    place: Path
    how: str

    def __str__(self) -> str:
        return f"{'/'.join(map(str, self.place))}: {self.how}"


def places(value: Any, here: Path = ()) -> Iterator[Path]:
    """The place of each value in a document."""
    if here:
        yield here
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*here, key))


def written(document: Any) -> bytes:
    """A document as JSON, with what no writer writes."""
    text = json.dumps(document)
    for mark, raw in RAW.items():
        text = text.replace(json.dumps(mark), raw)
    return text.encode("utf-8", "surrogatepass")


def mutant(document: Any, known: list[Path], random_: random.Random) -> Mutant:
    """One mutant of a document of which all places are known."""
    if random_.random() < 0.03:
        return _damaged(document, random_)
    place = random_.choice(known)
    changed = _copied(document, place)
    around = _at(changed, place[:-1])
    how = random_.choice(_HOW)
    output = how(around, place[-1], random_, document, known)
    return Mutant(written(changed), place, output)


def _copied(document: Any, place: Path) -> Any:
    """A copy along the path alone: the rest is shared, and not changed."""
    if not place:
        return document
    around = dict(document) if isinstance(document, dict) else list(document)
    around[place[0]] = (
        deepcopy(around[place[0]]) if len(place) == 1 else _copied(around[place[0]], place[1:])
    )
    return around


def _at(document: Any, place: Path) -> Any:
    for step in place:
        document = document[step]
    return document


def _replaced(around: Any, key: Any, random_: random.Random, *_: Any) -> str:
    around[key] = random_.choice(VALUES)
    return f"is {around[key]!r:.60}"


def _removed(around: Any, key: Any, *_: Any) -> str:
    del around[key]
    return "is removed"


def _moved(around: Any, key: Any, random_: random.Random, document: Any, known: list[Path]) -> str:
    source = random_.choice(known)
    around[key] = deepcopy(_at(document, source))
    return f"is the value of {'/'.join(map(str, source))}"


def _changed(around: Any, key: Any, random_: random.Random, *_: Any) -> str:
    value = around[key]
    if isinstance(value, bool):
        around[key] = not value
    elif isinstance(value, int | float):
        around[key] = random_.choice((-value, value + 1, value * 1000, str(value), value / 7))
    elif isinstance(value, str):
        middle = len(value) // 2
        around[key] = random_.choice(
            (
                value + CONTROL,
                value.upper(),
                value[:middle],
                value[::-1],
                [value],
                f"{value} ",
                f"{value[:middle]}\ud800{value[middle:]}",
                f"{value}\n{value}",
            )
        )
    elif isinstance(value, list):
        around[key] = random_.choice(
            (
                value * 2,
                value[:1] * 400,
                value[1:],
                value[::-1],
                [value],
                {str(index): item for index, item in enumerate(value)},
            )
        )
    elif isinstance(value, dict):
        around[key] = random_.choice(
            (
                list(value),
                {**value, CONTROL: 1},
                {**value, "novel": {"x": [None]}},
                [value],
                dict.fromkeys(value),
                {f"{name}{CONTROL}": item for name, item in value.items()},
            )
        )
    else:
        around[key] = "was null"
    return f"becomes {around[key]!r:.60}"


_HOW: tuple[Callable[..., str], ...] = (_replaced, _replaced, _changed, _changed, _removed, _moved)


def _damaged(document: Any, random_: random.Random) -> Mutant:
    """The bytes themselves: cut, flipped, or with others between."""
    raw = bytearray(written(document))
    at = random_.randrange(len(raw))
    kind = random_.choice(("cut", "flipped", "inserted"))
    if kind == "cut":
        del raw[at:]
    elif kind == "flipped":
        for _ in range(random_.randrange(1, 20)):
            raw[random_.randrange(len(raw))] = random_.randrange(256)
    else:
        raw[at:at] = random_.choice((b"\x00", b"\xff\xfe", b"\x1b[2J", b"[" * 5000, b"{}", b","))
    return Mutant(bytes(raw), (), f"bytes {kind} at {at}")
