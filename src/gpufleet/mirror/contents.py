"""`contents.json`: which packages each lock means, so that nobody need ask the index again.

A lock is known by the checksum of its content. At a site without an index this is how a mirror is
verified.
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
BROUGHT = ("path", "checksum", "url", "size_bytes", "reasons")

# Has these files in the mirror, checked, or raises a `MirrorError`.
Bring = Callable[[list[File]], None]


class Contents:
    """The document, read once and written as soon as something is known."""

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
                    "Remove it; 'artifacts fetch' writes it anew.") from error

    def known(self, lock: Lock) -> list[File]:
        """The packages of a lock, or a `MirrorError` when the mirror was not made for it."""
        if not lock.path.exists():
            raise MirrorError(
                f"{lock.path} is not there", "'artifacts fetch' resolves it, with an index.")
        entry = self.locks.get(digest_of(str(lock.path)))
        if not entry:
            raise MirrorError(
                f"the mirror was not made for {lock.path} as it is now",
                "Run 'artifacts fetch' where a package index is reached.")
        return [
            # Of a path in a document that came from elsewhere only the name counts.
            File(**{**row, "path": f"{WHEELS}/{Path(row['path']).name}", "kind": "package",
                    "reasons": tuple(row["reasons"])})
            for row in entry["files"]]

    def learn(self, lock: Lock, bring: Bring) -> None:
        """Ask the index for the packages of a lock that is not known, and write them down.

        What a source is built with stands in the source, so sources are brought first.
        """
        digest = digest_of(str(lock.path))
        if digest in self.locks:
            return
        files = packages.resolved(lock, lock.path.read_text(encoding="utf-8"))
        sources = [file for file in files if not file.name.endswith(".whl")]
        bring(sources)
        there = {file.path for file in files}
        files += [
            file for file in packages.build_requirements(
                lock, [self.directory / file.path for file in sources])
            if file.path not in there]
        rows = [{name: asdict(file)[name] for name in BROUGHT} for file in files]
        self.locks[digest] = {"lock": lock.path.name, "python": lock.python, "files": rows}
        document = {"schema": SCHEMA, "locks": self.locks}
        write_atomically(str(self.path), json.dumps(document, indent=1) + "\n")
