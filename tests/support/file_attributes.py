"""Attributes of files that hold against root (chattr)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def attribute(path: Path, letter: str = "i") -> Iterator[None]:
    """Give a file or directory an attribute of chattr; the test is skipped where that fails."""
    if subprocess.run(["chattr", f"+{letter}", path], check=False).returncode:
        pytest.skip("this account cannot set attributes here, or this file system has none")
    try:
        yield
    finally:
        subprocess.run(["chattr", f"-{letter}", path], check=True)
