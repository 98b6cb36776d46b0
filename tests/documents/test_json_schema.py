"""The JSON Schema of each document is valid, and says what the validator says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing

from docs.documents import schemas
from gpufleet.documents import validator
from gpufleet.documents.documents import DOCUMENTS
from gpufleet.documents.json_schema import json_schema, objects, schema_of
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.gpu import Gpus
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
from gpufleet.documents.snapshot import Snapshot

FIXTURES = Path(__file__).parents[1] / "fixtures"
VALUES = [None, "", "text", 0, 1.5, True, [], {}]
SAMPLES = {"text": "text", "integer": 1, "number": 1.5, "flag": True, "any": None, "null": None}


def sample(shape: Shape) -> Any:
    """A value of a shape, with every key that there can be."""
    if isinstance(shape, Object):
        return {key.name: sample(key.shape) for key in shape.keys}
    if isinstance(shape, ListOf):
        return [sample(shape.item)]
    if isinstance(shape, MappingOf):
        return {"name": sample(shape.value)}
    if isinstance(shape, AnyOf):
        return sample(shape.options[0])
    return shape.values[0] if isinstance(shape, Choice) else SAMPLES[shape.name]


def broken(document: Any) -> Iterator[Any]:
    """The document with each value of its keys replaced by others, and each key left out.

    Inner objects are damaged on their own.
    """
    for path in _paths(document):
        *around, last = path
        for value in VALUES:
            other = deepcopy(document)
            _at(other, around)[last] = value
            yield other
        if isinstance(last, str):
            other = deepcopy(document)
            del _at(other, around)[last]
            yield other


def _at(document: Any, path: list[Any]) -> Any:
    for step in path:
        document = document[step]
    return document


def _paths(value: Any) -> Iterator[tuple[Any, ...]]:
    for key, inner in value.items():
        yield (key,)
        if isinstance(inner, list):
            yield from ((key, index) for index in range(len(inner)))
        elif isinstance(inner, dict):
            yield from ((key, name) for name in inner)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_schema_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema(DOCUMENTS[name]))


# Those that hold whole other documents have nothing of their own.
HOLDERS = {"Bundle", "CollectedResult", "Sections"}
PARTS = {
    part.name: part
    for document in DOCUMENTS.values()
    for part in objects(shape_of(document))
    if part.name not in HOLDERS
}


@pytest.mark.parametrize("name", PARTS)
def test_schema_and_validator_agree_on_every_damage(name: str) -> None:
    part = PARTS[name]
    schema = jsonschema.Draft202012Validator(schema_of(part))
    whole = sample(part)
    assert schema.is_valid(whole)
    assert validator.faults_of(part, whole, "it") == []
    for damaged in broken(whole):
        assert schema.is_valid(damaged) == (not validator.faults_of(part, damaged, "it")), damaged


@pytest.mark.parametrize(("file", "document"), [("snapshot", Snapshot), ("plan", Plan)])
def test_recorded_documents_fit_their_schema(file: str, document: type) -> None:
    for directory in (FIXTURES, FIXTURES / "2fb692b"):
        recorded = json.loads((directory / f"{file}.json").read_text(encoding="utf-8"))
        jsonschema.validate(recorded, json_schema(document))


def test_two_parts_of_one_name_are_refused() -> None:
    gpus, other = shape_of(Gpus), Object("Gpus", "another", ())
    assert isinstance(gpus, Object)
    with pytest.raises(ValueError, match="two parts of a document are named Gpus"):
        list(objects(AnyOf((gpus, other))))


def test_an_unchecked_key_has_its_meaning_only() -> None:
    parts: Any = json_schema(Snapshot)["$defs"]
    assert parts["JournalStatus"]["properties"]["fresh"] == {
        "description": "nothing existed at the path before"
    }
    assert "fresh" not in parts["JournalStatus"]["required"]
    assert Plain("text", non_empty=True) in {key.shape for key in _object(shape_of(Snapshot)).keys}


def _object(shape: Shape) -> Object:
    assert isinstance(shape, Object)
    return shape


def test_schemas_in_files_refer_to_each_other() -> None:
    resources = {
        name: referencing.Resource.from_contents(json.loads(text)) for name, text in schemas()
    }
    registry = referencing.Registry().with_resources(resources.items())
    saved = sample(shape_of(DOCUMENTS["bundle"]))
    validator = jsonschema.Draft202012Validator({"$ref": "bundle.json"}, registry=registry)
    validator.validate(saved)
    saved["snapshot"]["sections"]["os"] = "no section"
    with pytest.raises(jsonschema.ValidationError, match="no section"):
        validator.validate(saved)
    assert "Snapshot" not in resources["bundle.json"].contents["$defs"]
