"""Load a disk while the GPUs compute: a file is written, and read back from the disk, in rounds.

The file has no name and at most a gibibyte, so it is gone with its process. Rounds have pauses:
hours of load are to prove a drive, not to wear it out.
"""

import os
import tempfile
import threading

from .timing import now

MIB = 1 << 20
BLOCK = 4 * MIB
# The file has at most so many blocks, and at most this share of the free space.
MOST_BLOCKS, SHARE = 256, 0.05
PAUSE_S = 30


class DiskLoad(threading.Thread):
    """The load of the disk of a directory; `found` is what it reports."""

    def __init__(self, directory):
        threading.Thread.__init__(self, daemon=True)
        self.directory, self.ended = directory, threading.Event()
        self.found = {
            "directory": directory,
            "mib": None,
            "rounds": 0,
            "wrong": 0,
            "write_mib_s": None,
            "read_mib_s": None,
            "error": None,
        }

    def run(self):
        try:
            space = os.statvfs(self.directory)
            blocks = min(MOST_BLOCKS, int(space.f_bavail * space.f_frsize * SHARE) // BLOCK)
            if not blocks:
                raise OSError("%s has no space for a file of 4 MiB" % self.directory)
            self.found["mib"] = blocks * BLOCK // MIB
            with tempfile.TemporaryFile(dir=self.directory, buffering=0) as stream:
                while not self.ended.is_set():
                    self.round(stream, blocks)
                    self.ended.wait(PAUSE_S)
        except OSError as error:
            self.found["error"] = str(error)

    def round(self, stream, blocks):
        """Write all blocks, other ones than before, and compare them with what the disk has.

        A round that is under way when the load ends does not count, but what it found does.
        """
        pattern = os.urandom(BLOCK)
        begin = now()
        stream.seek(0)
        for number in range(blocks):
            write(stream, block(pattern, number))
            if self.ended.is_set():
                return
        os.fsync(stream.fileno())
        written = now()
        # The next reading comes from the disk, and not from memory.
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        stream.seek(0)
        for number in range(blocks):
            self.found["wrong"] += read(stream) != block(pattern, number)
            if self.ended.is_set():
                return
        ended = now()
        self.found["rounds"] += 1
        for name, seconds in (("write_mib_s", written - begin), ("read_mib_s", ended - written)):
            self.found[name] = round(self.found["mib"] / max(seconds, 1e-6))

    def end(self):
        """End, and wait a little while for the block that is under way."""
        self.ended.set()
        self.join(PAUSE_S)
        if self.is_alive() and not self.found["error"]:
            self.found["error"] = "the disk gave no answer within %d s" % PAUSE_S


def block(pattern, number):
    """The block of this number: the pattern from another byte on, so that no two are the same."""
    at = number * (BLOCK // MOST_BLOCKS) + number
    return pattern[at:] + pattern[:at]


def write(stream, data):
    """Write all of a block: one call may take a part of it."""
    left = memoryview(data)
    while left:
        left = left[stream.write(left) :]


def read(stream):
    """A whole block, or what there is of it."""
    parts, left = [], BLOCK
    while left:
        part = stream.read(left)
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
