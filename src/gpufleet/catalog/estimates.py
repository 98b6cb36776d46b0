"""Estimates: the installed size of a download (catalog/data/rules.yml, estimates)."""

from __future__ import annotations

import math

from . import facts

MIB = 1024 * 1024


def installed_mib(rule: str, size_bytes: int | None) -> int | None:
    """The MiB that a download of `size_bytes` takes installed, by a rule; None if unknown."""
    if size_bytes is None:
        return None
    estimate = facts.rules("estimates")[rule]
    mib: float = size_bytes / MIB * estimate["factor"] + estimate.get("plus_mib", 0)
    return math.ceil(mib)
