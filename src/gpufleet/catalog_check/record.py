"""Read and write `catalog/data/measured.yml`; only this module writes it."""

from __future__ import annotations

from typing import Any

import yaml

from gpufleet.catalog import facts

Row = dict[str, Any]

PATH = facts.DATA / "measured.yml"
HEADER = """\
# TensorFlow's wheels, as measured
# Written by 'python -m gpufleet measure': do not edit by hand.
# null: the wheel does not say. absent: why there was nothing to measure. opened: what it looks for
# while it runs. unread: libraries that were left out for their size.
---
"""


def load() -> dict[str, Row]:
    """Return every measurement by release; empty without the file."""
    if not PATH.exists():
        return {}
    loaded: dict[str, Row] = yaml.load(PATH.read_text(encoding="utf-8"), Loader=facts.LOADER)
    return loaded


def save(version: str, row: Row) -> None:
    """Add or replace one measurement, atomically."""
    rows = {**load(), version: row}
    ordered = {each: rows[each] for each in facts.build_versions("tensorflow") if each in rows}
    text = yaml.safe_dump(ordered, sort_keys=False, default_flow_style=None, width=98)
    partial = PATH.with_name(f".{PATH.name}.partial")
    partial.write_text(HEADER + text, encoding="utf-8")
    partial.replace(PATH)
