"""Containers of code for GPUs (fatbin), as CUDA's libraries have them.

A container is a header of magic number, version, size of the header and size of what follows, and
entries: one module, compiled once for each architecture or as PTX, which the driver compiles. The
driver walks from entry to entry by their headers, which therefore stay where code is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"\x50\xed\x55\xba"
PTX, MACHINE_CODE = 1, 2
_CONTAINER = struct.Struct("<IHHQ")
# Kind, version, size of the header, size of the code, four numbers of the code, architecture.
_ENTRY = struct.Struct("<HHIQIIHHI")


@dataclass(frozen=True)
class Entry:
    """One compiled form of a module; its code, without its header, is at `offset`."""

    kind: int
    architecture: int
    offset: int
    size: int


def containers(data: bytes) -> Iterator[tuple[int, int]]:
    """Offset and size of each container, its header included."""
    at = -1
    while (at := data.find(MAGIC, at + 1)) >= 0 and at + _CONTAINER.size <= len(data):
        _, version, header, size = _CONTAINER.unpack_from(data, at)
        if version == 1 and header == _CONTAINER.size and at + header + size <= len(data):
            yield at, header + size
            at += header + size - 1


def unused(data: bytes, architecture: int) -> Iterator[tuple[int, int]]:
    """Offset and size of the code that a GPU of this architecture never runs.

    It runs machine code of its own architecture; without one, the newest PTX that it knows. Code
    of another kind stays, and so does a container that cannot be read.
    """
    for at, size in containers(data):
        entries = _entries(data, at + _CONTAINER.size, at + size)
        own = [each for each in entries if each.kind == MACHINE_CODE]
        own = [each for each in own if each.architecture == architecture]
        ptx = [each for each in entries if each.kind == PTX and each.architecture <= architecture]
        newest = max((each.architecture for each in ptx), default=None)
        kept = own or [each for each in ptx if each.architecture == newest]
        for each in entries:
            if each.kind in (PTX, MACHINE_CODE) and each not in kept:
                yield each.offset, each.size


def _entries(data: bytes, at: int, end: int) -> list[Entry]:
    """The entries of a container; none if they do not fill it exactly."""
    found = []
    while at + _ENTRY.size <= end:
        kind, _, header, size, _, _, _, _, architecture = _ENTRY.unpack_from(data, at)
        if header < _ENTRY.size:
            return []
        found.append(Entry(kind, architecture, at + header, size))
        at += header + size
    return found if at == end else []
