"""Compare the contents of installed files with their checksums: all at once, or a share each night.

Tonight's share of a component is what is due by now for all of it to be read within the declared
days, a seventh of them to spare; what skipped and short nights left is due too. A file is read
whole or not at all, and what was found wrong is read again first. Reads only, and knows of earlier
nights by the states that it is given and returns (`ContentsRead` in model/sections/cuda.py).
"""

import errno
import fcntl
import hashlib
import mmap
import os
import stat
import time

from .privileges import LIBC
from .text import open_regular

BLOCK = 1 << 20
DAY_S = 86400
# The bytes that opening a file counts for: 15,000 small ones take longer than their contents do.
OPENING = 4096
# At most so many names in a state.
MOST = 100
# The system call has no name in Python; by machine.
IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "ppc64le": 273}
IOPRIO_IDLE = 3 << 13


class TooLongError(Exception):
    """The time to read is over."""


def sha256_on_disk(path, ends=float("inf")):
    """The checksum of what the disk holds.

    The page cache may be right where the disk is wrong, and belongs to the jobs of users: it is
    passed by. Where a file system cannot do that, the cache is emptied of what no process maps.
    """
    digest, buffer, cached_from = hashlib.sha256(), mmap.mmap(-1, BLOCK), None
    with open_regular(path).detach() as stream:
        left = os.fstat(stream.fileno()).st_size
        try:
            fcntl.fcntl(stream, fcntl.F_SETFL, os.O_DIRECT)
        except OSError:
            cached_from = _cached(stream)
        while True:
            if time.monotonic() > ends:
                raise TooLongError(path)
            try:
                size = stream.readinto(buffer)
            except OSError as error:
                # Some refuse only now, some the odd bytes at the end.
                if cached_from is not None or error.errno != errno.EINVAL:
                    raise
                cached_from = _cached(stream)
                continue
            # A file that grows meanwhile would never end.
            if not size or left < 0:
                break
            digest.update(memoryview(buffer)[:size])
            left -= size
        if cached_from is not None:
            os.posix_fadvise(stream.fileno(), cached_from, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


def _cached(stream):
    fcntl.fcntl(stream, fcntl.F_SETFL, 0)
    os.posix_fadvise(stream.fileno(), stream.tell(), 0, os.POSIX_FADV_DONTNEED)
    return stream.tell()


def in_background():
    """Let this process have what disks and processors have to spare, as far as it is allowed to."""
    number = IOPRIO_SET.get(os.uname().machine)
    if number:
        LIBC.syscall(number, 1, 0, IOPRIO_IDLE)
    os.nice(19)
    try:
        # Where the kernel weighs sessions, and processes only within one.
        with open("/proc/self/autogroup", "w") as stream:
            stream.write("19")
    except OSError:
        pass


def scrub(components, settings, deep=False):
    """Read tonight's share; return the components' states, and their differences by component.

    A component is {"component", "installed", "root", "files": {path: (sha256, size)}}. `deep`: all
    of it, however long it takes.
    """
    now, begin = int(time.time()), time.monotonic()
    seconds, days = (float("inf"), 1) if deep else (settings["seconds"], settings["days"])
    if not deep:
        in_background()
    known = {state["component"]: state for state in settings["components"]}
    work = [
        _Reading(component, known.get(component["component"]), now, deep)
        for component in components
    ]
    try:
        for reading in work:
            for path in sorted(reading.wrong):
                reading.compare(path, begin + seconds)
        # The reading that is most behind comes first.
        for reading in sorted(work, key=lambda each: each.behind(days), reverse=True):
            while reading.left and (deep or reading.behind(days) > 0):
                reading.read_next(begin + seconds, time.monotonic() < begin + seconds / 10)
    except TooLongError:
        pass
    return (
        [reading.answer() for reading in work],
        {reading.state["component"]: list(reading.wrong.values()) for reading in work},
    )


class _Reading:
    """The reading of one component; `left` are the files of this round that were not read yet."""

    def __init__(self, component, state, now, deep):
        self.root, self.files, self.now, self.deep = (
            component["root"],
            component["files"],
            now,
            deep,
        )
        same = {
            "component": component["component"],
            "installed": component["installed"],
            "files": len(self.files),
            "bytes": sum(size for _, size in self.files.values()),
        }
        self.state = dict(
            same, first=now, begun=now - DAY_S, read=None, cursor="", complete=True, slow=[]
        )
        state = state or dict(self.state, bad=[])
        # Another installation has no past. Where the clock was set back, nothing would be due.
        if same.items() <= state.items() and max(state["first"], state["begun"]) <= now:
            self.state = dict(state)
        if deep:
            self.state.update(cursor="", complete=True)
        self.wrong = (
            {}
            if deep or state["installed"] != same["installed"]
            else {entry["path"]: entry for entry in state["bad"] if entry["path"] in self.files}
        )
        self.left = sorted(
            (path for path in self.files if path > self.state["cursor"]), reverse=True
        )
        self.weight = sum(map(self.weight_of, self.files))
        self.done = self.weight - sum(map(self.weight_of, self.left))

    def weight_of(self, path):
        return self.files[path][1] + OPENING

    def behind(self, days):
        """Which part of it is due and was not read."""
        return (self.now - self.state["begun"]) / (DAY_S * days * 6 / 7) - self.done / self.weight

    def read_next(self, ends, first):
        path = self.left[-1]
        slow = [name for name in self.state["slow"] if name != path]
        try:
            self.compare(path, ends)
        except TooLongError:
            # Only what had the night to itself would take as long again.
            if first:
                self.state["complete"] = False
                self.pass_by(path, [*slow, path])
            raise
        self.pass_by(path, slow)

    def pass_by(self, path, slow):
        self.state.update(slow=slow[-MOST:], cursor=self.left.pop())
        self.done += self.weight_of(path)

    def compare(self, path, ends):
        """Compare one file. It was not read if it is another kind of file, or of another size: that
        is found without its contents."""
        sha256, size = self.files[path]
        name = self.root.rstrip("/") + "/" + path
        found, complete = None, False
        if time.monotonic() > ends:
            raise TooLongError(path)
        try:
            info = os.stat(name)
            if stat.S_ISREG(info.st_mode) and info.st_size == size:
                if sha256_on_disk(name, ends) != sha256:
                    found = {"path": path, "what": "sha256"}
                complete = True
        except (FileNotFoundError, NotADirectoryError):
            pass
        except PermissionError:
            if self.deep:
                raise
        except OSError as error:
            found = {"path": path, "what": "unreadable", "error": error.strerror or str(error)}
        self.wrong.pop(path, None)
        if found:
            self.wrong[path] = found
        self.state["complete"] = self.state["complete"] and complete

    def answer(self):
        """The state after this night."""
        if not self.left:
            self.state.update(
                begun=self.now,
                cursor="",
                complete=True,
                read=self.now if self.state["complete"] else self.state["read"],
            )
        return dict(self.state, bad=list(self.wrong.values())[:MOST])
