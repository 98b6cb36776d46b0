"""Fetch files into the mirror: from directories, the inventory's own source, or their vendors.

Files that are present and correct are kept; an interrupted download continues where it stopped.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from ansible_collections.gpufleet.gpu.plugins.module_utils.download import (
    check,
    download,
    held,
    opened,
    promised_bytes,
    put,
    signed,
    verified,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError
from rich.filesize import decimal

from gpufleet.on_host.addresses import public_addresses

from .needs import File, MirrorError

AT_ONCE = 4
# Our own directory in the mirror: what was checked, and the lock.
OURS = ".gpufleet"
# States of a file: values of the JSON document.
PRESENT, FETCHED, MISSING, WRONG = "there", "fetched", "missing", "wrong"


@dataclass(frozen=True)
class Row:
    """The state of one file; `because` and `remedy` if it is missing or wrong."""

    file: File
    state: str
    because: str = ""
    remedy: str = ""

    @property
    def right(self) -> bool:
        """True if the file is present and correct."""
        return self.state in (PRESENT, FETCHED)


Report = Callable[[Row], None]


@dataclass(frozen=True)
class Result:
    """The state of a mirror.

    `failures`: why it is unknown what is needed. `extra`: files that are not needed.
    """

    directory: Path
    rows: Sequence[Row]
    failures: Sequence[MirrorError] = ()
    extra: Sequence[str] = ()

    @property
    def whole(self) -> bool:
        """True if nothing is missing."""
        return not self.failures and all(row.right for row in self.rows)


@dataclass(frozen=True)
class Mirror:
    """A mirror's directory and its sources.

    `directories`: where files are copied from; `sites`: base addresses of artifacts; `indexes`:
    addresses of package indexes, with the login that they may need; `declared`: addresses of
    artifacts with their queries, which plans do not show.
    """

    directory: Path
    directories: tuple[Path, ...] = ()
    sites: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()

    def address(self, file: File) -> str:
        """Where a file is downloaded from, with the login or the query that the server needs."""
        return _with_login(signed(file.url, self.declared), self.indexes)

    def path(self, file: File) -> Path:
        """The file's path in the mirror."""
        return self.directory / file.path

    def partial(self, file: File) -> Path:
        """The path of an unfinished download."""
        return self.directory / f"{file.path}.partial"

    def check(self, file: File, thorough: bool = False) -> Row:
        """Check a file; `thorough`: also read again what was checked before."""
        path = str(self.path(file))
        try:
            if thorough:
                check(path, file.checksum)
            else:
                verified(path, file.checksum, str(self.directory / OURS))
        except FileNotFoundError:
            return Row(file, MISSING, "the file does not exist", self._remedy(file))
        except (StateError, OSError) as error:
            return Row(file, WRONG, str(error), self._remedy(file))
        return self._right(file, PRESENT)

    def _right(self, file: File, state: str) -> Row:
        return Row(replace(file, size_bytes=self.path(file).stat().st_size), state)

    def fetch(self, file: File) -> Row:
        """Fetch a file from the first source that works, unless it is present and correct."""
        row = self.check(file)
        if row.right:
            return row
        self.path(file).parent.mkdir(parents=True, exist_ok=True)
        because = [row.because] if row.state == WRONG else []
        for source in self._sources(file):
            try:
                source()
            except (StateError, OSError) as error:
                because.append(public_addresses(self._without_logins(str(error))))
            else:
                return self._right(file, FETCHED)
        return replace(row, because="; ".join(because) or row.because)

    def _sources(self, file: File) -> Iterable[Callable[[], None]]:
        target, seals = str(self.path(file)), str(self.directory / OURS)
        partial = self.partial(file)

        def copy(source: Path) -> None:
            check(str(source), file.checksum)
            shutil.copyfile(source, partial)
            put(str(partial), target, file.checksum, seals)

        for directory in self.directories:
            source = directory / file.name
            if source.is_file() and source.resolve() != Path(target).resolve():
                yield functools.partial(copy, source)
        sites = self.sites if file.kind == "artifact" else ()
        urls = [f"{site.rstrip('/')}/{file.name}" for site in sites]
        if file.url and not file.login_required:
            urls.append(self.address(file))
        for url in urls:
            yield functools.partial(download, url, target, file.checksum, seals, file.size_bytes)

    def _remedy(self, file: File) -> str:
        if file.login_required:
            size = f" ({decimal(file.size_bytes)})" if file.size_bytes else ""
            return (
                f"Log in with NVIDIA at {file.url}, download {file.name}{size}, and name the "
                "directory with the download: --from DIRECTORY."
            )
        if file.kind == "package":
            return "Run 'artifacts fetch' again where the package index is reachable."
        site = file.url or "its site"
        return (
            f"Run 'artifacts fetch' again where {site} is reachable, or put the file into a "
            "directory and name the directory: --from DIRECTORY."
        )

    def _without_logins(self, text: str) -> str:
        for address in (*self.sites, *self.indexes):
            login = urlsplit(address).netloc.rpartition("@")[0]
            text = text.replace(f"{login}@", "") if login else text
        return text


