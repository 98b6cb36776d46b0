"""A document that waits compressed until it is read.

A host with eight GPUs and five stacks has a snapshot of some hundred kilobytes, and Python's
objects take five times that: for a thousand hosts more than a control machine should need.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)
# Of the levels the quickest leaves a tenth of a snapshot, and the best hardly less.
LEVEL = 1


class CompressedField:
    """An attribute that holds a document or None. Each reading makes a new one."""

    def __init__(self, name: str) -> None:
        self.place = f"_{name}"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        packed = instance.__dict__[self.place]
        return None if packed is None else json.loads(zlib.decompress(packed))

    def __set__(self, instance: object, document: dict[str, Any] | None) -> None:
        # Not by setattr, which a frozen dataclass refuses.
        instance.__dict__[self.place] = None if document is None else zlib.compress(
            json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass"), LEVEL)


def compressed_field(name: str) -> Callable[[Class], Class]:
    """A decorator, above `@dataclass`, by which a field of it is kept so."""
    def decorate(made: Class) -> Class:
        setattr(made, name, CompressedField(name))
        return made
    return decorate
