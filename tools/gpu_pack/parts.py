"""Cut a directory into parts that travel one by one, and join them again.

Each file becomes chunks, and each chunk a part, compressed by itself: parts can arrive in any
order, are unpacked at the same time, and are made again only where their file has changed. Standard
library only, since the machine where they are joined has nothing else.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MIB = 1 << 20
# The bytes that can be carried at a time, and the spare ones with which any chunk fits.
ROUND = 60 * MIB
SPARE = MIB
MANIFEST = "manifest.json"
# A chunk that a fast trial makes hardly smaller is not compressed any harder.
TRIAL, WORTH_IT, FAST, HARD = 4 * MIB, 0.97, 0, 6


class PackError(Exception):
    """Parts that are missing, or that are not what the manifest lists."""


def split(
    directory: Path, pack: Path, kept: Path, limit: int = ROUND, spare: int = SPARE
) -> dict[str, Any]:
    """Write the parts of a directory and their manifest; `kept` has the parts of earlier calls."""
    chunk = limit - spare
    kept.mkdir(parents=True, exist_ok=True)
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    chunks = [(path, at) for path in files for at in range(0, max(1, path.stat().st_size), chunk)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = list(pool.map(lambda each: _part(each[0], each[1], chunk, kept), chunks))
    names: dict[Path, list[str]] = {path: [] for path in files}
    for (path, _), part in zip(chunks, made, strict=True):
        names[path].append(part.name)
    parts = {part.name: described(part) for part in made}
    for old in {*kept.iterdir()} - {*made}:
        old.unlink()
    manifest = {
        "chunk": chunk,
        "parts": parts,
        "files": {
            str(path.relative_to(directory)): {**described(path), "parts": names[path]}
            for path in files
        },
    }
    for number, together in enumerate(rounds(parts, limit), 1):
        folder = pack / f"{number:02}"
        folder.mkdir(parents=True)
        for name in together:
            os.link(kept / name, folder / name)
    (pack / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def _part(path: Path, at: int, chunk: int, kept: Path) -> Path:
    """The part of a chunk; its name says what is in it, and so whether it is made already."""
    with path.open("rb") as stream:
        stream.seek(at)
        data = stream.read(chunk)
    part = kept / f"{hashlib.sha256(data).hexdigest()[:16]}.xz"
    if not part.exists():
        trial = data[:TRIAL]
        worth_it = len(lzma.compress(trial, preset=FAST)) < WORTH_IT * len(trial)
        partial = part.with_suffix(f".{path.name}.partial")
        partial.write_bytes(lzma.compress(data, preset=HARD if worth_it else FAST))
        partial.replace(part)
    return part


def rounds(parts: dict[str, dict[str, Any]], limit: int) -> list[list[str]]:
    """The names of the parts that are carried together, the largest ones first."""
    sizes = {name: part["size_bytes"] for name, part in parts.items()}
    found: list[list[str]] = []
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        fitting = [r for r in found if sum(sizes[each] for each in r) + sizes[name] <= limit]
        if fitting:
            fitting[0].append(name)
        else:
            found.append([name])
    return found


def join(pack: Path, directory: Path) -> None:
    """Unpack the parts, wherever they lie below `pack`; a `PackError` names missing ones."""
    manifest = json.loads((pack / MANIFEST).read_text(encoding="utf-8"))
    there = {path.name: path for path in pack.rglob("*.xz")}
    if wrong := _wrong(manifest["parts"], ((name, there.get(name)) for name in manifest["parts"])):
        count = len(manifest["parts"])
        raise PackError(f"{len(wrong)} of {count} parts are missing or damaged: {', '.join(wrong)}")
    chunks = []
    for name, row in manifest["files"].items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        chunks += [(there[part], path, at) for at, part in enumerate(row["parts"])]

    def unpack(chunk: tuple[Path, Path, int]) -> None:
        part, path, at = chunk
        with path.open("r+b") as stream:
            stream.seek(at * manifest["chunk"])
            stream.write(lzma.decompress(part.read_bytes()))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(unpack, chunks))
    if wrong := _wrong(manifest["files"], ((n, directory / n) for n in manifest["files"])):
        raise PackError(f"joined wrongly: {', '.join(wrong)}")


def _wrong(
    listed: dict[str, dict[str, Any]], files: Iterable[tuple[str, Path | None]]
) -> list[str]:
    """The names of the files that are missing or differ from what is listed."""

    def is_wrong(each: tuple[str, Path | None]) -> bool:
        name, path = each
        return path is None or not described(path).items() <= listed[name].items()

    files = list(files)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [
            name for (name, _), bad in zip(files, pool.map(is_wrong, files), strict=True) if bad
        ]


def described(path: Path) -> dict[str, Any]:
    """The checksum and the size of a file."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"sha256": digest, "size_bytes": path.stat().st_size}
