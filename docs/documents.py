"""The page of all documents and their JSON Schemas, from the types in `gpufleet/documents`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from gpufleet.documents.documents import DOCUMENTS
from gpufleet.documents.json_schema import json_schema
from gpufleet.documents.shape import Object, Shape, shape_of

INTRODUCTION = """\
Plain JSON documents stand at every border, and everything else is made from them or makes them.

```
variables (inventory) ──resolve──► plan ──┐
                                          ├──► verdicts
host ──probe──► snapshot ─────────────────┘
```

- Each document has a [JSON Schema](https://json-schema.org) that describes every key.
- `schema` is an integer that rises when a key changes its meaning. A plan, snapshot, receipt or
  history that an earlier release of the same `schema` wrote is read.
- Names end in their unit (`_mib`, `_s`, `_bytes`). A value that could not be read is `null`.
- Keys are always present, unless the schema does not require them. A reader ignores keys that it
  does not know.
- A recorded plan, snapshot, verdicts and receipts are in `tests/fixtures/2fb692b`.

| document | content |
|-|-|
| [inventory](schemas/inventory.json) | the [variables](variables.md) that a person writes |
"""


def page(source: str) -> str:
    """The page: a row for each document, with its schema."""
    rows = (
        f"| [{name}](schemas/{name}.json) | {_first_sentence(shape_of(kind))} |\n"
        for name, kind in DOCUMENTS.items()
    )
    return f"# Documents\n{source}\n{INTRODUCTION}{''.join(rows)}"


def schemas() -> Iterator[tuple[str, str]]:
    """File name and text of each document's JSON Schema. It refers to those of other documents."""
    files = {kind.__name__: f"{name}.json" for name, kind in DOCUMENTS.items()}
    for name, kind in DOCUMENTS.items():
        schema = json_schema(kind, files)
        yield f"{name}.json", json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _first_sentence(shape: Shape) -> str:
    assert isinstance(shape, Object)
    return shape.meaning.partition(". ")[0].removesuffix(".")
