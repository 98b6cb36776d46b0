"""Rules that hold for the tasks of every role."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpufleet.paths import ROOT

TASKS = sorted((ROOT / "roles").rglob("*.yml"))
# They put their result in the order of Python's hashes, which differs from run to run.
UNORDERED = re.compile(r"\|\s*(?:difference|intersect|symmetric_difference|union)\b")


@pytest.mark.parametrize("path", TASKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_lists_keep_their_order(path: Path) -> None:
    assert UNORDERED.findall(path.read_text(encoding="utf-8")) == []


def test_a_filter_without_order_is_recognized() -> None:
    assert UNORDERED.search("{{ a | difference(b) }}")
    assert not UNORDERED.search("{{ a | reject('in', b) }}")
