"""Makes the stand-in artifacts that artifacts.yml describes, and the catalogue of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab import cudnn, files, runfile, toolkit, wheels
from lab.progress import Progress
from lab.settings import Lab

HERE = Path(__file__).parent
DESCRIPTIONS = HERE / "artifacts.yml"
# What decides the artifacts' content besides their descriptions.
_MAKERS = ("elf.py", "libraries.py", "toolkit.py", "cudnn.py", "runfile.py")


@dataclass(frozen=True)
class Built:
    file: str
    path: Path
    sha256: str
    size_bytes: int


def described(path: Path = DESCRIPTIONS) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return entries


def recipe(artifact: dict[str, Any]) -> str:
    """A digest of all that an artifact is made from; another one means: make it again."""
    parts = [json.dumps(artifact, sort_keys=True)]
    parts += [wheel.sha256 for wheel in _wheels(artifact)]
    parts += [(HERE / name).read_text(encoding="utf-8") for name in _MAKERS]
    parts.append(runfile.INSTALLER.read_text(encoding="utf-8"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def ensure(lab: Lab, progress: Progress) -> list[Built]:
    """Have every stand-in in the cache, and the catalogue beside them."""
    with files.lock(lab.locks, "artifacts", progress.say):
        catalogue = _read(lab.artifacts / "catalogue.json")
        recipes = _read(lab.artifacts / "recipes.json")
        wanted = described()
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
    make = {"toolkit": toolkit.make, "cudnn": cudnn.make}[artifact["kind"]]
    with (
        progress.step(f"Making the stand-in for {artifact['file']}"),
        files.scratch(lab.cache, "artifacts") as work,
    ):
        files.move(make(artifact, paths, work), lab.artifacts / artifact["file"])


def _wheels(artifact: dict[str, Any]) -> list[wheels.Wheel]:
    components = artifact.get("components") or [{"wheel": artifact["wheel"]}]
    return [wheels.pinned(component["wheel"]) for component in components]


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
