"""As much of TensorFlow as a product needs, to see which products a graph is left with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass(eq=False)
class Tensor:
    value: Any
    folds: bool
    device: str = ""

    def numpy(self) -> Any:
        return self.value


class TensorFlow:
    """In a traced function the product of constants is folded away, as Grappler does it."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.linalg, self.where, self.tracing = self, [""], False

    @contextlib.contextmanager
    def device(self, name: str) -> Iterator[None]:
        self.where.append(name)
        yield
        self.where.pop()

    def function(self, called: Callable[..., Any] | None = None, *, autograph: bool) -> Any:
        assert not autograph
        return partial(self.traced, called) if called else partial(self.function, autograph=False)

    def traced(self, called: Callable[..., Any], *given: Any) -> Any:
        self.tracing = True
        result = called(*given)
        self.tracing = False
        return result

    def constant(self, value: Any) -> Tensor:
        return Tensor(value, self.tracing)

    def matmul(self, left: Tensor, right: Tensor) -> Tensor:
        folds = left.folds and right.folds
        self.ran += [] if folds else self.where[-1:]
        return Tensor(left.value @ right.value, folds)

    def add_n(self, parts: list[Tensor]) -> Tensor:
        return Tensor(sum(part.value for part in parts), all(part.folds for part in parts))
