"""The one validator of documents: every fault with its location, checked against the types.

`faults(Plan, document, "plan")` is empty for a document of its type. Keys that the type does not
know pass, so a document of a later release can be read. Types are compiled once into functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, cast

from . import shape as shapes
from .shape import AnyOf, Choice, Key, ListOf, MappingOf, Object, Plain, Shape
from .snapshot import Section, SectionData, Snapshot
from .text import brief, cut_mark, one_line

DAMAGED = "damaged"
# How many faults are reported, and how many characters of a value and of each key a report shows.
MOST_FAULTS, MOST_VALUE, MOST_STEP = 100, 40, 200
# In the place of a key's value that is not there.
_ABSENT = object()
# A location as (the enclosing location, key or index); its text is built only for a fault.
Location = tuple[Any, str | int]
# Appends to a list what is wrong with a value at a location.
Check = Callable[[Any, Location, list[str]], None]

# An integer may be any number: no check is wrong with 0.5 where a count should be.
_NAMES = {
    "text": "text",
    "integer": "a number",
    "number": "a number",
    "flag": "true or false",
    "null": "null",
    "any": "anything",
}


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TESTS: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "integer": _number,
    "number": _number,
    "flag": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "any": lambda value: True,
}


# Values of exactly these types need no further look; most values of a document are such.
_TYPES: dict[str, frozenset[type]] = {
    "text": frozenset({str}),
    "integer": frozenset({int, float}),
    "number": frozenset({int, float}),
    "flag": frozenset({bool}),
    "null": frozenset({type(None)}),
}


def faults(document: object, value: object, name: str) -> list[str]:
    """The values that do not fit the type, as sentences that begin with `name` and the location."""
    return _first_faults(_of_type(document), value, name)


def faults_of(shape: Shape, value: object, name: str) -> list[str]:
    """Return the first faults of a value that must have a shape, under a name."""
    return _first_faults(_compiled(shape), value, name)


def mark_damaged(snapshot: Mapping[str, Any]) -> Snapshot:
    """The snapshot, with each section that is not of its type in the state `damaged`, and why."""
    sections = snapshot.get("sections")
    if not isinstance(sections, Mapping):
        return cast(Snapshot, {**snapshot, "sections": {}})
    return cast(
        Snapshot,
        {
            **snapshot,
            "sections": {name: typed_section(name, section) for name, section in sections.items()},
        },
    )


def section_data(snapshot: Mapping[str, Any]) -> SectionData:
    """The data of each section that was read and is of its type."""
    sections: Mapping[str, Any] = mark_damaged(snapshot)["sections"]
    return cast(
        SectionData,
        {name: section["data"] for name, section in sections.items() if section["state"] == "ok"},
    )


def typed_section(name: str, section: Any) -> Any:
    """The section, or a damaged one that says where it is not of its type."""
    found = _first_faults(_of_type(Section[object]), section, "section")
    if not found and section["state"] == "ok":
        check = _sections().get(name)
        found = _first_faults(check, section.get("data"), "data") if check else []
    if not found:
        return section
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return damaged_section(f"{found[0]}{more}")


def damaged_section(error: str) -> Section[object]:
    """A section in the place of one that nothing may read."""
    return {"state": DAMAGED, "seconds": None, "error": error, "data": None}


class _EnoughError(Exception):
    """So many faults were found that the others need not be."""


class _Faults(list[str]):
    """At most `most` faults: of a document that is wrong everywhere the first ones say enough."""

    def __init__(self, most: int = MOST_FAULTS) -> None:
        super().__init__()
        self.most = most

    def append(self, fault: str) -> None:
        super().append(fault)
        if len(self) >= self.most:
            raise _EnoughError


def _first_faults(check: Check, value: Any, name: str) -> list[str]:
    found = _Faults()
    with suppress(_EnoughError):
        check(value, (None, name), found)
    return found


# -- types compiled into functions -----------------------------------------------------------------


@cache
def _of_type(document: object) -> Check:
    """The check of a document's type: to find it by its shape takes longer than most checks."""
    return _compiled(shapes.shape_of(document))


@cache
def _sections() -> dict[str, Check]:
    """By name of a section: the check of its data."""
    known = shapes.shape_of(SectionData)
    assert isinstance(known, Object)
    return {key.name: _compiled(key.shape) for key in known.keys}


@cache
def _compiled(shape: Shape) -> Check:
    if isinstance(shape, Object):
        return _object(shape)
    if isinstance(shape, ListOf):
        return _list(shape)
    if isinstance(shape, MappingOf):
        return _mapping(shape)
    if isinstance(shape, AnyOf):
        return _any_of(shape)
    return _leaf(shape)


