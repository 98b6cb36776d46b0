"""Load an Ansible module of the collection; checksum a file; record a directory's content."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
Run = Callable[..., dict[str, Any]]


def load(name: str) -> ModuleType:
    """A module of ours, imported from its file."""
    specification = importlib.util.spec_from_file_location(name, PLUGINS / "modules" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def sha256(path: Path) -> str:
    """The checksum as the modules want it."""
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def tree(root: Path) -> dict[str, str]:
    """Every file and link below ``root``, with its content or target: what must not change."""
    return {
        str(path.relative_to(root)): (
            f"-> {path.readlink()}" if path.is_symlink() else path.read_bytes().hex()
        )
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }
