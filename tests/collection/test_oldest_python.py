"""Code for hosts is written for the oldest Python that Ansible's modules support."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
# ansible-core 2.19: modules need 3.8, which is Ubuntu 20.04's.
OLDEST = (3, 8)
FILES = sorted(
    path
    for folder in ("modules", "module_utils", "module_utils/on_host")
    for path in (PLUGINS / folder).rglob("*.py")
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PLUGINS)))
def test_what_runs_on_hosts_is_read_by_the_oldest_python(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=OLDEST)
