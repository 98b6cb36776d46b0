"""`contents.json`: the packages of each lock, so that the package index is not needed again.

A lock is identified by the checksum of its content. A site without an index verifies its mirror by
this file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    digest_of,
    write_atomically,
)

from . import packages
from .needs import WHEELS, File, Lock, MirrorError

NAME = "contents.json"
SCHEMA = 1
RECORDED = ("path", "checksum", "url", "size_bytes", "reasons")

# Fetches files into the mirror and checks them, or raises a `MirrorError`.
Fetch = Callable[[list[File]], None]


class Contents:
    """The document; read once, and written after each new lock."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / NAME
        self.locks: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            try:
                self.locks = json.loads(self.path.read_text(encoding="utf-8"))["locks"]
            except (OSError, ValueError, KeyError) as error:
                raise MirrorError(
                    f"{self.path} cannot be read: {error}",
                    "Remove it; 'artifacts fetch' creates it again.",
                ) from error

    def known(self, lock: Lock) -> list[File]:
        """Return the packages of a lock; raise `MirrorError` if the mirror does not list it."""
        if not lock.path.exists():
            raise MirrorError(
                f"{lock.path} does not exist",
                "Run 'artifacts fetch' where a package index is reachable; it resolves the lock.",
            )
        entry = self.locks.get(digest_of(str(lock.path)))
        if not entry:
            raise MirrorError(
                f"the mirror was not fetched for the current {lock.path}",
                "Run 'artifacts fetch' where a package index is reachable.",
            )
        return [
            # The document may come from elsewhere: only the name of a path is used.
            File(
                **{
                    **row,
                    "path": f"{WHEELS}/{Path(row['path']).name}",
                    "kind": "package",
                    "reasons": tuple(row["reasons"]),
                }
            )
            for row in entry["files"]
        ]

    def learn(self, lock: Lock, fetch: Fetch) -> None:
        """Look up the packages of an unknown lock in the index, and write them to the document.

        A source distribution lists its own build requirements, so these are fetched first.
        """
        digest = digest_of(str(lock.path))
        if digest in self.locks:
            return
        files = packages.resolved(lock, lock.path.read_text(encoding="utf-8"))
        sources = [file for file in files if not file.name.endswith(".whl")]
        fetch(sources)
        listed = {file.path for file in files}
        files += [
            file
            for file in packages.build_requirements(
                lock, [self.directory / file.path for file in sources]
            )
            if file.path not in listed
        ]
        rows = [{name: asdict(file)[name] for name in RECORDED} for file in files]
        self.locks[digest] = {"lock": lock.path.name, "python": lock.python, "files": rows}
        document = {"schema": SCHEMA, "locks": self.locks}
        write_atomically(str(self.path), json.dumps(document, indent=1) + "\n")
