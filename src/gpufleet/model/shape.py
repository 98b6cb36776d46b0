"""Whether a snapshot is of the shape that `shapes.yml` declares.

Checks read what they need and trust it to be there. A section that was damaged on its way, or made
by another release, is told here, once, and then judged by none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import Any

import yaml

SHAPES: dict[str, Any] = yaml.safe_load(
    files(__package__).joinpath("shapes.yml").read_text(encoding="utf-8"))["sections"]

DAMAGED = "damaged"

_PLAIN: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str) and value != "",
    "words": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "flag": lambda value: isinstance(value, bool),
    "scalar": lambda value: isinstance(value, str | int | float),
    "any": lambda value: True,
}
_MISSING = object()


def whole(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot, with each section that is not of its shape in the state `damaged`, and why."""
    sections = snapshot.get("sections")
    if not isinstance(sections, Mapping):
        return {**snapshot, "sections": {}}
    return {**snapshot, "sections": {
        name: _section(name, section) for name, section in sections.items()}}


def _section(name: str, section: Any) -> Any:
    around = {"state": "text", "seconds~": "number", "error~": "text", "data~": "any"}
    faults = list(_faults(around, section, "it"))
    if not faults and section["state"] == "ok":
        faults = list(_faults(SHAPES.get(name, "any"), section.get("data"), "data"))
    if not faults:
        return section
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return {"state": DAMAGED, "seconds": None, "error": f"{faults[0]}{more}", "data": None}


def _faults(shape: Any, value: Any, place: str) -> Iterator[str]:
    """What is not as declared, each with its place."""
    if isinstance(shape, str):
        fits = _PLAIN[shape](value) if shape in _PLAIN else value in shape.split("|")
        if not fits:
            yield f"{place} is {_told(value)}, and should be {shape}"
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{place} is {_told(value)}, and should be a list"
            return
        for number, item in enumerate(value):
            yield from _faults(shape[0], item, f"{place}[{number}]")
    elif not isinstance(value, Mapping):
        yield f"{place} is {_told(value)}, and should be a mapping"
    else:
        for key, inner in shape.items():
            name, nullable = key.rstrip("~+"), key.endswith("~")
            if key.endswith("+") and not value.get(name, True):
                yield f"{place}.{name} is empty"
            for each in value if name == "*" else [name]:
                found = value.get(each, _MISSING)
                if found is not None or not nullable:
                    yield from _faults(inner, found, f"{place}.{each}")


def _told(value: Any) -> str:
    if value is _MISSING:
        return "missing"
    return "null" if value is None else f"{value!r:.40}"
