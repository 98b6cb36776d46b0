"""Writes shared libraries whose functions do next to nothing, without a compiler.

Each is a complete ELF file for x86-64: the dynamic linker loads it by its SONAME and finds every
function by its name; a function returns a status, and may write one value where it was asked to.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PAGE = 0x1000
_HEADER, _SEGMENT, _SYMBOL = 64, 56, 24
_SEGMENTS = 4
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_R, _W, _X = 4, 2, 1
_GLOBAL_FUNCTION = 0x12
_PAUSE = 34  # the system call's number
# Any section number but 0, which means "undefined": there is no table of sections.
_DEFINED = 1
# How the instructions name the registers of the first four arguments: rdi, rsi, rdx and rcx.
_ARGUMENTS = (7, 6, 2, 1)


@dataclass(frozen=True)
class Function:
    """Returns `status`. `writes` goes to where the argument of number `to` points, unless that is
    null; a text without `to` is itself what is returned. One that is `copied` goes there letter by
    letter, else its address does. One that `pauses` never returns, until it is killed."""

    status: int = 0
    writes: int | str | None = None
    to: int | None = None
    copied: bool = False
    pauses: bool = False

    def code(self) -> bytes:
        if self.pauses:
            return b"\xb8" + struct.pack("<I", _PAUSE) + b"\x0f\x05\xeb\xf7"  # syscall; jmp back
        end = b"\xb8" + struct.pack("<I", self.status) + b"\xc3"  # mov eax, status; ret
        if self.writes is None:
            return end
        text = b"" if isinstance(self.writes, int) else self.writes.encode() + b"\0"
        if self.to is None:
            # lea rax, [the text behind this code]; ret
            return b"\x48\x8d\x05" + struct.pack("<i", 1) + b"\xc3" + text
        register = _ARGUMENTS[self.to]
        if self.copied:
            # mov rdi, register; lea rsi, [text]; mov ecx, its length; rep movsb
            return (
                bytes([0x48, 0x89, 0xC7 | register << 3])
                + b"\x48\x8d\x35"
                + struct.pack("<i", 7 + len(end))
                + b"\xb9"
                + struct.pack("<I", len(text))
                + b"\xf3\xa4"
                + end
                + text
            )
        if isinstance(self.writes, int):
            # mov dword [register], value
            store = bytes([0xC7, register]) + struct.pack("<I", self.writes)
        else:
            # lea rax, [text]; mov [register], rax
            store = b"\x48\x8d\x05" + struct.pack("<i", 3 + len(end))
            store += bytes([0x48, 0x89, register])
        # test register, register; je past the store
        null = bytes([0x48, 0x85, 0xC0 | register * 9, 0x74, len(store)])
        return null + store + end + text


def write(path: Path, soname: str, functions: Mapping[str, Function]) -> None:
    """Write the library `path` that calls itself `soname` and has these functions."""
    names = sorted(functions)
    strings = b"\0"
    at: dict[str, int] = {}
    for name in [soname, *names]:
        at[name] = len(strings)
        strings += name.encode() + b"\0"
    symbols_at = _HEADER + _SEGMENTS * _SEGMENT
    hashes = _hash_table(names)
    hashes_at = symbols_at + _SYMBOL * (1 + len(names))
    strings_at = hashes_at + len(hashes)
    code_at = _aligned(strings_at + len(strings), 16)
    symbols, code = bytes(_SYMBOL), b""
    for name in names:
        body = functions[name].code()
        symbols += struct.pack(
            "<IBBHQQ", at[name], _GLOBAL_FUNCTION, 0, _DEFINED, code_at + len(code), len(body)
        )
        code += body.ljust(_aligned(len(body), 16), b"\xcc")
    # Older dynamic linkers write into this part, so it has a writable page of its own.
    dynamic_at = _aligned(code_at + len(code), _PAGE)
    entries = [(14, at[soname]), (4, hashes_at), (5, strings_at), (6, symbols_at)]
    entries += [(10, len(strings)), (11, _SYMBOL), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    segments = (
        _segment(_LOAD, _R | _X, 0, code_at + len(code), _PAGE)
        + _segment(_LOAD, _R | _W, dynamic_at, len(dynamic), _PAGE)
        + _segment(_DYNAMIC, _R | _W, dynamic_at, len(dynamic), 8)
        # Without this the stack would have to be executable, which newer systems refuse.
        + _segment(_STACK, _R | _W, 0, 0, 16)
    )
    content = _header() + segments + symbols + hashes + strings
    content = content.ljust(code_at, b"\0") + code
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.ljust(dynamic_at, b"\0") + dynamic)
    path.chmod(0o755)


def _header() -> bytes:
    shared, x86_64, sizes = 3, 62, (_HEADER, _SEGMENT, _SEGMENTS, 64, 0, 0)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    return ident + struct.pack("<HHIQQQIHHHHHH", shared, x86_64, 1, 0, _HEADER, 0, 0, *sizes)


def _segment(kind: int, flags: int, at: int, size: int, align: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align)


def _hash_table(names: list[str]) -> bytes:
    """The System V hash table, by which the dynamic linker looks names up."""
    count = max(1, len(names))
    buckets, chain = [0] * count, [0] * (1 + len(names))
    for number, name in enumerate(names, 1):
        bucket = _hash(name) % count
        chain[number], buckets[bucket] = buckets[bucket], number
    return struct.pack(f"<{2 + count + len(chain)}I", count, len(chain), *buckets, *chain)


def _hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
    return value


def _aligned(value: int, to: int) -> int:
    return -(-value // to) * to
