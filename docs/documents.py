# Apache-2.0, see LICENSE
"""The page of all documents and their JSON Schemas, from the types in ``src/gpufleet/model``.

A section per module: its docstring, then a table for each document and each part of it.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator

from gpufleet.model.documents import DOCUMENTS
from gpufleet.model.json_schema import json_schema, objects
from gpufleet.model.shape import AnyOf, Choice, Key, ListOf, MappingOf, Object, Shape, shape_of

TITLES = {
    "plan": "Plan",
    "snapshot": "Snapshot",
    "receipt": "Receipt, journal and restart marker",
    "verdict": "Verdicts, bundles and collected results",
    "nightly": "Nightly verification",
    "mirror": "Offline mirror",
    "collectives": "Fabric test",
}
WORDS = {
    "text": "text",
    "integer": "integer",
    "number": "number",
    "flag": "true or false",
    "null": "null",
    "any": "any",
}
INTRODUCTION = """\
Plain JSON documents stand at every border, and everything else is made from them or makes them.

```
variables (inventory) ──resolve──► plan ──┐
                                          ├──► verdicts
host ──probe──► snapshot ─────────────────┘
```

- [Variables](variables.md) are what a person writes in the inventory.
- `schema` is an integer that rises when a key changes its meaning. A plan, snapshot, receipt or
  history that an earlier release of the same `schema` wrote is read.
- Names end in their unit (`_mib`, `_s`, `_bytes`). A value that could not be read is `null`.
- Keys are always present, unless they are marked *optional*. A reader ignores keys that it does
  not know.
- Each document has a [JSON Schema](https://json-schema.org) in `docs/reference/schemas`.
- A recorded plan, snapshot, verdicts and receipts are in `tests/fixtures/2fb692b`.
"""


Table = Callable[[list[str], list[list[str]]], str]


def page(table: Table, source: str) -> str:
    """The page; `table` makes a Markdown table of a heading and rows."""
    parts = [f"# Documents\n{source}\n{INTRODUCTION}"]
    shown: set[str] = set()
    for module, title in TITLES.items():
        path = f"gpufleet.model.{module}"
        kinds = {name: kind for name, kind in DOCUMENTS.items() if kind.__module__ == path}
        parts.append(f"\n## {title}\n{inspect.getdoc(sys.modules[path])}\n")
        for name, kind in kinds.items():
            for part in objects(shape_of(kind)):
                if part.name not in shown:
                    shown.add(part.name)
                    file = f" [Schema](schemas/{name}.json)." if part.name == kind.__name__ else ""
                    parts.append(_part(part, file, table))
    return "".join(parts)


def schemas() -> Iterator[tuple[str, str]]:
    """(file name, text) of each document's JSON Schema. It refers to those of other documents."""
    files = {kind.__name__: f"{name}.json" for name, kind in DOCUMENTS.items()}
    for name, kind in DOCUMENTS.items():
        schema = json_schema(kind, files)
        yield f"{name}.json", json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _part(part: Object, file: str, table: Table) -> str:
    rows = [[f"`{key.name}`", _kind(key), key.meaning] for key in part.keys]
    return f"\n### {part.name}\n{part.meaning}{file}\n\n{table(['key', 'type', 'meaning'], rows)}"


def _kind(key: Key) -> str:
    return describe(key.shape) + ("" if key.required else ", *optional*")


def describe(shape: Shape) -> str:
    """A shape in words; parts of documents are links to their tables."""
    if isinstance(shape, Object):
        return f"[{shape.name}](#{shape.name.lower()})"
    if isinstance(shape, Choice):
        return " or ".join(f"`{value}`" for value in shape.values)
    if isinstance(shape, ListOf):
        return f"list of {describe(shape.item)}"
    if isinstance(shape, MappingOf):
        return f"mapping of names to {describe(shape.value)}"
    if isinstance(shape, AnyOf):
        return " or ".join(map(describe, shape.options))
    return WORDS[shape.name]
