"""Read the dynamic linker's cache and configuration."""

import os
import struct

from .constants import CUDA_FILE
from .host import Host
from .text import open_regular

# The driver's library for programs. A toolkit has files of this SONAME that are no working driver.
DRIVER = "libcuda.so.1"


def linker_cache(root="/"):
    """The entries of CUDA, cuDNN and the driver in /etc/ld.so.cache, as they are searched."""
    host = Host({"root": root})
    try:
        with open_regular(host.path("/etc/ld.so.cache")) as stream:
            raw = stream.read()
    except FileNotFoundError:
        return []
    return [
        {
            "soname": soname,
            "path": path,
            "exists": host.exists(path),
            "realpath": host.realpath(path),
        }
        for soname, path in parse_linker_cache(raw)
        if CUDA_FILE.match(soname) or soname == DRIVER
    ]


def parse_linker_cache(raw):
    """Pairs of soname and path for this machine's word size, from the cache's own format.

    Raises ValueError for a cache that is damaged, or of another format.
    """
    start = raw.find(b"glibc-ld.so.cache1.1")
    if start < 0:
        raise ValueError("/etc/ld.so.cache is of an unknown format")
    try:
        return _entries(raw[start:])
    except (ValueError, struct.error) as error:
        raise ValueError("/etc/ld.so.cache is damaged: %s" % error) from None


def _entries(cache):
    (count,) = struct.unpack_from("=I", cache, 20)
    entries = []
    for index in range(count):
        flags, key, value = struct.unpack_from("=iII", cache, 48 + 24 * index)
        # 0x0000 is i386 and 0x0800 is x32: libraries that no 64-bit process can open.
        if struct.calcsize("P") == 8 and flags & 0xFF00 in (0x0000, 0x0800):
            continue
        entries.append(
            tuple(
                cache[at : cache.index(b"\0", at)].decode("utf-8", "surrogateescape")
                for at in (key, value)
            )
        )
    return entries


def linker_lines(host, name="/etc/ld.so.conf", visited=None):
    """Pairs of a file and a directory that a line of the linker's configuration names.

    They have the order in which ldconfig takes them: an included file stands where it is included.
    A pair with None begins each file.
    """
    visited = set() if visited is None else visited
    text = None if name in visited else host.text_or_none(name)
    if text is None:
        return
    visited.add(name)
    yield name, None
    for line in [row.split("#")[0].strip() for row in text.splitlines()]:
        fields = line.split()
        if fields[:1] == ["include"]:
            for pattern in fields[1:]:
                for found in host.glob(os.path.join(os.path.dirname(name), pattern)):
                    for pair in linker_lines(host, found, visited):
                        yield pair
        elif fields and fields[0].lower() != "hwcap":
            # ldconfig knows no separator: all up to a library type is one directory.
            yield name, line.split("=")[0].rstrip().rstrip("/") or "/"
