"""The libraries that frameworks use and no toolkit has."""

from __future__ import annotations


def is_in_no_toolkit(library: str) -> bool:
    """Return whether a library is NCCL's or NVSHMEM's: they come as packages of a stack.

    Also where a toolkit has the rest (JAX with `cuda: local`).
    """
    return library.startswith(("libnccl.", "libnvshmem"))
