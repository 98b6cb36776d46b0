"""The table of the frameworks that a stack can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from .descriptor import Framework, FrameworkId, Part
from .jax import JAX
from .pytorch import PYTORCH
from .tensorflow import TENSORFLOW

FRAMEWORKS: dict[str, Framework] = {each.id: each for each in (TENSORFLOW, PYTORCH, JAX)}

# The framework of a record that names none: earlier releases had it alone.
DEFAULT = TENSORFLOW
UNNAMED = f"without it: {DEFAULT.id}"  # the description of such a key of a document


def framework_id(entry: Mapping[str, object]) -> FrameworkId:
    """The framework of a planned stack, of its run, or of a pair's record."""
    return cast(FrameworkId, entry.get("framework") or DEFAULT.id)


def framework_of(entry: Mapping[str, object]) -> Framework:
    """The descriptor of that framework."""
    return FRAMEWORKS[framework_id(entry)]


def reporting(part: Part) -> tuple[FrameworkId, ...]:
    """The frameworks whose run reports that part."""
    return tuple(each.id for each in FRAMEWORKS.values() if part in each.parts)


def titles(where: Callable[[Framework], object]) -> str:
    """The titles of the frameworks for which that is true: `PyTorch or JAX`."""
    return " or ".join(each.title for each in FRAMEWORKS.values() if where(each))
