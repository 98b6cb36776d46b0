"""The vocabulary of the documents' types: `Text`, and the mark of values that may not be empty.

A document is a `TypedDict`. Each key's type may carry its meaning as `Annotated[TYPE, "meaning"]`:
the validator, the JSON Schema and docs/reference/schemas all come from these types. Imports
the standard library only, as everything in this package.
"""

from __future__ import annotations

from typing import Annotated, Any


class NonEmpty:
    """Marks a text, list or mapping that may not be empty."""

    def __repr__(self) -> str:
        return "NON_EMPTY"


class Unchecked:
    """Marks a key that any value may have: no check relies on it, so none is lost by it."""

    def __repr__(self) -> str:
        return "UNCHECKED"


NON_EMPTY = NonEmpty()
UNCHECKED = Unchecked()

# `str` may be empty.
Text = Annotated[str, NON_EMPTY]
# A time in UTC, such as 2026-11-20T12:00:00Z.
Time = Annotated[str, NON_EMPTY]
# A file system path on the host.
Path = Annotated[str, NON_EMPTY]
# Beside the `error` of a part of a section.
Hung = Annotated[bool, "`error` is that no answer came in time"]
# A row of a document whose keys its reader names: of the catalog, a plan or a snapshot.
Row = dict[str, Any]
