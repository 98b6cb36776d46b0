"""Shared libraries: their SONAME, and copies of them without device code.

CUDA's libraries are mostly code for GPUs. Where no GPU will ever run it, replacing it by holes
keeps names, symbols, sizes and host code, and makes gigabytes into megabytes. So does leaving the
code of one architecture, for GPUs of that one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from lab import fatbin

DEVICE_CODE = (b".nv_fatbin", b"__nv_relfatbin")
# Newer libraries (cuFFT 11.2) have device code among their data too, in many containers.
_DATA = b".data"
_PROGBITS = 1
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 0, 5, 14, 15, 29
_BLOCK = 1 << 20


def _header(stream: BinaryIO) -> bytes | None:
    """The ELF header, if this is a 64-bit little-endian ELF file."""
    header = stream.read(64)
    return header if len(header) == 64 and header[:6] == b"\x7fELF\x02\x01" else None


def soname(path: Path) -> str | None:
    """The name by which the dynamic linker knows the library; None if it has none."""
    found = _dynamic_texts(path, (_DT_SONAME,))
    return found[0][1].decode() if found else None


def move_runpath(path: Path, old: str, new: str) -> bool:
    """Let a program look for libraries below the directory `new`, where it did below `old`.

    In place, and so only to a shorter or equal name. Return whether anything was changed.
    """
    changed = False
    for at, text in _dynamic_texts(path, (_DT_RPATH, _DT_RUNPATH)):
        moved = (text.decode() + "/").replace(old, new).removesuffix("/").encode()
        if moved != text and len(moved) <= len(text):
            with path.open("r+b") as stream:
                stream.seek(at)
                stream.write(moved.ljust(len(text), b"\0"))
            changed = True
    return changed


def _dynamic_texts(path: Path, wanted: tuple[int, ...]) -> list[tuple[int, bytes]]:
    """The place in the file and the text of each of these entries of the dynamic section."""
    with path.open("rb") as stream:
        if (header := _header(stream)) is None:
            return []
        (table,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        if not count:
            return []  # an object file, which nothing loads
        stream.seek(table)
        loads: list[tuple[int, int, int]] = []
        dynamic = b""
        programs = stream.read(size * count)
        for at in range(0, len(programs), size):
            kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", programs, at)
            if kind == _PT_LOAD:
                loads.append((address, offset, length))
            elif kind == _PT_DYNAMIC:
                stream.seek(offset)
                dynamic = stream.read(length)
        tags: dict[int, int] = {}
        for tag, value in struct.iter_unpack("<QQ", dynamic[: len(dynamic) // 16 * 16]):
            if tag == _DT_NULL:
                break
            tags[tag] = value
        strings = tags.get(_DT_STRTAB, -1)
        found = []
        for address, offset, length in loads:
            if address <= strings < address + length:
                for tag in set(wanted) & tags.keys():
                    at = strings - address + offset + tags[tag]
                    stream.seek(at)
                    found.append((at, stream.read(4096).split(b"\0")[0]))
    return found


def device_code(path: Path) -> list[tuple[int, int]]:
    """Offset and length of each part that holds code for GPUs."""
    with path.open("rb") as stream:
        if (header := _header(stream)) is None:
            return []
        (table,) = struct.unpack_from("<Q", header, 40)
        size, count, names_at = struct.unpack_from("<HHH", header, 58)
        if not table:
            return []
        stream.seek(table)
        raw = stream.read(size * count)
        sections = [struct.unpack_from("<IIQQQQ", raw, at) for at in range(0, len(raw), size)]
        stream.seek(sections[names_at][4])
        names = stream.read(sections[names_at][5])
        found: list[tuple[int, int]] = []
        for section, kind, _, _, offset, length in sections:
            name = names[section : names.index(b"\0", section)]
            if kind == _PROGBITS and name in DEVICE_CODE:
                found.append((offset, length))
            elif kind == _PROGBITS and name == _DATA:
                stream.seek(offset)
                found += [
                    (offset + at, size) for at, size in fatbin.containers(stream.read(length))
                ]
    return sorted(found)


def code_for_others(path: Path, architecture: int) -> Iterator[tuple[int, int]]:
    """Offset and length of each part that GPUs of this architecture never run."""
    with path.open("rb") as stream:
        for offset, length in device_code(path):
            stream.seek(offset)
            for at, size in fatbin.unused(stream.read(length), architecture):
                yield offset + at, size


def slim(source: Path, target: Path, architecture: int | None = None) -> int:
    """Copy a library with holes for its device code; gives back how many bytes became holes.

    With an `architecture`, the code that such a GPU runs stays.
    """
    size = source.stat().st_size
    holes = list(code_for_others(source, architecture)) if architecture else device_code(source)
    with source.open("rb") as stream, target.open("wb") as out:
        out.truncate(size)
        at = 0
        for offset, length in [*holes, (size, 0)]:
            out.seek(at)
            for block in _blocks(stream, at, offset):
                if block.strip(b"\0"):
                    out.write(block)
                else:
                    out.seek(len(block), 1)
            at = offset + length
    return sum(length for _, length in holes)


def _blocks(stream: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    stream.seek(start)
    while start < end and (block := stream.read(min(_BLOCK, end - start))):
        start += len(block)
        yield block
