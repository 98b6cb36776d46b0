"""Fixtures that tests of the workload share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import stand_ins


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A toolkit and a driver of stand-ins."""
    return stand_ins.build(tmp_path_factory.mktemp("stand-ins"))
