"""The documents of real GPUs, tests/fixtures/real_gpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parents[1] / "fixtures" / "real_gpus"


def documents(name: str) -> dict[str, Any]:
    """A new copy of the plan, the snapshot and the verdicts of one run."""
    found: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return found
