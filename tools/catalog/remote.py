"""Read a file on a web server in parts, like a file on disk.

A wheel of 600 MB has its directory at the end and few members of interest: `zipfile` seeks to
these, and only they are fetched. A server without range requests sends the whole file once.
"""

from __future__ import annotations

import io
import re
import tempfile
from typing import Any, BinaryIO

from .index import request

LEAST, MOST = 1 << 16, 1 << 26  # bytes of one request: few to seek, many to read on
MOST_FILE = 16 << 30  # of a server that sends it whole


class Ranges(io.RawIOBase):
    """A remote file; each request that continues the last one is four times as long."""

    def __init__(self, url: str, size: int) -> None:
        self.url, self.size = url, size
        self._at = 0
        self._start, self._block = 0, b""
        self._length = LEAST

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self.size:
            return 0
        end = self._start + len(self._block)
        if not self._start <= self._at < end:
            self._length = min(4 * self._length, MOST) if self._at == end else LEAST
            self._fetch()
        at = self._at - self._start
        part = self._block[at : at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _fetch(self) -> None:
        last = min(self._at + self._length, self.size) - 1
        with request(self.url, {"Range": f"bytes={self._at}-{last}"}) as answer:
            block = answer.read(last - self._at + 2)
            if len(block) != last - self._at + 1:
                # Reported as any failure of a request, without the URL's password.
                raise OSError("the answer ended too early")
        self._start, self._block = self._at, block


def remote(url: str) -> BinaryIO:
    """Open a remote file to read and seek; the caller closes it. Raises MeasureError."""
    with request(url, {"Range": "bytes=0-0"}) as answer:
        if answer.status == 206:
            size = (answer.headers["Content-Range"] or "").rpartition("/")[2]
            if not re.fullmatch("[0-9]{1,15}", size):
                raise OSError("the answer to a request for a part names no size of the file")
            return io.BufferedReader(Ranges(url, int(size)), LEAST)
        whole = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        for block in iter(lambda: answer.read(1 << 20), b""):
            whole.write(block)
            if whole.tell() > MOST_FILE:
                whole.close()
                raise OSError("the answer has no end")
    return whole
