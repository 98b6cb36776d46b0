"""Where the tests keep what they share: in tests/support, never in a test module or a conftest."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MODULES = sorted(path.relative_to(TESTS.parent) for path in TESTS.rglob("*.py"))


def imported(text: str) -> Iterator[str]:
    """The dotted names that a module imports, relative ones with their dots."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}"
                        for alias in node.names)


def is_of_a_test_module(name: str) -> bool:
    """Whether a dotted name names a test module or a conftest of these tests."""
    first, *parts = name.split(".")
    return first in {"", "tests"} and any(
        part == "conftest" or part.startswith("test_") for part in parts)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_nothing_is_imported_from_a_test_module(path: Path) -> None:
    names = imported((TESTS.parent / path).read_text(encoding="utf-8"))
    assert [name for name in names if is_of_a_test_module(name)] == []


@pytest.mark.parametrize(("text", "wrong"), [
    ("from tests.plugins.conftest import run", True), ("from tests.checks import test_gpu", True),
    ("import tests.checks.test_gpu as gpu", True), ("from .conftest import site", True),
    ("def f():\n    from tests.lab.test_cli import call", True),
    ("from tests.support.healthy_host import data", False),
    ("from ansible.module_utils.testing import patch_module_args", False)])
def test_such_an_import_is_recognized(text: str, wrong: bool) -> None:
    assert any(map(is_of_a_test_module, imported(text))) is wrong
