"""Reads a document's types once into plain shapes: what validator, JSON Schema and docs work on.

`shape_of(Plan)` is an `Object` with its keys; each key has a shape of its own. Understood are
`TypedDict` (also generic), `list[X]`, `dict[str, X]`, `Literal`, `str`, `int`, `float`, `bool`,
`object`, unions of them, and `Annotated` with `NON_EMPTY` or the key's meaning.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from .types import NonEmpty, Unchecked


@dataclass(frozen=True)
class Plain:
    """A value by its JSON type: `text`, `number`, `integer`, `flag`, `null` or `any`."""

    name: str
    non_empty: bool = False


@dataclass(frozen=True)
class Choice:
    """One of these texts."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class ListOf:
    """A list of one shape."""

    item: Shape
    non_empty: bool = False


@dataclass(frozen=True)
class MappingOf:
    """Any names, all of one shape."""

    value: Shape
    non_empty: bool = False


@dataclass(frozen=True)
class AnyOf:
    """One of these shapes; where null is among them it is the last."""

    options: tuple[Shape, ...]


@dataclass(frozen=True)
class Key:
    """A key of an object, and what its value means."""

    name: str
    shape: Shape
    required: bool
    checked: bool
    meaning: str


@dataclass(frozen=True)
class Object:
    """A `TypedDict`: its name, its docstring, its keys."""

    name: str
    meaning: str
    keys: tuple[Key, ...]


Shape = Plain | Choice | ListOf | MappingOf | AnyOf | Object
NULL, ANY = Plain("null"), Plain("any")
_PLAIN = {str: "text", int: "integer", float: "number", bool: "flag"}


@cache
def shape_of(document: object) -> Shape:
    """The shape of a document's type."""
    return _shape(document, {})


def optional(shape: Shape) -> tuple[Shape, bool]:
    """The shape without null, and whether it may be null."""
    if not isinstance(shape, AnyOf) or shape.options[-1] != NULL:
        return shape, False
    rest = shape.options[:-1]
    return (rest[0] if len(rest) == 1 else AnyOf(rest)), True


def _shape(kind: Any, bound: Mapping[Any, Any], non_empty: bool = False) -> Shape:
    kind = bound.get(kind, kind) if isinstance(kind, TypeVar) else kind
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        marked = any(isinstance(mark, NonEmpty) for mark in kind.__metadata__)
        return _shape(args[0], bound, non_empty or marked)
    if origin in {Union, types.UnionType}:
        options = [_shape(option, bound) for option in args if option is not type(None)]
        return AnyOf((*options, *([NULL] if len(options) < len(args) else [])))
    if origin is Literal:
        return Choice(tuple(args))
    if origin is list:
        return ListOf(_shape(args[0], bound), non_empty)
    if origin is dict:
        return MappingOf(_shape(args[1], bound), non_empty)
    if is_typeddict(origin or kind):
        return _object(origin or kind, args, bound)
    if kind is object:
        return ANY
    return Plain(_PLAIN[kind], non_empty)


def _object(kind: Any, args: tuple[Any, ...], bound: Mapping[Any, Any]) -> Object:
    """Generic ones are named by what they hold: a Section[Os] is an OsSection."""
    inner = dict(zip(getattr(kind, "__parameters__", ()), args, strict=False)) or bound
    name = "".join(arg.__name__ for arg in args) + kind.__name__
    keys = tuple(_key(key, hint, kind.__total__, inner) for key, hint in _hints(kind).items())
    return Object(name, " ".join((kind.__doc__ or "").split()), keys)


# Many types are keys of several others, and evaluating their annotations takes most of the time.
@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _key(name: str, hint: Any, total: bool, bound: Mapping[Any, Any]) -> Key:
    required = total and get_origin(hint) is not NotRequired
    if get_origin(hint) is NotRequired:
        hint = get_args(hint)[0]
    marks = hint.__metadata__ if get_origin(hint) is Annotated else ()
    meaning = " ".join(mark for mark in marks if isinstance(mark, str))
    checked = not any(isinstance(mark, Unchecked) for mark in marks)
    return Key(name, _shape(hint, bound), required, checked, meaning)
