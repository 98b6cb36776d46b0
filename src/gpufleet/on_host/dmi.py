"""The memory modules in a machine's SMBIOS table (DSP0134 of the DMTF, structure type 17)."""

import struct

TABLE = "/sys/firmware/dmi/tables/DMI"
MEMORY_DEVICE, END = 17, 127
# Places in the structure; those of later versions of the standard are beyond the end of an old one.
SIZE, SLOT, BANK, SPEED, MAKER, SERIAL, PART = 0x0C, 0x10, 0x11, 0x15, 0x17, 0x18, 0x1A
LARGE_SIZE, CONFIGURED, LARGE_SPEED, LARGE_CONFIGURED = 0x1C, 0x20, 0x54, 0x58
UNKNOWN, SIZE_IN_KIB, IN_LARGE_FIELD = 0xFFFF, 0x8000, 0x7FFF
MOST_MODULES = 256


def structures(table):
    """Type, formatted part and strings of each structure in a table, without a damaged rest."""
    at = 0
    while at + 4 <= len(table):
        kind, length = table[at], table[at + 1]
        end = table.find(b"\0\0", at + length)
        if length < 4 or end < 0 or kind == END:
            return
        texts = table[at + length : end].split(b"\0")
        yield kind, table[at : at + length], [each.decode("ascii", "replace") for each in texts]
        at = end + 2


def memory_devices(table):
    """The formatted part of each memory slot, and a function that reads a string of it."""
    found = 0
    for kind, data, texts in structures(table):
        if kind != MEMORY_DEVICE or len(data) < 0x15 or found == MOST_MODULES:
            continue
        found += 1

        def text(at, data=data, texts=texts):
            number = data[at] if at < len(data) else 0
            return (texts[number - 1].strip() if 0 < number <= len(texts) else "") or None

        yield data, text


def memory_modules(table):
    """The memory slots (slot, bank, mib, mt_s, part, maker), an empty one with 0 MiB."""
    return [
        {
            "slot": text(SLOT),
            "bank": text(BANK),
            "mib": size_mib(data),
            "mt_s": speed(data, CONFIGURED, LARGE_CONFIGURED) or speed(data, SPEED, LARGE_SPEED),
            "part": text(PART),
            "maker": text(MAKER),
        }
        for data, text in memory_devices(table)
    ]


def identified_modules(table):
    """The memory modules (slot, bank, mib, part, maker, serial), without empty slots."""
    return [
        {
            "slot": text(SLOT),
            "bank": text(BANK),
            "mib": size_mib(data),
            "part": text(PART),
            "maker": text(MAKER),
            "serial": text(SERIAL),
        }
        for data, text in memory_devices(table)
        if size_mib(data) != 0
    ]


def number(data, at, form):
    """A little-endian number; None where the structure ends before."""
    whole = at + struct.calcsize(form) <= len(data)
    return struct.unpack_from(form, data, at)[0] if whole else None


def size_mib(data):
    size = number(data, SIZE, "<H")
    if size == UNKNOWN:
        return None
    if size == IN_LARGE_FIELD:
        return number(data, LARGE_SIZE, "<I")
    return (size & IN_LARGE_FIELD) // 1024 if size & SIZE_IN_KIB else size


def speed(data, at, large):
    found = number(data, at, "<H")
    return (number(data, large, "<I") if found == UNKNOWN else found) or None
