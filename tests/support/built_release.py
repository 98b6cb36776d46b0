"""One build of this checkout for all tests of a worker: wheel, collection, bill of materials."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the build, which no test changes."""
    directory = tmp_path_factory.mktemp("built")
    program = Path(sys.executable).with_name("gpufleet")
    subprocess.run([program, "build", "--output", directory], cwd="/", check=True)
    return directory
