"""Plant a host's files in a directory, and probe it as a module or as the shipped text."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from gpufleet.on_host import payload, runner
from tests.support.machine import deadline

LIB = "usr/local/cuda-11.8/targets/x86_64-linux/lib"


def put(root: Path, name: str, text: str = "", mode: int = 0o644) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


class PlantedTree(Mapping[str, Any]):
    """The data of a planted tree by section. Each section must end without an error.

    Sections that do not depend on each other are read when a test asks for them: a section is a
    process of its own, and most tests look at one of eighteen. `GPUFLEET_WHOLE_PROBES`, which
    `./gpufleet test --all` sets, has all sections read each time.
    """

    def __init__(self, root: Path, config: dict[str, Any]) -> None:
        self.config = {"root": str(root), "deadline_s": deadline(10), **config}
        self.found: dict[str, Any] = {}
        self.all_read = False
        dependent = config.get("mode") == "full" or any(
            (root / name).exists() for name in ("proc/driver/nvidia/version", "dev/nvidiactl")
        )
        if dependent or os.environ.get("GPUFLEET_WHOLE_PROBES"):
            self.read(*runner.SECTIONS)

    def read(self, *names: str) -> None:
        """Probe some sections."""
        with patch.object(runner, "SECTIONS", {name: runner.SECTIONS[name] for name in names}):
            sections = runner.probe(self.config)["sections"]
        failed = {name: s["error"] for name, s in sections.items() if s["state"] != "ok"}
        assert failed == {}
        self.found |= {name: section["data"] for name, section in sections.items()}
        self.all_read = len(names) == len(runner.SECTIONS)

    def __getitem__(self, name: str) -> Any:
        if name not in self.found and name in runner.SECTIONS:
            self.read(name)
        return self.found[name]

    def __iter__(self) -> Iterator[str]:
        if not self.all_read:
            self.read(*runner.SECTIONS)
        return iter(self.found)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def probe_tree(root: Path, **config: Any) -> PlantedTree:
    """The sections of a planted tree."""
    return PlantedTree(root, config)


def interpreter(minor: int) -> str:
    """A Python 3.`minor` that runs; version managers leave names on the path that do not."""
    name = f"python3.{minor}"
    own = sorted(Path.home().glob(f".*/versions/3.{minor}.*/bin/python"))
    for found in filter(None, [shutil.which(name), *map(str, own)]):
        if subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    pytest.skip(f"no {name} here")


NOBODY = 65534

# An interpreter of root's own home is started by root, and goes on as an ordinary user.
BECOME_NOBODY = f"import os, {{}}; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"


def as_started(python: str, config: dict[str, Any], user: str = "as-it-is") -> dict[str, Any]:
    """The snapshot of the probe on standard input of an interpreter."""
    script = f"CONFIG = {json.dumps(config)!r}\n" + payload.probe()
    if user == "nobody":
        if os.geteuid():
            pytest.skip("only root can become another user")
        texts = [payload.probe(), *payload.sources("on_host").values()]
        wanted = {
            alias.name
            for text in texts
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        wanted |= {"encodings.ascii", "importlib.machinery"}
        script = BECOME_NOBODY.format(", ".join(sorted(wanted))) + script
    ended = subprocess.run(
        [python, "-I", "-S", "-"],
        input=script.encode(),
        capture_output=True,
        timeout=deadline(60),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def form(value: Any) -> Any:
    """Return a document with each value replaced by its type."""
    if isinstance(value, dict):
        return {key: form(inner) for key, inner in value.items() if key != "seconds"}
    if isinstance(value, list):
        return [form(inner) for inner in value]
    return type(value)
