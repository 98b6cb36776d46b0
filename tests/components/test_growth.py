"""A list costs its length, not the square of it: no host can keep a control machine busy for long.

Each list of a snapshot, by its types, gets many rows, then twice as many. The lines of Python that
are executed to plan, judge and compare the host must grow alike.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gpufleet.components import resolver
from gpufleet.components.changes import changes
from gpufleet.documents.received import snapshot as arrived
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
from gpufleet.documents.snapshot import SectionData
from gpufleet.judge import judge
from tests.support.healthy_host import Document, document, with_cards, with_driver

Place = tuple[str, ...]
# The step from a list or a mapping to its rows.
ROW = "*"
# How many rows a list gets, then twice as many; fewer of those so large that they would be refused.
# What the host costs without them is subtracted.
ROWS, LARGE = 300, {("compute", "runs"): 50, ("compute", "runs", ROW, "sustained"): 50}
# All lists are many cases; of these sections in each run of the tests.
USUAL = {"receipts", "toolkits", "linker"}
# Twice as many rows cost twice as much; of a square they would cost four times as much.
MOST_GROWTH = 3.0
DECLARED: dict[str, Any] = {
    "gpu_stacks": [{"tensorflow": "2.13.1"}],
    "gpu_expect": {"count": 0},
    "gpu_accept_nvidia_eula": True,
    "gpu_prune": True,
}


# Texts that decide what a row is, and so what is done with it: of a row that exists they stay.
KINDS: dict[str, tuple[str, ...]] = {
    "kind": ("toolkit", "cudnn", "stack"),
    "state": ("installing", "removing", "ok"),
    "module": ("nvidia",),
    "runs": ("tensorflow", "pytorch"),
    "framework": ("tensorflow",),
}


def containers(shape: Shape, place: Place = ()) -> Iterator[Place]:
    """The place of each list and of each mapping, also of those in their rows."""
    shape = first(shape)
    if isinstance(shape, ListOf | MappingOf):
        yield place
        yield from containers(row_of(shape), (*place, ROW))
    elif isinstance(shape, Object):
        for key in shape.keys:
            yield from containers(key.shape, (*place, key.name))


def first(shape: Shape) -> Shape:
    """The shape itself, or the first of several."""
    return first(shape.options[0]) if isinstance(shape, AnyOf) else shape


def row_of(shape: ListOf | MappingOf) -> Shape:
    return shape.item if isinstance(shape, ListOf) else shape.value


def value(shape: Shape, number: int) -> Any:
    """A value of this shape; each number has another one."""
    shape = first(shape)
    if isinstance(shape, Choice):
        return shape.values[number % len(shape.values)]
    if isinstance(shape, ListOf):
        return [value(shape.item, number)]
    if isinstance(shape, MappingOf):
        return {f"/name/{number}": value(shape.value, number)}
    if isinstance(shape, Object):
        return {
            key.name: KINDS[key.name][number % len(KINDS[key.name])]
            if key.name in KINDS and isinstance(first(key.shape), Plain)
            else value(key.shape, number)
            for key in shape.keys
        }
    plain = {"text": f"/some/{number}.1", "flag": bool(number % 2), "null": None}
    return plain.get(shape.name, number)


def like(example: Any, number: int) -> Any:
    """A row like an existing one, with other texts: names, paths and versions of its own."""
    if isinstance(example, str):
        return f"{example}{number}"
    if isinstance(example, dict):
        return {
            key: inner if key in KINDS else like(inner, number) for key, inner in example.items()
        }
    if isinstance(example, list):
        return [like(inner, number) for inner in example]
    return example


def filled(found: Any, shape: Shape, place: Place, count: int) -> Any:
    """The value with so many more rows in the list or mapping at a place."""
    shape = first(shape)
    if not place:
        assert isinstance(shape, ListOf | MappingOf)
        known = list(found.values() if isinstance(found, dict) else found or [])
        rows = [
            like(known[0], number) if known else value(row_of(shape), number)
            for number in range(count)
        ]
        if isinstance(shape, ListOf):
            return [*known, *rows]
        return {**(found or {}), **{f"/name/{number}": row for number, row in enumerate(rows)}}
    found = value(shape, 0) if found in (None, [], {}) else found
    step, rest = place[0], place[1:]
    if isinstance(shape, Object):
        inner = next(key.shape for key in shape.keys if key.name == step)
        return {**found, step: filled(found.get(step), inner, rest, count)}
    assert isinstance(shape, ListOf | MappingOf)
    if isinstance(shape, ListOf):
        return [filled(found[0], shape.item, rest, count), *found[1:]]
    name = next(iter(found))
    return {**found, name: filled(found[name], shape.value, rest, count)}


def host(place: Place, count: int) -> Document:
    """A snapshot of a host with so many more rows there."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_driver(plan, snapshot)
    with_cards(plan, snapshot)
    section, *rest = place
    sections = dict(shape_of_sections())
    row = snapshot["sections"].setdefault(
        section, {"state": "ok", "seconds": 0.1, "error": None, "data": None}
    )
    row.update(state="ok", data=filled(row["data"], sections[section], tuple(rest), count))
    return snapshot


def shape_of_sections() -> Iterator[tuple[str, Shape]]:
    shape = shape_of(SectionData)
    assert isinstance(shape, Object)
    for key in shape.keys:
        yield key.name, key.shape


PLACES = [place for name, shape in shape_of_sections() for place in containers(shape, (name,))]


def lines(snapshot: Document) -> int:
    """How many lines of Python are executed to let it in, to plan, to judge and to compare it."""
    raw, count = json.dumps(snapshot).encode(), 0

    def inner(*_: Any) -> Any:
        nonlocal count
        count += 1
        return inner

    before = sys.gettrace()
    sys.settrace(inner)
    try:
        found = arrived(raw, "gpu01")
        assert found is not None
        plan = resolver.resolve(DECLARED, found, "gpu01")
        judge.judge(plan, found)
        changes(plan, found)
    finally:
        sys.settrace(before)
    return count


@pytest.fixture(scope="module", autouse=True)
def read() -> None:
    """Read the data that a process reads once, before anything is counted."""
    lines(host(PLACES[0], 0))


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(
            place,
            id=".".join(place),
            marks=[pytest.mark.exhaustive] * (place[0] not in USUAL),
        )
        for place in PLACES
    ],
)
def test_a_list_costs_its_length(place: Place) -> None:
    rows = LARGE.get(place, ROWS)
    empty, once, twice = (lines(host(place, count)) for count in (1, rows, 2 * rows))
    growth = (twice - empty) / max(once - empty, rows)
    assert growth < MOST_GROWTH, (empty, once, twice)


def test_a_square_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal's entries, each searched among all of them."""

    def searched(self: Any, section: str, key: str, **wanted: str) -> Any:
        for row in self._rows(section, key):
            if all(row.get(name) == text for name, text in wanted.items()):
                return row
        return None

    monkeypatch.setattr("gpufleet.components.base.host.Host._row", searched)
    with pytest.raises(AssertionError):
        test_a_list_costs_its_length(("receipts", "journal"))
