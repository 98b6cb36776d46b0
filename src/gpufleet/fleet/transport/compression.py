"""A dataclass field that keeps a JSON document compressed in memory.

The snapshot of a host with eight GPUs and five stacks has some hundred kilobytes, and Python's
objects need five times as much: too much memory for a thousand hosts on a control machine.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)
# The fastest level reduces a snapshot to a tenth; the best is hardly smaller.
LEVEL = 1


class Compressed:
    """A JSON document, compressed. Each read returns a new copy."""

    __slots__ = ("_bytes",)

    def __init__(self, document: object) -> None:
        # A document that came as JSON has no cycle to look for.
        text = json.dumps(document, ensure_ascii=False, check_circular=False)
        self._bytes = zlib.compress(text.encode("utf-8", "surrogatepass"), LEVEL)

    def text(self) -> str:
        """The document as JSON, in one line."""
        return zlib.decompress(self._bytes).decode("utf-8", "surrogatepass")

    def document(self) -> Any:
        """The document."""
        return json.loads(self.text())


class CompressedField:
    """A descriptor for a document or None, which may be set compressed."""

    def __init__(self, name: str) -> None:
        self.attribute = f"_{name}"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        kept: Compressed | None = instance.__dict__[self.attribute]
        return None if kept is None else kept.document()

    def __set__(self, instance: object, document: dict[str, Any] | Compressed | None) -> None:
        # A frozen dataclass refuses setattr.
        instance.__dict__[self.attribute] = (
            document
            if document is None or isinstance(document, Compressed)
            else Compressed(document)
        )


def compressed(instance: object, name: str) -> Compressed | None:
    """The stored value of an instance's compressed field."""
    kept: Compressed | None = instance.__dict__[f"_{name}"]
    return kept


def compressed_field(name: str) -> Callable[[Class], Class]:
    """A decorator above `@dataclass` that keeps the field `name` compressed."""

    def decorate(dataclass: Class) -> Class:
        setattr(dataclass, name, CompressedField(name))
        return dataclass

    return decorate
