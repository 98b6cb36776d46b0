"""Write files atomically, with one writer at a time; scratch directories that are removed again."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path, mode: int = 0o644) -> Iterator[Path]:
    """Give a name to write to; `path` appears under its own name only when all is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        yield partial
        partial.chmod(mode)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    with whole(path, mode) as partial:
        partial.touch(mode=mode)
        partial.write_text(text, encoding="utf-8")


def move(source: Path, target: Path, mode: int = 0o644) -> None:
    """Put a finished file in its place, also from another file system."""
    with whole(target, mode) as partial:
        shutil.move(source, partial)


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def lock(directory: Path, name: str, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold `name` alone. The kernel gives it back when the holder dies, however it dies."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{name}.lock").open("a+") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.seek(0)
            waiting(f"waiting for process {held.read().strip() or 'unknown'}, which holds {name!r}")
            fcntl.flock(held, fcntl.LOCK_EX)
        held.seek(0)
        held.truncate()
        held.write(str(os.getpid()))
        held.flush()
        yield


@contextmanager
def scratch(cache: Path, name: str) -> Iterator[Path]:
    """An empty directory, removed afterwards. Hold the lock of that name: then every other one
    of the same name was left behind by a run that was killed, and is cleared away.

    Each run has a directory of its own, because what a killed run had started may still write.
    """
    base = _scratch_base(cache)
    base.mkdir(parents=True, exist_ok=True)
    _clear(base, name)
    place = Path(tempfile.mkdtemp(prefix=_scratch_prefix(name), dir=base))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def clear_scratch(cache: Path, locks: Path) -> None:
    """Remove what killed runs left behind, but nothing that a living one holds the lock of."""
    for path in locks.glob("*.lock"):
        with path.open("a+") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            _clear(_scratch_base(cache), path.stem)


def _scratch_base(cache: Path) -> Path:
    return Path(tempfile.gettempdir()) if "TMPDIR" in os.environ else cache / "work"


def _scratch_prefix(name: str) -> str:
    return f"gpufleet-{os.getuid()}-{name}."


def _clear(base: Path, name: str) -> None:
    for stale in base.glob(_scratch_prefix(name) + "*"):
        shutil.rmtree(stale, ignore_errors=True)
