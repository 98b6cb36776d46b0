"""Adoption looks at every file, changes none, and writes receipts only where all is well."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.ansible_modules import Run, load, tree
from tests.support.elf_file import shared_library

CUDNN = {
    "id": "11.8-8",
    "version": "8.6.0.163",
    "major": 8,
    "soname": "libcudnn.so.8",
    "toolkit": "11.8",
    "default": True,
}
TOOLKIT_FILES = {
    "bin/nvcc",
    "include",
    "lib64",
    "targets/include/cuda.h",
    "version.json",
    "targets/lib/libcudart.so.11.0",
    "targets/lib/libcudart.so.11.8.89",
}
CUDNN_FILES = {
    "targets/include/cudnn_version.h",
    "targets/lib/libcudnn.so",
    "targets/lib/libcudnn.so.8",
    "targets/lib/libcudnn.so.8.6.0",
    "targets/lib/libcudnn_static_v8.a",
}


class Bench:
    """A toolkit as somebody installs it by hand, with a cuDNN of two majors in it."""

    def __init__(self, root: Path, run: Run) -> None:
        self.module, self.run, self.state = load("gpu_adoption"), run, root / "state"
        self.path = root / "cuda-11.8"
        self.lib, include = self.path / "targets" / "lib", self.path / "targets" / "include"
        shared_library(self.lib / "libcudart.so.11.8.89", "libcudart.so.11.0")
        (self.lib / "libcudart.so.11.0").symlink_to("libcudart.so.11.8.89")
        (self.path / "lib64").symlink_to("targets/lib")
        (self.path / "include").symlink_to("targets/include")
        include.mkdir()
        (include / "cuda.h").write_text("// cuda")
        (include / "cudnn_version.h").write_text("// 8.6.0")
        (self.path / "version.json").write_text("{}")
        (self.path / "bin").mkdir()
        (self.path / "bin" / "nvcc").write_text("#!/bin/sh\n")
        for version in ("8.6.0", "7.6.5"):
            soname = f"libcudnn.so.{version[0]}"
            shared_library(self.lib / f"libcudnn.so.{version}", soname)
            (self.lib / soname).symlink_to(f"libcudnn.so.{version}")
        (self.lib / "libcudnn.so").symlink_to("libcudnn.so.8")
        (self.lib / "libcudnn_static_v8.a").write_text("static")

    def adopt(self, check: bool = False, **more: Any) -> dict[str, Any]:
        """Run the module."""
        arguments = {
            "version": "11.8.0",
            "short": "11.8",
            "path": self.path,
            "sonames": ["libcudart.so.11.0"],
            "cudnn": [CUDNN],
            "state_dir": self.state,
        }
        return self.run(self.module, check, **{**arguments, **more})

    def receipt(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(
            (self.state / "receipts" / f"{name}.json").read_text()
        )
        return document

    def listed(self, name: str) -> set[str]:
        return {entry["path"] for entry in self.receipt(name)["manifest"]}


@pytest.fixture
def bench(tmp_path: Path, run: Run) -> Bench:
    return Bench(tmp_path, run)


def test_each_gets_a_receipt_of_its_own_files(bench: Bench) -> None:
    before = tree(bench.path)
    answer = bench.adopt()
    assert (answer["changed"], answer["adopted"]) == (True, ["toolkit 11.8", "cudnn 11.8-8"])
    assert bench.listed("toolkit-11.8") == TOOLKIT_FILES
    assert bench.listed("cudnn-11.8-8") == CUDNN_FILES
    assert bench.receipt("toolkit-11.8")["source"] == {"adopted": True}
    assert bench.receipt("cudnn-11.8-8")["default"] is True
    assert tree(bench.path) == before


def test_cudnn_that_is_not_the_default_has_neither_header_nor_bare_link(bench: Bench) -> None:
    bench.adopt(cudnn=[{**CUDNN, "default": False}])
    assert bench.listed("cudnn-11.8-8") == {
        "targets/lib/libcudnn.so.8",
        "targets/lib/libcudnn.so.8.6.0",
    }


def test_adopting_again_changes_nothing(bench: Bench) -> None:
    bench.adopt()
    before = tree(bench.state)
    assert not bench.adopt()["changed"]
    assert tree(bench.state) == before


def test_a_killed_adoption_is_finished(bench: Bench) -> None:
    bench.adopt(cudnn=[])
    assert bench.adopt()["adopted"] == ["cudnn 11.8-8"]


def test_check_mode_probes_and_writes_nothing(bench: Bench) -> None:
    assert bench.adopt(check=True)["changed"]
    assert not bench.state.exists()


FAULTS = {
    "truncated library": "truncated: 70 bytes",
    "text for a library": "not a library: a text file",
    "truncated program": "truncated: 70 bytes",
    "dangling link": "points to nowhere, which does not exist",
    "pipe": "is not a regular file",
    "missing library": "libcudart.so.11.0",
    "missing cudnn": "libcudnn.so.8",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_not_whole_is_refused_and_left_as_it_is(bench: Bench, fault: str) -> None:
    library = bench.lib / "libcudart.so.11.8.89"
    if fault == "truncated library":
        library.write_bytes(library.read_bytes()[:70])
    elif fault == "text for a library":
        library.write_text("hello")
    elif fault == "truncated program":
        (bench.path / "bin" / "nvcc").write_bytes(library.read_bytes()[:70])
    elif fault == "dangling link":
        (bench.path / "doc").symlink_to("nowhere")
    elif fault == "pipe":
        os.mkfifo(bench.path / "pipe")
    elif fault == "missing library":
        (bench.lib / "libcudart.so.11.0").unlink()
    else:
        (bench.lib / "libcudnn.so.8").unlink()
        (bench.lib / "libcudnn.so").unlink()
    answer = bench.adopt()
    assert answer["failed"]
    assert FAULTS[fault] in answer["msg"]
    assert f"mv {bench.path} {bench.path}.old" in answer["msg"]
    assert not bench.state.exists()


def test_what_was_adopted_is_removed_by_its_receipt(bench: Bench, run: Run) -> None:
    bench.adopt()
    answer = run(load("gpu_removal"), kind="toolkit", id="11.8", state_dir=bench.state)
    # cuDNN 7 is nobody's: it was neither planned nor adopted.
    assert {Path(name).name for name in answer["left"]} == {"libcudnn.so.7", "libcudnn.so.7.6.5"}
    assert not list((bench.state / "receipts").iterdir())
