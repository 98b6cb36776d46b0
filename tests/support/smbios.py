"""Tables of a machine's firmware (SMBIOS), as the kernel shows them."""

from __future__ import annotations

import struct


def structure(kind: int, formatted: bytes, *texts: str) -> bytes:
    """A structure of an SMBIOS table: its header, its formatted part, its strings."""
    strings = b"".join(text.encode() + b"\0" for text in texts) or b"\0"
    return struct.pack("<BBH", kind, len(formatted) + 4, 0x1100) + formatted + strings + b"\0"


def smbios_module(
    size: int, *, speed: int = 0, configured: int = 0, large: int = 0, serial: str = ""
) -> bytes:
    """A memory device of SMBIOS 3.3, with its strings' numbers."""
    data = bytearray(0x5C - 4)

    def place(form: str, at: int, value: int) -> None:
        struct.pack_into(form, data, at - 4, value)

    place("<H", 0x0C, size)
    for at, number in ((0x10, 1), (0x11, 2), (0x17, 3), (0x1A, 4), (0x18, 5 if serial else 0)):
        place("<B", at, number)
    place("<H", 0x15, speed)
    place("<I", 0x1C, large)
    place("<H", 0x20, configured)
    place("<I", 0x58, large)
    return structure(
        17, bytes(data), "DIMM_A1", "BANK 0", "Maker", "PART-1 ", *filter(None, [serial])
    )
