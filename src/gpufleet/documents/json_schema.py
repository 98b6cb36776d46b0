"""JSON Schema (draft 2020-12) of a document, from its type, for programs that read our documents.

It agrees with the validator: keys that are not described pass, and a key that the validator
does not check has its meaning only.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from .shape import ANY, AnyOf, Choice, Key, ListOf, MappingOf, Object, Plain, Shape, shape_of

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {
    "text": "string",
    "integer": "number",
    "number": "number",
    "flag": "boolean",
    "null": "null",
}

Schema = dict[str, object]
Files = Mapping[str, str]
NO_FILES: Files = {}


def json_schema(document: object, files: Files = NO_FILES) -> Schema:
    """The schema of a document's type, its parts under `$defs` by name.

    `files`, {name of a part: file}: parts that have a schema of their own, which is referred to.
    """
    shape = shape_of(document)
    assert isinstance(shape, Object)
    return schema_of(shape, {name: file for name, file in files.items() if name != shape.name})


def schema_of(shape: Object, files: Files = NO_FILES) -> Schema:
    """The schema of an object, its parts under `$defs` by name; see `json_schema` for `files`."""
    parts = {part.name: _object(part, files) for part in objects(shape, files)}
    whole = parts.pop(shape.name)
    return {"$schema": DRAFT, "title": shape.name, **whole, "$defs": dict(sorted(parts.items()))}


def objects(shape: Shape, without: Container[str] = ()) -> Iterator[Object]:
    """Every object in a shape, each once, the outer before the inner; none in those of `without`.

    Raises `ValueError` where two different ones have the same name.
    """
    known: dict[str, Object] = {}
    for found in _objects(shape, without):
        if known.setdefault(found.name, found) != found:
            raise ValueError(f"two parts of a document are named {found.name}")
    yield from known.values()


def _objects(shape: Shape, without: Container[str]) -> Iterator[Object]:
    if isinstance(shape, Object) and shape.name not in without:
        yield shape
        for key in shape.keys:
            yield from _objects(key.shape, without)
    elif isinstance(shape, ListOf):
        yield from _objects(shape.item, without)
    elif isinstance(shape, MappingOf):
        yield from _objects(shape.value, without)
    elif isinstance(shape, AnyOf):
        for option in shape.options:
            yield from _objects(option, without)


def _object(shape: Object, files: Files) -> Schema:
    return {
        "description": shape.meaning,
        "type": "object",
        "properties": {key.name: _key(key, files) for key in shape.keys},
        "required": [key.name for key in shape.keys if key.required and key.checked],
    }


def _key(key: Key, files: Files) -> Schema:
    meaning: Schema = {"description": key.meaning} if key.meaning else {}
    return {**meaning, **_schema(key.shape, files)} if key.checked else meaning


def _schema(shape: Shape, files: Files) -> Schema:
    if isinstance(shape, Object):
        return {"$ref": files.get(shape.name, f"#/$defs/{shape.name}")}
    if isinstance(shape, Choice):
        return {"enum": list(shape.values)}
    if isinstance(shape, ListOf):
        return {
            "type": "array",
            "items": _schema(shape.item, files),
            **_least("Items", shape.non_empty),
        }
    if isinstance(shape, MappingOf):
        return {
            "type": "object",
            "additionalProperties": _schema(shape.value, files),
            **_least("Properties", shape.non_empty),
        }
    if isinstance(shape, AnyOf):
        return {"anyOf": [_schema(option, files) for option in shape.options]}
    return _plain(shape)


def _plain(shape: Plain) -> Schema:
    if shape == ANY:
        return {}
    return {"type": _TYPES[shape.name], **_least("Length", shape.non_empty)}


def _least(what: str, non_empty: bool) -> Schema:
    return {f"min{what}": 1} if non_empty else {}