def _leaf(shape: Plain | Choice) -> Check:
    wanted = describe(shape)
    if isinstance(shape, Plain) and shape.non_empty:

        def check_text(value: Any, location: Location, found: list[str]) -> None:
            if not isinstance(value, str) or not value:
                found.append(_fault(value, location, wanted))

        return check_text
    if isinstance(shape, Choice):
        values = frozenset(shape.values)

        def check_choice(value: Any, location: Location, found: list[str]) -> None:
            if not isinstance(value, str) or value not in values:
                found.append(_fault(value, location, wanted))

        return check_choice
    fits = _TESTS[shape.name]

    def check(value: Any, location: Location, found: list[str]) -> None:
        if not fits(value):
            found.append(_fault(value, location, wanted))

    return check


def _fitting_types(shape: Shape) -> frozenset[type]:
    """The types whose every value fits the shape."""
    if isinstance(shape, Plain) and not shape.non_empty:
        return _TYPES.get(shape.name, frozenset())
    if isinstance(shape, AnyOf):
        return frozenset[type]().union(*map(_fitting_types, shape.options))
    return frozenset()


def _takes_text(shape: Shape) -> bool:
    """Return whether every text that is not empty fits the shape."""
    if isinstance(shape, AnyOf):
        return any(map(_takes_text, shape.options))
    return isinstance(shape, Plain) and shape.name == "text"


def _list(shape: ListOf) -> Check:
    each, non_empty = _compiled(shape.item), shape.non_empty
    fitting = _fitting_types(shape.item)

    def check(value: Any, location: Location, found: list[str]) -> None:
        if not isinstance(value, list):
            found.append(_fault(value, location, "a list"))
            return
        if non_empty and not value:
            found.append(f"{place(location)} is empty")
        for index, item in enumerate(value):
            if type(item) not in fitting:
                each(item, (location, index), found)

    return check


def _mapping(shape: MappingOf) -> Check:
    each, non_empty = _compiled(shape.value), shape.non_empty
    fitting = _fitting_types(shape.value)

    def check(value: Any, location: Location, found: list[str]) -> None:
        if type(value) is not dict and not isinstance(value, Mapping):
            found.append(_fault(value, location, "a mapping"))
            return
        if non_empty and not value:
            found.append(f"{place(location)} is empty")
        for name, item in value.items():
            if type(item) not in fitting:
                each(item, (location, name), found)

    return check


def _object(shape: Object) -> Check:
    keys = [
        (
            key.name,
            key.required,
            _fitting_types(key.shape),
            _takes_text(key.shape),
            _compiled(key.shape),
            key,
        )
        for key in shape.keys
        if key.checked
    ]

    def check(value: Any, location: Location, found: list[str]) -> None:
        if type(value) is not dict and not isinstance(value, Mapping):
            found.append(_fault(value, location, "a mapping"))
            return
        get = value.get
        for name, required, fitting, takes_text, each, key in keys:
            item = get(name, _ABSENT)
            kind = type(item)
            if kind in fitting or (kind is str and takes_text and item):
                continue
            if item is not _ABSENT:
                each(item, (location, name), found)
            elif required:
                found.append(_missing(key, location))

    return check


def _any_of(shape: AnyOf) -> Check:
    only, nullable = shapes.optional(shape)
    if nullable and not isinstance(only, AnyOf):
        inner = _compiled(only)

        def check_present(value: Any, location: Location, found: list[str]) -> None:
            if value is not None:
                inner(value, location, found)

        return check_present
    options, wanted = [_compiled(option) for option in shape.options], describe(only)

    def check(value: Any, location: Location, found: list[str]) -> None:
        for option in options:
            try:
                option(value, location, _Faults(1))
            except _EnoughError:
                continue
            return
        found.append(_fault(value, location, wanted))

    return check


# -- what is said of a fault -----------------------------------------------------------------------


def describe(shape: Shape) -> str:
    """A description of the values that fit a shape."""
    if isinstance(shape, Choice):
        return f"one of {', '.join(shape.values)}"
    if isinstance(shape, AnyOf):
        only, _ = shapes.optional(shape)
        options = only.options if isinstance(only, AnyOf) else (only,)
        return " or ".join(describe(option) for option in options)
    if isinstance(shape, ListOf):
        return "a list"
    if isinstance(shape, Plain):
        return f"{'non-empty ' if shape.non_empty else ''}{_NAMES[shape.name]}"
    return "a mapping"


def _fault(value: Any, location: Location, wanted: str) -> str:
    shown = "null" if value is None else brief(value, MOST_VALUE)
    return f"{place(location)} is {shown}, and should be {wanted}"


def _missing(key: Key, location: Location) -> str:
    return f"{place((location, key.name))} is missing, and should be {describe(key.shape)}"


def place(location: Location) -> str:
    """A location as text; of a long one its end is shown."""
    steps: list[str] = []
    around: Location | None = location
    while around is not None:
        around, step = around
        shown = f"[{step}]" if isinstance(step, int) else one_line(cut_mark(step, MOST_STEP))
        steps.append(shown if around is None or isinstance(step, int) else f".{shown}")
    return "".join(reversed(steps))
