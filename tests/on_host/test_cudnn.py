"""Section `cudnn`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpufleet.on_host.sections import cudnn
from tests.support.elf_file import shared_library
from tests.support.planted_host import LIB, probe_tree, put


def test_cudnn_is_described_link_by_link(root: Path) -> None:
    tree = probe_tree(root)["cudnn"]["trees"][0]
    place = f"/{LIB}"
    assert tree["headers"] == [
        {"path": "/usr/local/cuda-11.8/include/cudnn_version.h", "mode": "0644", "version": "8.6.0"}
    ]
    assert [(x["path"], x["soname"], x["error"]) for x in tree["libraries"]] == [
        (f"{place}/libcudnn.so.8.6.0", "libcudnn.so.8", None)
    ]
    assert {(x["path"], x["target"], x["exists"]) for x in tree["links"]} == {
        (f"{place}/libcudnn.so", "libcudnn.so.8", True),
        (f"{place}/libcudnn.so.8", "libcudnn.so.8.6.0", True),
    }


def test_cudnn_traps(root: Path) -> None:
    """A web page as library, a truncated one, a copy for a link, a link to nowhere."""
    place = root / LIB
    put(place, "libcudnn_adv_infer.so.8.6.0", "<html>Log in</html>")
    whole = shared_library(place / "libcudnn_ops_infer.so.8.6.0", "libcudnn_ops_infer.so.8")
    whole.write_bytes(whole.read_bytes()[:-8])
    (place / "libcudnn.so.8").unlink()
    shutil.copy(place / "libcudnn.so.8.6.0", place / "libcudnn.so.8")
    (place / "libcudnn_ops_infer.so.8").symlink_to("libcudnn_ops_infer.so.8.5.0")
    tree = probe_tree(root)["cudnn"]["trees"][0]
    libraries = {Path(x["path"]).name: x for x in tree["libraries"]}
    assert "web page" in libraries["libcudnn_adv_infer.so.8.6.0"]["error"]
    assert "truncated" in libraries["libcudnn_ops_infer.so.8.6.0"]["error"]
    assert libraries["libcudnn.so.8"]["soname"] == "libcudnn.so.8"
    assert [Path(x["path"]).name for x in tree["links"] if not x["exists"]] == [
        "libcudnn_ops_infer.so.8"
    ]


def test_a_missing_soname_link_does_not_hide_the_version(root: Path) -> None:
    (root / LIB / "libcudnn.so.8").unlink()
    loaded = probe_tree(root)["cudnn"]["trees"][0]["loaded"]
    assert [(x["soname"], x["path"]) for x in loaded] == [
        ("libcudnn.so.8", f"/{LIB}/libcudnn.so.8.6.0")
    ]


def test_a_library_that_gives_no_answer_is_marked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = ("hung", None, "no answer within 4 s")
    monkeypatch.setattr(cudnn, "in_child", lambda *_: silent)
    (loaded,) = probe_tree(root)["cudnn"]["trees"][0]["loaded"]
    assert (loaded["error"], loaded["hung"]) == ("no answer within 4 s", True)
