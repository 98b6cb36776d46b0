"""Write a file into a directory that may belong to another account, such as node_exporter's.

Writes the named file and a partial one of a random name beside it, both in the directory itself.
Follows no link that somebody put there. Standard library only: it is part of pull mode's archive.
"""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path
from typing import TextIO


def write_file(path: Path, text: str, mode: int) -> None:
    """Write a file, flush it, rename it into place: a reader finds the old or the new one.

    Raises `OSError`, also where the directory is a link.
    """
    if path.parent.is_symlink():
        raise NotADirectoryError(
            errno.ENOTDIR,
            "A link is not followed; name the directory that it leads to",
            str(path.parent),
        )
    # A directory that becomes a link now is not followed either.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # As long as the longest name permits.
        partial = f".{secrets.token_hex(16)}.partial"
        target = os.open(
            partial,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=folder,
        )
        try:
            with os.fdopen(target, "w", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(text)
                stream.flush()
                os.fchmod(target, mode)
                os.fsync(target)
            os.rename(partial, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(partial, dir_fd=folder)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)


def open_lock(path: Path) -> TextIO:
    """Open a lock that no other account can open, and so hold; an earlier release's becomes so."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.fdopen(os.open(path, flags, 0o600), "w")
    os.fchmod(lock.fileno(), 0o600)
    return lock
