"""The frameworks that a stack can run, each with its names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

FrameworkId = Literal["tensorflow", "pytorch", "jax"]


@dataclass(frozen=True)
class Framework:
    """One framework: its key in the inventory, and what others call it."""

    id: FrameworkId
    title: str
    module: str  # what Python imports
    distributions: tuple[str, ...]  # the Python packages that carry its releases


FRAMEWORKS: dict[str, Framework] = {
    each.id: each
    for each in (
        Framework("tensorflow", "TensorFlow", "tensorflow", ("tensorflow", "tensorflow-gpu")),
        Framework("pytorch", "PyTorch", "torch", ("torch",)),
        Framework("jax", "JAX", "jax", ("jax",)),
    )
}


def framework_id(entry: Mapping[str, object]) -> FrameworkId:
    """The framework of a planned stack, of its run, or of a pair's record.

    Those of earlier releases do not name it: they have TensorFlow alone.
    """
    return cast(FrameworkId, entry.get("framework") or "tensorflow")


def is_in_no_toolkit(library: str) -> bool:
    """Whether a library's name is NCCL's or NVSHMEM's: they come as packages of a stack.

    Also where a toolkit has the rest (JAX with `cuda: local`).
    """
    return library.startswith(("libnccl.", "libnvshmem"))
