# Apache-2.0, see LICENSE
"""What DKMS's builds leave behind, in words."""

from __future__ import annotations

import contextlib
import os
import re

LINES = 4
# What of a long build's log says why it ended.
_TELLING = re.compile(r"error|No space left|cannot|failed|not found|No such file", re.IGNORECASE)


def end_of_log(text):
    """The telling last lines of the log that a message of DKMS names; empty where there is none."""
    for path in re.findall(r"(/var/lib/dkms/\S+?/make\.log)", text):
        with contextlib.suppress(OSError), open(path, errors="replace") as stream:
            lines = [line.strip() for line in stream if line.strip()]
            told = [line for line in lines if _TELLING.search(line)] or lines
            return "{} says: {}".format(path, " / ".join(told[-LINES:]))
    full = [line.strip() for line in text.splitlines() if "No space left on device" in line]
    return full[-1] if full else ""


def nearest(place):
    """A directory, or the nearest one above it that is there."""
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    return place


def free_mib(place):
    """MiB that are free at a directory, or at the nearest one above it that is there."""
    found = os.statvfs(nearest(place))
    return found.f_bavail * found.f_frsize >> 20
