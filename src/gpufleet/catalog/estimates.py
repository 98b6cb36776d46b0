"""Estimates: what a download takes once it is installed (catalog/data/rules.yml, estimates)."""

from __future__ import annotations

import math

from . import facts

MIB = 1024 * 1024


def installed_mib(rule: str, size_bytes: int | None) -> int | None:
    """MiB that a download of so many bytes takes, by a rule's factor; None when not known."""
    if size_bytes is None:
        return None
    estimate = facts.rules("estimates")[rule]
    mib: float = size_bytes / MIB * estimate["factor"] + estimate.get("plus_mib", 0)
    return math.ceil(mib)
