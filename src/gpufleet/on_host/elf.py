"""Read ELF files: a library's SONAME and dependencies, a kernel module's information."""

import os
import platform
import re
import struct

from .text import open_regular

MACHINES = {3: "i386", 21: "ppc64le", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
# DT_AUXILIARY, DT_FILTER, DT_DEPAUDIT, DT_AUDIT.
FILTERS = (0x7FFFFFFD, 0x7FFFFFFF, 0x6FFFFEFB, 0x6FFFFEFC)


def elf_dynamic(path, whole=True):
    """The dynamic section of a library or program; ValueError with the plain reason if it is none.

    Its keys are soname, needed, filters, runpath, interpreter and unfit. `unfit`: why this host
    cannot load it, if so. `filters`: libraries that are loaded with it, beside those that it needs.
    Without `whole` a file may be cut off where the dynamic linker does not notice.
    """
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        head = stream.read(64)
        if head[:4] != b"\x7fELF":
            raise ValueError(_not_elf(head, size))
        if len(head) < (64 if head[4:5] == b"\x02" else 52):
            raise ValueError("truncated: %d bytes, the ELF header is longer" % size)
        wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
        offsets = struct.unpack_from(order + ("QQ" if wide else "II"), head, 32 if wide else 28)
        counts = struct.unpack_from(order + "HHHH", head, 54 if wide else 42)
        if offsets[0] + counts[0] * counts[1] > size:
            raise ValueError("truncated: %d bytes, its program headers end later" % size)
        stream.seek(offsets[0])
        segments = [_segment(stream.read(counts[0]), order, wide) for _ in range(counts[1])]
        # A copy that was cut off usually ends inside a segment, or before the section table,
        # which is at the end of the file. Holes count as content.
        end = offsets[1] + counts[2] * counts[3]
        for kind, offset, _address, length in segments:
            end = max(end, offset + length if kind != 6 else 0)
        if whole and end > size:
            raise ValueError("truncated: %d bytes, its headers describe %d" % (size, end))
        dynamic = [s for s in segments if s[0] == 2]
        if not dynamic:
            raise ValueError("not a shared library: no dynamic section")
        stream.seek(dynamic[0][1])
        raw = stream.read(dynamic[0][3])
        pair = struct.Struct(order + ("qQ" if wide else "iI"))
        entries = list(pair.iter_unpack(raw[: len(raw) // pair.size * pair.size]))
        values = dict(reversed(entries))
        found = {
            "soname": None,
            "needed": [],
            "filters": [],
            "runpath": [],
            "interpreter": None,
            "unfit": _other_machine(head, order, wide),
        }
        if 5 not in values or 10 not in values:
            return found
        stream.seek(_file_offset(segments, values[5]))
        strings = stream.read(values[10])
        for kind, offset, _address, length in segments:
            if kind == 3:
                stream.seek(offset)
                found["interpreter"] = stream.read(length).rstrip(b"\0").decode("utf-8", "replace")
        versions = _needed_versions(stream, segments, values, order)

    def string(offset):
        return strings[offset : strings.index(b"\0", offset)].decode("utf-8", "replace")

    try:
        found["needed"] = [string(value) for tag, value in entries if tag == 1]
        found["soname"] = string(values[14]) if 14 in values else None
        found["filters"] = [string(value) for tag, value in entries if tag in FILTERS]
        found["runpath"] = [
            place for tag, value in entries if tag in (15, 29) for place in string(value).split(":")
        ]
        found["unfit"] = found["unfit"] or _newer_glibc(map(string, versions))
        return found
    except ValueError:
        raise ValueError("damaged: its string table does not end") from None


def _other_machine(head, order, wide):
    number, own = struct.unpack_from(order + "H", head, 18)[0], platform.machine()
    name = MACHINES.get(number, "machine %d" % number)
    if own in MACHINES.values() and (name != own or (order == ">")):
        return "it is for %s%s, this host is %s" % (name, " (big-endian)" * (order == ">"), own)
    if wide != (struct.calcsize("P") == 8):
        return "it is of %d bits, this host's programs are of %d" % (
            64 if wide else 32,
            struct.calcsize("P") * 8,
        )
    return None


def _needed_versions(stream, segments, values, order):
    """Where the names of the versions are that a file needs of its libraries."""
    found = []
    if 0x6FFFFFFE in values:
        at = _file_offset(segments, values[0x6FFFFFFE])
        for _ in range(min(values.get(0x6FFFFFFF, 0), 1000)):
            stream.seek(at)
            count, _, first, more = struct.unpack_from(order + "2xHIII", stream.read(16))
            place = at + first
            for _ in range(min(count, 1000)):
                stream.seek(place)
                name, further = struct.unpack_from(order + "8xII", stream.read(16))
                found.append(name)
                place += further
            at += more
    return found


def _newer_glibc(versions):
    try:
        own = os.confstr("CS_GNU_LIBC_VERSION").split()[-1]
    except (AttributeError, OSError, ValueError):
        return None
    most = max([_numbers(name) for name in versions if re.match(r"GLIBC_\d", name)], default=[])
    if most <= _numbers(own):
        return None
    return "it needs GLIBC_%s, this host has %s" % (".".join(map(str, most)), own)


def _numbers(text):
    return [int(number) for number in re.findall(r"\d+", text)]


def unfit(path):
    """Why this host cannot load a library or program that is there; None if nothing tells."""
    try:
        return elf_dynamic(path)["unfit"]
    except (ValueError, LookupError, OSError, struct.error):
        return None


def _not_elf(head, size):
    if not size:
        return "empty file"
    if head.lstrip()[:1] == b"<":
        return "not a library: text that looks like a web page"
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head):
        return "not a library: a text file"
    return "not a library: invalid ELF header"


def _segment(raw, order, wide):
    """Type, offset in the file, address and length in the file of one program header."""
    fields = struct.unpack_from(order + ("IIQQQQ" if wide else "IIIII"), raw)
    return (
        (fields[0], fields[2], fields[3], fields[5])
        if wide
        else (fields[0], fields[1], fields[2], fields[4])
    )


def _file_offset(segments, address):
    for kind, offset, start, length in segments:
        if kind == 1 and start <= address < start + length:
            return offset + address - start
    raise ValueError("damaged: its string table is in no segment")


def elf_modinfo(path):
    """The values of a kernel module's own information; ValueError if it has none or is cut."""
    with open_regular(path) as stream:
        end = os.fstat(stream.fileno()).st_size
        head = stream.read(64)
        if head[:6] != b"\x7fELF\x02\x01" or len(head) < 64:
            raise ValueError("not a kernel module of this machine")
        (start,) = struct.unpack_from("<Q", head, 40)
        size, count, names = struct.unpack_from("<HHH", head, 58)
        if not count or start + size * count > end:
            raise ValueError("truncated: its section table is not there")
        if size < 64 or names >= count:
            raise ValueError("damaged: its section table describes none")
        stream.seek(start)
        table = stream.read(size * count)
        # The fields of a section: name, type, flags, address, offset, length.
        rows = [struct.unpack_from("<IIQQQQ", table, at * size) for at in range(count)]
        # The first is none; of type 8 are those that have no content in the file.
        rows = [row if row[1] not in (0, 8) else (*row[:4], 0, 0) for row in rows]
        if any(row[4] + row[5] > end for row in rows):
            raise ValueError("truncated: its sections end after the file")
        stream.seek(rows[names][4])
        strings = stream.read(rows[names][5])
        for row in rows:
            if strings[row[0] :].startswith(b".modinfo\0"):
                stream.seek(row[4])
                pairs = [item.partition(b"=") for item in stream.read(row[5]).split(b"\0")]
                return {
                    key.decode("utf-8", "replace"): value.decode("utf-8", "replace")
                    for key, mark, value in reversed(pairs)
                    if mark
                }
    raise ValueError("it has no .modinfo")


def soname_of(host, name):
    """A library's SONAME; None for what is no library."""
    path = host.path(host.realpath(name))
    try:
        return elf_dynamic(path)["soname"] if os.path.isfile(path) else None
    except (ValueError, OSError, struct.error):
        return None
