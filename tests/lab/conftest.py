"""Small stand-ins for what the lab works on: a library with device code, a wheel, a toolkit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lab.settings import Lab
from tests.support.lab_artifacts import TOOLKIT, pack_small


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab("unit", tmp_path / "cache")


@pytest.fixture(scope="session")
def small_runfile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real runfile around a toolkit of a few bytes."""
    if shutil.which("makeself") is None:
        pytest.skip("makeself is not installed on this machine")
    work = tmp_path_factory.mktemp("runfile")
    return pack_small(work, TOOLKIT)
