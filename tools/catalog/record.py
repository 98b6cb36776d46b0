"""Read and write `catalog/data/measured/FRAMEWORK.yml`; only this module writes them."""

from __future__ import annotations

from typing import Any

import yaml

from gpufleet.catalog import facts
from gpufleet.frameworks import FRAMEWORKS, FrameworkId

Row = dict[str, Any]

DIRECTORY = facts.DATA / "measured"
HEADER = """\
# {title}'s wheels, as measured
# Written by 'gpufleet catalog check'.
# null: the wheel does not say. absent: why there was nothing to measure. opened: what it opens
# while it runs. unread: libraries that were left out for their size. containers: how many of its
# containers of code for GPUs have the same code.
---
"""


def load(framework: FrameworkId) -> dict[str, Row]:
    """Every measurement by release; empty without the file."""
    path = DIRECTORY / f"{framework}.yml"
    if not path.exists():
        return {}
    loaded: dict[str, Row] = yaml.load(path.read_text(encoding="utf-8"), Loader=facts.LOADER)
    return loaded


def save(framework: FrameworkId, version: str, row: Row) -> None:
    """Add or replace one measurement, atomically."""
    rows = {**load(framework), version: row}
    ordered = {each: rows[each] for each in facts.build_versions(framework) if each in rows}
    text = yaml.safe_dump(ordered, sort_keys=False, default_flow_style=None, width=98)
    DIRECTORY.mkdir(exist_ok=True)
    partial = DIRECTORY / f".{framework}.yml.partial"
    partial.write_text(HEADER.format(title=FRAMEWORKS[framework].title) + text, encoding="utf-8")
    partial.replace(DIRECTORY / f"{framework}.yml")
