"""Section `toolkits`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.on_host.processes import NoAnswer
from gpufleet.on_host.sections import toolkits
from tests.support.planted_host import LIB, probe_tree, put


def test_what_users_cannot_pass_is_named_once(root: Path) -> None:
    (root / "usr/local/cuda-11.8").chmod(0o700)
    found = probe_tree(root)
    closed = [{"path": "/usr/local/cuda-11.8", "mode": "0700"}]
    assert found["toolkits"]["trees"][0]["closed"] == closed
    assert found["cudnn"]["trees"][0]["closed"] == closed
    (root / "usr/local/cuda-11.8").chmod(0o755)
    (root / LIB / "libcudnn.so.8.6.0").chmod(0o600)
    found = probe_tree(root)
    assert found["toolkits"]["trees"][0]["closed"] == []
    assert found["cudnn"]["trees"][0]["closed"] == [
        {"path": f"/{LIB}/libcudnn.so.8.6.0", "mode": "0600"}
    ]


def test_a_toolkit_is_described_from_its_own_files(root: Path) -> None:
    found = probe_tree(root)["toolkits"]
    assert found["trees"] == [
        {
            "path": "/usr/local/cuda-11.8",
            "short": "11.8",
            "version": "11.8.20220929",
            "version_source": "version.json",
            "nvcc": "11.8.89",
            "nvcc_error": None,
            "nvcc_hung": False,
            "cudart": ["11.8.89"],
            "receipt": False,
            "realpath": "/usr/local/cuda-11.8",
            "closed": [],
            "headers": [],
            "exposed": [],
            "unfit": [],
        }
    ]
    assert found["default"] == {
        "path": "/usr/local/cuda",
        "state": "link",
        "target": "cuda-11.8",
        "realpath": "/usr/local/cuda-11.8",
    }


def test_an_old_toolkit_has_a_version_txt_and_a_broken_nvcc_says_why(root: Path) -> None:
    old = root / "usr/local/cuda-8.0"
    put(old, "version.txt", "CUDA Version 8.0.61\nCUDA Patch Version 8.0.61.2\n")
    put(old, "bin/nvcc", "#!/bin/sh\necho 'libfoo.so: cannot open' >&2; exit 127\n", 0o755)
    tree = probe_tree(root)["toolkits"]["trees"][0]
    assert (tree["version"], tree["version_source"]) == ("8.0.61", "version.txt")
    assert tree["nvcc_error"] == "libfoo.so: cannot open"


def test_a_default_link_to_nowhere(root: Path) -> None:
    (root / "usr/local/cuda").unlink()
    (root / "usr/local/cuda").symlink_to("cuda-12.9")
    found = probe_tree(root)["toolkits"]["default"]
    assert (found["state"], found["target"], found["realpath"]) == ("link", "cuda-12.9", None)


def test_a_compiler_that_gives_no_answer_is_marked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = (None, "", NoAnswer("no answer within 4 s"))
    monkeypatch.setattr(toolkits, "run_command", lambda *_, **__: silent)
    tree = probe_tree(root)["toolkits"]["trees"][0]
    assert (tree["nvcc_error"], tree["nvcc_hung"]) == ("no answer within 4 s", True)
