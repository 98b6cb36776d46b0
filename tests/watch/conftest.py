"""Fixtures that tests of the nightly runs share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a history may be."""
    return tmp_path / "state" / "history.sqlite"


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """After all nights that tests record: what is dated later than now is not counted."""
    for module in ("history", "fabric_history"):
        monkeypatch.setattr(f"gpufleet.watch.{module}.utc_now", lambda: "2099-12-31T00:00:00Z")
