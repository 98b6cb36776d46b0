"""Completeness of a kernel module's file, as far as that shows without unpacking it."""

import errno
import os
import struct

from .elf import elf_modinfo
from .text import open_regular

XZ, ZSTD, GZIP = b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
ABSENT = "it is a link to what is not there"


def damage(path):
    """Why no kernel can load a file; None where nothing speaks against it, or it is unreadable."""
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if not size:
                return "it is empty"
            head = stream.read(6)
            stream.seek(0)
            # By its content, not its name, modprobe knows how a file is packed.
            for magic, whole in ((XZ, xz_ends), (ZSTD, zstd_ends), (GZIP, gzip_ends)):
                if head.startswith(magic):
                    return None if whole(stream, size) else "it is cut off"
        elf_modinfo(path)
    except OSError as error:
        return ABSENT if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) else None
    except (ValueError, struct.error) as error:
        return str(error)
    return None


def xz_ends(stream, size):
    stream.seek(max(0, size - 2))
    return stream.read(2) == b"YZ"


def zstd_ends(stream, size):
    """Return whether the last block of the first frame, and its checksum, are in the file."""
    stream.seek(len(ZSTD))
    described = ord(stream.read(1) or b"\0")
    alone = described >> 5 & 1
    at = len(ZSTD) + 1 + (not alone) + (0, 1, 2, 4)[described & 3]
    at += (alone, 2, 4, 8)[described >> 6]
    while True:
        stream.seek(at)
        head = stream.read(3)
        if len(head) < 3:
            return False
        block = struct.unpack("<I", head + b"\0")[0]
        # A block of one repeated byte has only that.
        at += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
        if block & 1:
            return at + 4 * (described >> 2 & 1) <= size


def gzip_ends(stream, _):
    """Return whether a file unpacks to its end: its length is known by nothing else."""
    try:
        import zlib
    except ImportError:
        return True
    unpacked = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        for block in iter(lambda: stream.read(1 << 16), b""):
            unpacked.decompress(block)
    except zlib.error:
        return False
    return unpacked.eof
