"""Bring files into the mirror: from directories, the inventory's own source, or their makers.

What is there and right is left alone; a download goes on where an earlier one stopped.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from ansible_collections.gpufleet.gpu.plugins.module_utils.download import (
    check,
    download,
    held,
    opened,
    put,
    verified,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError
from rich.filesize import decimal

from .needs import File, MirrorError

AT_ONCE = 4
# Our own notes beside the files: what was checked, and the lock.
OURS = ".gpufleet"
THERE, FETCHED, MISSING, WRONG = "there", "fetched", "missing", "wrong"


@dataclass(frozen=True)
class Row:
    """What became of one file; `because` and `remedy` where it is not there."""

    file: File
    state: str
    because: str = ""
    remedy: str = ""

    @property
    def right(self) -> bool:
        """Whether it is there, checked."""
        return self.state in (THERE, FETCHED)


Report = Callable[[Row], None]


@dataclass(frozen=True)
class Result:
    """What came of a mirror: `failures` kept it unknown what is needed, `extra` is not needed."""

    directory: Path
    rows: Sequence[Row]
    failures: Sequence[MirrorError] = ()
    extra: Sequence[str] = ()

    @property
    def whole(self) -> bool:
        """Whether nothing is missing."""
        return not self.failures and all(row.right for row in self.rows)


@dataclass(frozen=True)
class Mirror:
    """A mirror's directory, and where what it lacks is looked for first.

    `places` are directories; `sites` are addresses that artifacts are below; `indexes` are
    addresses of package indexes, with the login that they may need.
    """

    directory: Path
    places: tuple[Path, ...] = ()
    sites: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()

    def path(self, file: File) -> Path:
        """Where the file belongs."""
        return self.directory / file.path

    def partial(self, file: File) -> Path:
        """What an unfinished download of it is called."""
        return self.directory / f"{file.path}.partial"

    def look(self, file: File, thorough: bool = False) -> Row:
        """Whether the file is there and right; `thorough`: read again what was checked before."""
        path = str(self.path(file))
        try:
            if thorough:
                check(path, file.checksum)
            else:
                verified(path, file.checksum, str(self.directory / OURS))
        except FileNotFoundError:
            return Row(file, MISSING, "it is not there", self._remedy(file))
        except (StateError, OSError) as error:
            return Row(file, WRONG, str(error), self._remedy(file))
        return self._right(file, THERE)

    def _right(self, file: File, state: str) -> Row:
        return Row(replace(file, size_bytes=self.path(file).stat().st_size), state)

    def bring(self, file: File) -> Row:
        """Have the file there, by the first way that works."""
        row = self.look(file)
        if row.right:
            return row
        self.path(file).parent.mkdir(parents=True, exist_ok=True)
        because = [row.because] if row.state == WRONG else []
        for way in self._ways(file):
            try:
                way()
            except (StateError, OSError) as error:
                because.append(self._without_logins(str(error)))
            else:
                return self._right(file, FETCHED)
        return replace(row, because="; ".join(because) or row.because)

    def _ways(self, file: File) -> Iterable[Callable[[], None]]:
        target, seals = str(self.path(file)), str(self.directory / OURS)
        partial = self.partial(file)

        def copy(source: Path) -> None:
            check(str(source), file.checksum)
            shutil.copyfile(source, partial)
            put(str(partial), target, file.checksum, seals)

        for place in self.places:
            source = place / file.name
            if source.is_file() and source.resolve() != Path(target).resolve():
                yield functools.partial(copy, source)
        sites = self.sites if file.kind == "artifact" else ()
        urls = [f"{site.rstrip('/')}/{file.name}" for site in sites]
        if file.url and not file.login_required:
            urls.append(_with_login(file.url, self.indexes))
        for url in urls:
            yield functools.partial(download, url, target, file.checksum, seals)

    def _remedy(self, file: File) -> str:
        if file.login_required:
            size = f" ({decimal(file.size_bytes)})" if file.size_bytes else ""
            return (f"Log in with NVIDIA at {file.url}, get {file.name}{size}, and name the "
                    "directory that it then lies in: --from DIRECTORY.")
        if file.kind == "package":
            return "Run 'artifacts fetch' again where the package index is reached."
        site = file.url or "its site"
        return (f"Run 'artifacts fetch' again where {site} is reached, or put the file into a "
                "directory and name that: --from DIRECTORY.")

    def _without_logins(self, text: str) -> str:
        for address in (*self.sites, *self.indexes):
            login = urlsplit(address).netloc.rpartition("@")[0]
            text = text.replace(f"{login}@", "") if login else text
        return text


def locked(mirror: Mirror) -> AbstractContextManager[None]:
    """Held while one run writes into the mirror; another waits for it."""
    found: AbstractContextManager[None] = held(str(mirror.directory / OURS / "lock"))
    return found


def _with_login(url: str, indexes: Iterable[str]) -> str:
    """The address with the login of the index that it belongs to; uv leaves that out."""
    parts = urlsplit(url)
    for index in indexes:
        login, _, server = urlsplit(index).netloc.rpartition("@")
        if login and server == parts.netloc:
            return parts._replace(netloc=f"{login}@{server}").geturl()
    return url


def sizes(mirror: Mirror, files: Iterable[File]) -> list[File]:
    """The files, with the sizes that nobody has said asked of their servers."""

    def sized(file: File) -> File:
        if file.size_bytes is not None or file.login_required or not file.url:
            return file
        if mirror.path(file).exists():
            return replace(file, size_bytes=mirror.path(file).stat().st_size)
        try:
            url = _with_login(file.url, mirror.indexes)
            with opened(url, method="HEAD") as answer:
                return replace(file, size_bytes=int(answer.headers["Content-Length"]))
        except (OSError, ValueError, TypeError):
            # What cannot be asked is told when it is fetched.
            return file

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(sized, files))


def lacking(mirror: Mirror, files: Iterable[File]) -> int:
    """How many bytes are still to come, as far as sizes are known."""
    return sum(
        max(0, (file.size_bytes or 0) - _length(mirror.partial(file)))
        for file in files if not mirror.path(file).exists())


def _length(path: Path) -> int:
    """A file's bytes; 0 where it is not there, or no longer: a download ends at any moment."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def check_space(mirror: Mirror, files: Iterable[File]) -> None:
    """Refuse to begin what the disk cannot hold."""
    wanted, free = lacking(mirror, files), shutil.disk_usage(mirror.directory).free
    if wanted > free:
        raise MirrorError(
            f"{mirror.directory} has {free / 1e9:.1f} GB free, and {wanted / 1e9:.1f} GB are to "
            "come", "Free some, or name a directory on another disk; nothing was fetched.")


def bring_all(mirror: Mirror, files: list[File], heard: Report) -> list[Row]:
    """Have all of them there; a row each, in their order."""

    def one(file: File) -> Row:
        row = mirror.bring(file)
        heard(row)
        return row

    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        return list(pool.map(one, files))
    finally:
        # An interrupted run waits for nothing: the next one goes on.
        pool.shutdown(wait=False, cancel_futures=True)


def not_needed(mirror: Mirror, rows: Iterable[Row], *ours: Path) -> list[str]:
    """Files in the directory that nothing needs."""
    known = {mirror.path(row.file) for row in rows}.union(ours)
    below = (
        path for path in mirror.directory.rglob("*")
        if path.is_file() and path not in known)
    names = (path.relative_to(mirror.directory) for path in below)
    return sorted(str(name) for name in names if not name.parts[0].startswith("."))
