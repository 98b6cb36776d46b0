"""The comparison in molecule's scenarios sees every change that could be overlooked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "molecule" / "shared" / "state.sh"


def compared(root: Path, *except_: str) -> int:
    """The script's status on a tree; its notes stand beside it."""
    words = ["sh", SCRIPT, root.parent / "state", *(except_ or [""]), root]
    return subprocess.run(words, check=False, capture_output=True).returncode


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "file").write_text("one")
    (root / "link").symlink_to("file")
    assert compared(root) == 0
    return root


CHANGES = ["content", "mode", "time", "link", "added", "missing"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(tree: Path, change: str) -> None:
    file, link = tree / "file", tree / "link"
    before = file.stat()
    if change == "content":
        file.write_text("two")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "mode":
        file.chmod(0o600)
    elif change == "time":
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    elif change == "link":
        link.unlink()
        link.symlink_to("./file")
    elif change == "added":
        (tree / "more").write_text("")
    else:
        file.unlink()
    assert compared(tree) == 1


def test_what_is_left_as_it_was_or_excepted_is_no_change(tree: Path) -> None:
    assert compared(tree) == 0
    (tree / "libcudnn.so.8").write_text("")
    assert compared(tree, "*cudnn*") == 0
    assert compared(tree) == 1


def test_a_place_that_is_not_there_is_an_error(tree: Path) -> None:
    assert compared(tree / "nowhere") != 0
