"""Build the stand-in artifacts that artifacts.yml describes, and their catalogue."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab import cudnn, files, legacy_toolkit, libraries, toolkit, wheels
from lab.errors import LabError
from lab.progress import Progress
from lab.settings import Lab

HERE = Path(__file__).parent
DESCRIPTIONS = HERE / "artifacts.yml"
# Built by default.
DEFAULT_RELEASES = ("11.8",)
_RUNFILE = ("runfile.py", "installer/*")
_CUTTING = ("libraries.py", "elf.py", "fatbin.py")
_STUBS = ("legacy_toolkit.py", "libraries.py", "stubs/*.py", "stubs/*.yml")


@dataclass(frozen=True)
class Kind:
    """The function that builds artifacts of a kind, and the source files of their content."""

    make: Callable[[dict[str, Any], list[tuple[wheels.Wheel, Path]], Path], Path]
    sources: tuple[str, ...]


KINDS = {
    "toolkit": Kind(toolkit.make, ("toolkit.py", *_CUTTING, *_RUNFILE)),
    "cudnn": Kind(cudnn.make, ("cudnn.py", *_CUTTING)),
    "legacy": Kind(legacy_toolkit.make, ("toolkit.py", *_STUBS, *_RUNFILE)),
    "legacy-patch": Kind(legacy_toolkit.make_patch, (*_STUBS, *_RUNFILE)),
    "legacy-cudnn": Kind(legacy_toolkit.make_cudnn, ("cudnn.py", *_STUBS)),
}


@dataclass(frozen=True)
class Built:
    file: str
    path: Path
    sha256: str
    size_bytes: int


def described(path: Path = DESCRIPTIONS) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return entries


def chosen(releases: Sequence[str] | None) -> list[dict[str, Any]]:
    """The artifacts of these CUDA releases; None: of all releases."""
    known = {artifact["cuda"] for artifact in described()}
    if releases is None:
        return described()
    if unknown := sorted(set(releases) - known):
        raise LabError(
            f"the lab has no stand-in for CUDA {', '.join(unknown)}",
            f"It has {', '.join(sorted(known, key=_order))}; add another one in {DESCRIPTIONS}.",
        )
    return [
        artifact
        for artifact in described()
        if artifact["cuda"] in releases and not artifact.get("by_name")
    ]


def named(files: Sequence[str]) -> list[dict[str, Any]]:
    """The stand-ins of these file names."""
    known = {artifact["file"]: artifact for artifact in described()}
    if unknown := sorted(set(files) - set(known)):
        raise LabError(
            f"the lab has no stand-in for {', '.join(unknown)}",
            f"It has {', '.join(sorted(known))}; add another one in {DESCRIPTIONS}.",
        )
    return [known[file] for file in dict.fromkeys(files)]


def recipe(artifact: dict[str, Any]) -> str:
    """A digest of everything that an artifact is built from; if it changes, build it again."""
    parts = [json.dumps(artifact, sort_keys=True)]
    parts += [wheel.sha256 for wheel in _wheels(artifact)]
    for pattern in KINDS[artifact["kind"]].sources:
        parts += [path.read_text(encoding="utf-8") for path in sorted(HERE.glob(pattern))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def ensure(lab: Lab, wanted: list[dict[str, Any]], progress: Progress) -> list[Built]:
    """Build the stand-ins that the cache lacks, and write the cache's catalogue."""
    if lab.libraries == "whole":
        wanted = [artifact | {"device_code": libraries.ALL} for artifact in wanted]
    with files.lock(lab.locks, "artifacts", progress.say):
        catalogue = _read(lab.artifacts / "catalogue.json")
        for name in [name for name in catalogue if not (lab.artifacts / name).exists()]:
            del catalogue[name]
        recipes = _read(lab.artifacts / "recipes.json")
        absent = []
        for artifact in wanted:
            name = artifact["file"]
            path = lab.artifacts / name
            if not (
                recipes.get(name) == recipe(artifact)
                and path.exists()
                and catalogue.get(name) == _measure(path)
            ):
                absent.append(artifact)
        if absent:
            needed = {wheel.file: wheel for item in absent for wheel in _wheels(item)}
            wheels.fetch(lab, list(needed.values()), progress)
        _write(lab.artifacts / "catalogue.json", catalogue)  # it has forgotten what is gone
        for artifact in absent:
            name = artifact["file"]
            _build(lab, artifact, progress)
            catalogue[name] = _measure(lab.artifacts / name)
            recipes[name] = recipe(artifact)
            _write(lab.artifacts / "catalogue.json", catalogue)
            _write(lab.artifacts / "recipes.json", recipes)
    return [
        Built(artifact["file"], lab.artifacts / artifact["file"], **catalogue[artifact["file"]])
        for artifact in wanted
    ]


def _build(lab: Lab, artifact: dict[str, Any], progress: Progress) -> None:
    paths = [(wheel, lab.wheels / wheel.file) for wheel in _wheels(artifact)]
    make = KINDS[artifact["kind"]].make
    with (
        progress.step(f"Making the stand-in for {artifact['file']}"),
        files.scratch(lab.cache, "artifacts") as work,
    ):
        files.move(make(artifact, paths, work), lab.artifacts / artifact["file"])


def _wheels(artifact: dict[str, Any]) -> list[wheels.Wheel]:
    components = [*artifact.get("components", ()), *([artifact] if "wheel" in artifact else ())]
    return [wheels.pinned(component["wheel"], artifact.get("arch", "")) for component in components]


def _order(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]


def _measure(path: Path) -> dict[str, Any]:
    return {"sha256": files.sha256(path), "size_bytes": path.stat().st_size}


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    files.write(path, json.dumps(content, indent=2, sort_keys=True) + "\n")
