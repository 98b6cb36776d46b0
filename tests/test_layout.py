"""Where the tests keep what they share: in tests/support, never in a test module or a conftest."""

from __future__ import annotations

import ast
import re
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
            yield from (
                f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names
            )


def is_of_a_test_module(name: str) -> bool:
    """Whether a dotted name names a test module or a conftest of these tests."""
    first, *parts = name.split(".")
    return first in {"", "tests"} and any(
        part == "conftest" or part.startswith("test_") for part in parts
    )


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_nothing_is_imported_from_a_test_module(path: Path) -> None:
    names = imported((TESTS.parent / path).read_text(encoding="utf-8"))
    assert [name for name in names if is_of_a_test_module(name)] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("from tests.plugins.conftest import run", True),
        ("from tests.checks.gpu import test_identity", True),
        ("import tests.checks.gpu.test_identity as gpu", True),
        ("from .conftest import site", True),
        ("def f():\n    from tests.lab.test_cli import call", True),
        ("from tests.support.healthy_host import data", False),
        ("from ansible.module_utils.testing import patch_module_args", False),
    ],
)
def test_such_an_import_is_recognized(text: str, wrong: bool) -> None:
    assert any(map(is_of_a_test_module, imported(text))) is wrong


PRODUCT = ("src", "plugins", "roles", "playbooks", "verify", "examples")
KINDS = {".py", ".yml", ".j2", ".js", ".css", ".html"}


def test_no_product_file_has_more_than_500_lines() -> None:
    files = [
        path
        for root in PRODUCT
        for path in (TESTS.parent / root).rglob("*")
        # The catalog is data.
        if path.suffix in KINDS and path.is_file() and "/catalog/data/" not in path.as_posix()
    ]
    assert len(files) > 500
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert [path for path, length in lengths.items() if length > 500] == []


SOURCE = TESTS.parent / "src/gpufleet"
FRAMEWORK = re.compile("tensorflow|torch|jax", re.IGNORECASE)
# Programs of one framework: they run it or read its wheels, and their names have it.
PROGRAMS = ("catalog_tools/*_wheel.py", "workload/*.py")
# How often the code of any other file may name a framework. Take an entry out when its names have
# moved to `frameworks/`. A new framework adds its wheel to measurement.py, and its programs to
# command.py and distributed.py; nothing else may grow.
NAMED = {
    "catalog_tools/measurement.py": 9,
    "checks/__init__.py": 1,
    "checks/stack/tensorflow_tests.py": 1,
    "report/bundle.py": 2,
    "workload/command.py": 11,
    "workload/distributed.py": 7,
}


def named_frameworks(text: str) -> list[str]:
    """The names and texts of a module's code that name a framework; no comment, no docstring."""
    tree = ast.parse(text)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in docstrings:
            continue
        values = [value for _, value in ast.iter_fields(node)]
        found += [each for each in values if isinstance(each, str) and FRAMEWORK.search(each)]
    return found


def is_program(path: Path) -> bool:
    """Whether a module is the program of one framework: in a place for them, and named for it."""
    return any(path.match(pattern) for pattern in PROGRAMS) and bool(FRAMEWORK.search(path.stem))


def test_frameworks_are_named_in_their_package_and_in_data() -> None:
    modules = {
        path: path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if not path.resolve().is_relative_to(SOURCE / "frameworks") and not is_program(path)
    }
    assert len(modules) > 300
    counts = {
        name: len(found)
        for path, name in modules.items()
        if (found := named_frameworks(path.read_text(encoding="utf-8")))
    }
    assert counts == NAMED


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('"""Of PyTorch."""\n# TensorFlow\n', 0),
        ('def f():\n    """Of JAX."""\n    return g(name) == "jax"\n', 1),
        ("from .jax_wheel import contents\n", 1),
        ('import torch\n\ntorch.f(f"{x} of TensorFlow", JAX=1)\n', 4),
    ],
)
def test_such_a_name_is_counted(text: str, count: int) -> None:
    assert len(named_frameworks(text)) == count
