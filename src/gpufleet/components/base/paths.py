"""Parts of a host's paths. A fleet's hosts have the same ones, so each is taken apart once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import PurePosixPath
from posixpath import normpath

# A host may send any.
_remembered = lru_cache(maxsize=1024)


@_remembered
def name_of(path: str) -> str:
    """The last part of a path."""
    return PurePosixPath(path).name


@_remembered
def directory_of(path: str) -> str:
    """Return the directory that a path is in."""
    return str(PurePosixPath(path).parent)


@_remembered
def beside(path: str, name: str) -> str:
    """The path of a name in the same directory, or of a symlink's target relative to it."""
    return normpath(f"{directory_of(path)}/{name}")
