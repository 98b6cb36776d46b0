"""Plant a host's files in a directory, and probe it as a module or as the shipped text."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpufleet.probe import payload
from gpufleet.probe.runner import probe

LIB = "usr/local/cuda-11.8/targets/x86_64-linux/lib"


def put(root: Path, name: str, text: str = "", mode: int = 0o644) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def probe_tree(root: Path, **config: Any) -> dict[str, Any]:
    """The snapshot of a planted tree, its data by section."""
    found: dict[str, Any] = probe({"root": str(root), "deadline_s": 10, **config})
    assert {name: s["error"] for name, s in found["sections"].items() if s["state"] != "ok"} == {}
    return {name: section["data"] for name, section in found["sections"].items()}


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
        texts = [payload.probe(), *payload.sources("probe").values()]
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
        timeout=60,
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