def locked(mirror: Mirror) -> AbstractContextManager[None]:
    """Hold the mirror's lock while writing; another run waits for it."""
    lock: AbstractContextManager[None] = held(str(mirror.directory / OURS / "lock"))
    return lock


def _with_login(url: str, indexes: Iterable[str]) -> str:
    """The address with the login of its index; uv's output omits the login."""
    parts = urlsplit(url)
    for index in indexes:
        login, _, server = urlsplit(index).netloc.rpartition("@")
        if login and server == parts.netloc:
            return parts._replace(netloc=f"{login}@{server}").geturl()
    return url


def sizes(mirror: Mirror, files: Iterable[File]) -> list[File]:
    """Return the files; ask the servers for sizes that are not known."""

    def sized(file: File) -> File:
        if file.size_bytes is not None or file.login_required or not file.url:
            return file
        if mirror.path(file).exists():
            return replace(file, size_bytes=mirror.path(file).stat().st_size)
        try:
            with opened(mirror.address(file), method="HEAD") as answer:
                return replace(file, size_bytes=promised_bytes(answer) or None)
        except (OSError, ValueError, HTTPException):
            # An unreachable server is reported when the file is fetched.
            return file

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(sized, files))


def lacking(mirror: Mirror, files: Iterable[File]) -> int:
    """How many bytes are still to be fetched, as far as sizes are known."""
    return sum(
        max(0, (file.size_bytes or 0) - _length(mirror.partial(file)))
        for file in files
        if not mirror.path(file).exists()
    )


def _length(path: Path) -> int:
    """A file's size in bytes; 0 if it is missing: a download may end at any moment."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def check_space(mirror: Mirror, files: Iterable[File]) -> None:
    """Raise `MirrorError` if the disk cannot hold the files that are missing."""
    required, free = lacking(mirror, files), shutil.disk_usage(mirror.directory).free
    if required > free:
        raise MirrorError(
            f"{mirror.directory} has {free / 1e9:.1f} GB free, and {required / 1e9:.1f} GB are "
            "still to be fetched; nothing was fetched",
            "Free some space, or name a directory on another disk.",
        )


def fetch_all(mirror: Mirror, files: list[File], report: Report) -> list[Row]:
    """Fetch all files; return their rows in order, and report each one as it is done."""

    def one(file: File) -> Row:
        row = mirror.fetch(file)
        report(row)
        return row

    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        return list(pool.map(one, files))
    finally:
        # An interrupted run does not wait: the next run continues the downloads.
        pool.shutdown(wait=False, cancel_futures=True)


def not_needed(mirror: Mirror, rows: Iterable[Row], *ours: Path) -> list[str]:
    """Files in the directory that nothing needs."""
    known = {mirror.path(row.file) for row in rows}.union(ours)
    below = (path for path in mirror.directory.rglob("*") if path.is_file() and path not in known)
    names = (path.relative_to(mirror.directory) for path in below)
    return sorted(str(name) for name in names if not name.parts[0].startswith("."))
