"""What tests of the nightly runs share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a history may be."""
    return tmp_path / "state" / "history.sqlite"
