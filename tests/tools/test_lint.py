"""The rules of `./gpufleet lint` that are our own see what breaks them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import lint


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("from tests.plugins.conftest import run", True),
        ("from tests.components.gpu import test_identity", True),
        ("import tests.components.gpu.test_identity as gpu", True),
        ("from .conftest import site", True),
        ("def f():\n    from tests.lab.test_cli import call", True),
        ("from tests.support.healthy_host import data", False),
        ("from ansible.module_utils.testing import patch_module_args", False),
    ],
)
def test_an_import_from_a_test_module_is_recognized(text: str, wrong: bool) -> None:
    assert any(map(lint.is_of_a_test_module, lint.imported(text))) is wrong


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('"""Of PyTorch."""\n# TensorFlow\n', 0),
        ('def f():\n    """Of JAX."""\n    return g(name) == "jax"\n', 1),
        ("from .jax_wheel import contents\n", 1),
        ('import torch\n\ntorch.f(f"{x} of TensorFlow", JAX=1)\n', 4),
    ],
)
def test_a_name_of_a_framework_is_counted(text: str, count: int) -> None:
    assert len(lint.named_frameworks(text)) == count


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""What a host has."""\n', [1]),
        ('class C:\n    """Whether it is."""\n\n    def f(self):\n        "Who did."\n', [2, 5]),
        ('def f():\n    """\n    {path: mode} of files."""\n', [2]),
        ('def f():\n    """(path, mode) of files."""\n', [2]),
        (
            '"""The files that a host has, what they hold, and whether (or not) they differ."""\n',
            [],
        ),
        ('@check("a", about=b)\ndef f():\n    """What is set is as declared."""\n', []),
        ('"""Whatever stays."""\nx = "What a host has."\n# What a host has.\n', []),
    ],
)
def test_a_docstring_without_its_noun_is_noticed(text: str, lines: list[int]) -> None:
    assert [each.lineno for each in lint.nounless(text)] == lines


def test_a_fragment_of_another_form_is_noticed() -> None:
    """Also after a release, when there are no fragments."""
    assert lint.fragment_fault("+a.fixed.md", "It works.\n") is None
    assert lint.fragment_fault("+a.bug.md", "It works.\n") == "its name"
    assert lint.fragment_fault("+a.fixed.md", "It works\n") == "its end"
    assert lint.fragment_fault("+a.fixed.md", "x" * 300 + ".\n") == "its length"


def test_a_long_cell_is_noticed_outside_of_code() -> None:
    words = " ".join(["word"] * 13)
    assert lint.long_cells(f"| a | {words} |\n") == [words]
    assert lint.long_cells(f"```\n| {words} |\n```\n| a \\| b | {words[5:]} |\n") == []


def test_a_long_file_and_a_framework_in_a_wrong_place_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "src" / "gpufleet"
    source.mkdir(parents=True)
    (source / "long.py").write_text("x = 1\n" * 501)
    (source / "named.py").write_text("import torch\n")
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    monkeypatch.setattr(lint, "SOURCES", (source,))
    monkeypatch.setattr(lint, "NAMED", {})
    assert list(lint.lengths()) == ["src/gpufleet/long.py has 501 lines, more than 500"]
    assert [fault.partition(" names")[0] for fault in lint.frameworks()] == [
        "src/gpufleet/named.py"
    ]


def test_a_room_has_no_more_lines_than_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "src/gpufleet/components/cuda"
    folder.mkdir(parents=True)
    (folder / "plan.py").write_text("x = 1\n" * 30)
    (tmp_path / "src/gpufleet/paths.py").write_text("x = 1\n" * 5)
    limits = '[tool.gpufleet.lines]\n"." = 5\n"components/cuda" = 29\nall = 35\n'
    (tmp_path / "pyproject.toml").write_text(limits)
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    (fault,) = lint.budgets()
    assert fault.startswith("src/gpufleet/components/cuda has 30 lines, and may have 29")


def test_each_release_has_a_section() -> None:
    text = (lint.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = [line.split()[1] for line in text.splitlines() if line.startswith("## ")]
    assert sections[-2:] == ["1.1.0", "1.0.0"]
