"""The steps of a reset of GPUs, which are the same in every remedy (catalog/data/resets.yml)."""

from __future__ import annotations

from . import facts


def with_steps(remedy: str) -> str:
    """The remedy with the steps in the place of `{reset}` or `{reset_all}`."""
    for name, steps in facts.document("resets.yml")["steps"].items():
        remedy = remedy.replace(f"{{{name}}}", steps)
    return remedy
