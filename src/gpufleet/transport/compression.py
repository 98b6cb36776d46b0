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


class CompressedField:
    """A descriptor for a document or None. Each read returns a new copy."""

    def __init__(self, name: str) -> None:
        self.attribute = f"_{name}"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        compressed = instance.__dict__[self.attribute]
        return None if compressed is None else json.loads(zlib.decompress(compressed))

    def __set__(self, instance: object, document: dict[str, Any] | None) -> None:
        # A frozen dataclass refuses setattr.
        instance.__dict__[self.attribute] = None if document is None else zlib.compress(
            json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass"), LEVEL)


def compressed_field(name: str) -> Callable[[Class], Class]:
    """A decorator above `@dataclass` that keeps the field `name` compressed."""
    def decorate(dataclass: Class) -> Class:
        setattr(dataclass, name, CompressedField(name))
        return dataclass
    return decorate
