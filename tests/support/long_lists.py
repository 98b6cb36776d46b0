"""Snapshots with one list or mapping at its bound, of values that differ and are not healthy."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from gpufleet.documents import received
from gpufleet.documents.shape import (
    AnyOf,
    Choice,
    ListOf,
    MappingOf,
    Object,
    Plain,
    Shape,
    shape_of,
)
from gpufleet.documents.snapshot import Sections

Document = dict[str, Any]
Place = tuple[str, ...]
# What a snapshot has beside the list.
OTHER_VALUES, OTHER_BYTES = 20_000, 1 << 20
# Texts that rules read, by the part of a key's name: each begins a path that differs.
TEXTS = {
    "address": "0000:{:02x}:00.{}",
    "path": "/usr/local/cuda-{}.{}/lib64/libcudart.so.{}",
    "realpath": "/opt/{}/lib/libx.so.{}",
    "version": "{}.{}",
    "uris": "https://host{}.example/compute/cuda/repos/{}",
    "uuid": "GPU-{}-{}",
    "text": "NVRM: Xid (PCI:0000:{:02x}:00): 79, GPU {} has fallen off the bus",
    "soname": "libcudart.so.{}",
    "error": "Unknown Error {}",
    "name": "name{}",
}
PLAIN: dict[str, Callable[[int], Any]] = {
    "integer": lambda at: at,
    "number": lambda at: at + 0.5,
    "flag": lambda at: bool(at % 2),
}


def text(key: str, at: int) -> str:
    form = TEXTS.get(key) or next((TEXTS[part] for part in TEXTS if part in key), "/x/{}")
    return form.format(at % 65536 if ":02x" in form else at, at, at)


def value(shape: Shape, key: str, at: int) -> Any:
    """A value of a shape, with every key that there can be; another one for each number."""
    if isinstance(shape, Object):
        return {each.name: value(each.shape, each.name, at) for each in shape.keys}
    if isinstance(shape, ListOf):
        return [value(shape.item, key, at)]
    if isinstance(shape, MappingOf):
        return {text(key, at): value(shape.value, key, at)}
    if isinstance(shape, AnyOf):
        options = [each for each in shape.options if each != Plain("null")]
        return value((options or shape.options)[0], key, at)
    if isinstance(shape, Choice):
        return shape.values[at % len(shape.values)]
    return PLAIN[shape.name](at) if shape.name in PLAIN else text(key, at)


def sections() -> dict[str, Shape]:
    """The shape of each section's data."""
    found = shape_of(Sections)
    assert isinstance(found, Object)
    data = {}
    for section in found.keys:
        shape = section.shape
        assert isinstance(shape, Object)
        data[section.name] = next(key.shape for key in shape.keys if key.name == "data")
    return data


def parts(shape: Shape, place: Place) -> Iterator[tuple[Place, ListOf | MappingOf]]:
    """Each list and mapping below a shape, by the keys that lead to it; [] is a first row."""
    if isinstance(shape, AnyOf):
        for option in shape.options:
            yield from parts(option, place)
    elif isinstance(shape, Object):
        for key in shape.keys:
            yield from parts(key.shape, (*place, key.name))
    elif isinstance(shape, ListOf):
        yield place, shape
        yield from parts(shape.item, (*place, "[]"))
    elif isinstance(shape, MappingOf):
        yield place, shape
        yield from parts(shape.value, (*place, "{}"))


def every() -> dict[Place, ListOf | MappingOf]:
    """The shapes of all lists and mappings in the sections of a snapshot, by place."""
    return {
        place: part
        for section, shape in sections().items()
        for place, part in parts(shape, (section,))
    }


def rows(place: Place, part: ListOf | MappingOf, count: int) -> Any:
    key = next((step for step in reversed(place) if step not in {"[]", "{}"}), "")
    if isinstance(part, ListOf):
        return [value(part.item, key, at) for at in range(count)]
    return {text(key, at) + f" {at}": value(part.value, key, at) for at in range(count)}


def most(place: Place, part: ListOf | MappingOf) -> int:
    """How many rows the list may have: by its own bound, and by those of a snapshot."""
    one = json.dumps(rows(place, part, 1))
    values = one.count(",") + one.count("[") + one.count("{")
    bound = received.MOST_ITEMS
    if isinstance(part, ListOf):
        bound = received.MOST_ROWS.get(place[0], bound)
    elif place[-1] == received.ELEMENTS:
        bound = received.MOST_ELEMENTS
    return min(
        bound,
        (received.MOST_VALUES - OTHER_VALUES) // max(values, 1),
        (received.MOST_BYTES - OTHER_BYTES) // (len(one) + 12),
    )


def planted(snapshot: Document, place: Place, part: ListOf | MappingOf, count: int) -> Document:
    """A copy of a healthy snapshot in which this list has so many rows."""
    section, *steps = place
    found, shape = copy.deepcopy(snapshot), sections()[section]
    around: Any = found["sections"][section]
    key: Any = "data"
    for step in steps:
        around[key] = around.get(key) if isinstance(around, dict) else around[key]
        if not around[key]:
            around[key] = value(shape, str(key), 0)
        around = around[key]
        key = {"[]": 0, "{}": next(iter(around), None)}.get(step, step)
        shape = below(shape, step)
    around[key] = rows(place, part, count)
    return found


def below(shape: Shape, step: str) -> Shape:
    """The shape of a key's value, or of a row."""
    found = [
        shape.item if isinstance(shape, ListOf) and step == "[]" else None,
        shape.value if isinstance(shape, MappingOf) and step == "{}" else None,
        *(key.shape for key in getattr(shape, "keys", ()) if key.name == step),
        *(below(option, step) for option in getattr(shape, "options", ()) if has(option, step)),
    ]
    return next(each for each in found if each is not None)


def has(shape: Shape, step: str) -> bool:
    """True where a shape has such a key, or rows."""
    if isinstance(shape, Object):
        return step in {key.name for key in shape.keys}
    return isinstance(shape, {"[]": ListOf, "{}": MappingOf}.get(step, AnyOf))
