"""ELF files small enough to write by hand: a shared library that the dynamic linker accepts, and
a kernel module's word about itself.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path


def shared_library(
    path: Path, soname: str | None, needed: tuple[str, ...] = (), searched: str | None = None
) -> Path:
    """Write an ELF64 file whose dynamic section names ``soname``, ``needed`` and, as DT_RUNPATH,
    the places ``searched``; returns it."""
    strings = b"\0"
    offsets = {}
    for name in (*needed, *(text for text in (soname, searched) if text is not None)):
        offsets[name] = len(strings)
        strings += os.fsencode(name) + b"\0"
    # One null symbol and a hash table that finds nothing: what the dynamic linker insists on.
    symbols, table = bytes(24), struct.pack("<IIII", 1, 1, 0, 0)
    start = 64 + 2 * 56
    hashes = start + len(symbols)
    names = hashes + len(table)
    dynamic = names + len(strings)
    entries = [(1, offsets[name]) for name in needed]
    entries += [(14, offsets[soname])] if soname is not None else []
    entries += [(29, offsets[searched])] if searched is not None else []
    entries += [(4, hashes), (5, names), (6, start), (10, len(strings)), (11, 24), (0, 0)]
    tail = b"".join(struct.pack("<qQ", tag, value) for tag, value in entries)
    size = dynamic + len(tail)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 4096)
    pointer = struct.pack("<IIQQQQQQ", 2, 4, dynamic, dynamic, dynamic, len(tail), len(tail), 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + load + pointer + symbols + table + strings + tail)
    return path


def kernel_module(path: Path, **fields: str) -> Path:
    """Write an ELF64 file whose .modinfo says ``fields``, as modinfo reads it; returns it."""
    reported = b"".join(f"{key}={value}".encode() + b"\0" for key, value in fields.items())
    names = b"\0.modinfo\0.shstrtab\0"
    # After the header: what it says, the sections' names, the table of sections.
    table = 64 + len(reported) + len(names)
    sections = [(0, 0, 0, 0), (1, 1, 64, len(reported)), (10, 3, 64 + len(reported), len(names))]
    rows = b"".join(
        struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, start, size, 0, 0, 1, 0)
        for name, kind, start, size in sections
    )
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + reported + names + rows)
    return path


def runpath(path: Path, value: str) -> Path:
    """A library without a SONAME that searches `value`."""
    return shared_library(path, None, searched=value)
