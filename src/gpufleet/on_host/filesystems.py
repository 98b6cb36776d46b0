"""Obstacles to a change of a file, even by root: mounts, attributes, a full file system."""

import fcntl
import os
import re
import stat
import struct

MOUNTINFO = "/proc/self/mountinfo"
# The request that reads a file's attributes (ioctl_iflags(2)), and the two that hold against root.
FS_IOC_GETFLAGS = 0x80086601
ATTRIBUTES = {0x10: "immutable", 0x20: "append-only"}
# Less than that is left where nothing more can be installed.
FULL_MIB, FULL_FILES = 1, 10


def mounts_of(host):
    """The mounts of a host that is probed, as `parse_mounts` returns them."""
    return parse_mounts(host.text_or_none(MOUNTINFO) or "")


def parse_mounts(text):
    """The mounts (path, type, source, readonly, options) of the kernel's list.

    A later one is on top. Its own options come first, then those of the whole file system.
    """
    found = []
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        fields, rest = fields.split(" "), rest.split(" ")
        if len(fields) < 6 or len(rest) < 2:
            continue
        found.append(
            {
                "path": unescape(fields[4]),
                "type": rest[0],
                "source": unescape(rest[1]),
                # A bind mount's own option, or that of the whole file system.
                "readonly": "ro" in fields[5].split(",") or "ro" in rest[-1].split(","),
                "options": fields[5].split(",") + rest[-1].split(","),
            }
        )
    return found


def unescape(name):
    """A name as the file system has it: the kernel writes blanks and backslashes in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), name)


def mount_of(path, mounts):
    """The mount that a path without links is on; None where the list has no root."""
    fitting = [
        mount
        for mount in mounts
        if mount["path"] == "/" or (path + "/").startswith(mount["path"] + "/")
    ]
    # The last mount at a place hides the others there.
    return sorted(fitting, key=lambda mount: len(mount["path"]))[-1] if fitting else None


def attribute_of(path):
    """`immutable` or `append-only`, which keep root from changing a file or directory, or None."""
    try:
        # Opening anything else may wait, or do something.
        if stat.S_IFMT(os.lstat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # The kernel writes an int, the request's number has the size of a long.
        (flags,) = struct.unpack_from("=I", fcntl.ioctl(descriptor, FS_IOC_GETFLAGS, bytes(8)))
    except OSError:
        return None  # this file system has no attributes
    finally:
        os.close(descriptor)
    return next((name for bit, name in ATTRIBUTES.items() if flags & bit), None)


def existing(path):
    """The path, or the nearest directory above it that exists."""
    while not os.path.lexists(path) and path not in ("", "/"):
        path = os.path.dirname(path)
    return path or "/"


def free_space(path):
    """The free MiB and the free files of the file system; the latter None where it has no limit."""
    space = os.statvfs(path)
    return (
        space.f_bavail * space.f_frsize // (1 << 20),
        space.f_favail if space.f_files else None,
    )


def is_full(path):
    """Return whether nothing more fits on a path's file system."""
    free_mib, free_files = free_space(path)
    return free_mib < FULL_MIB or (free_files is not None and free_files < FULL_FILES)
