"""The gathered fact files, from which the catalog is imported, where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GATHERED = Path(os.environ.get("GPUFLEET_FACTS", ROOT.parent / "shared" / "facts"))

needs_gathered = pytest.mark.skipif(
    not (GATHERED / "cuda_toolkits.yml").is_file(),
    reason=f"the gathered fact files are not at hand ({GATHERED}; GPUFLEET_FACTS names another)",
)
