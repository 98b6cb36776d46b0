"""A planted host for the probe."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.elf_file import shared_library
from tests.support.planted_host import LIB, put


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host's tree with a CUDA 11.8 that holds cuDNN 8.6."""
    put(tmp_path, "etc/os-release", 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n')
    put(tmp_path, "proc/uptime", "86400.5 1.0\n")
    put(tmp_path, "proc/modules", "ext4 1 0\n")
    toolkit = tmp_path / "usr/local/cuda-11.8"
    put(toolkit, "version.json", '{"cuda": {"name": "CUDA SDK", "version": "11.8.20220929"}}')
    put(toolkit, "bin/nvcc", "#!/bin/sh\necho 'release 11.8, V11.8.89'\n", 0o755)
    shared_library(tmp_path / LIB / "libcudart.so.11.8.89", "libcudart.so.11.0")
    shared_library(tmp_path / LIB / "libcudnn.so.8.6.0", "libcudnn.so.8")
    (tmp_path / LIB / "libcudnn.so.8").symlink_to("libcudnn.so.8.6.0")
    (tmp_path / LIB / "libcudnn.so").symlink_to("libcudnn.so.8")
    (toolkit / "lib64").symlink_to("targets/x86_64-linux/lib")
    put(
        toolkit,
        "include/cudnn_version.h",
        "#define CUDNN_MAJOR 8\n#define CUDNN_MINOR 6\n#define CUDNN_PATCHLEVEL 0\n",
    )
    (tmp_path / "usr/local/cuda").symlink_to("cuda-11.8")
    (tmp_path / "tmp").mkdir()
    return tmp_path


@pytest.fixture
def open_root(root: Path) -> Iterator[Path]:
    """The same tree where every user comes to it; pytest's own directories are shut."""
    with tempfile.TemporaryDirectory() as directory:
        copy = shutil.copytree(root, Path(directory, "root"), symlinks=True)
        for place in (copy, copy.parent):
            place.chmod(0o755)
        yield copy


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the probe say how long sections have on a host that does nothing else."""
    monkeypatch.setattr("gpufleet.on_host.schedule.slowness", lambda: 1)
