"""Which measures are compared between cards (catalog/data/yardstick.yml)."""

from __future__ import annotations

from functools import cache

from gpufleet.yardstick.values import Kind

from . import facts


@cache
def kinds() -> dict[str, Kind]:
    """The kinds of values by the pattern of their measures' names."""
    return {
        row["measures"]: Kind(
            row["name"], row["worse"], row["relative"], row["least"], row["resolution"]
        )
        for row in facts.document("yardstick.yml")["kinds"]
    }
