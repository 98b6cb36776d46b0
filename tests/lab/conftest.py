"""Small stand-ins for what the lab works on: a library with device code, a wheel, a toolkit."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from lab import libraries as lab_libraries
from lab import runfile
from lab.settings import Lab
from tests.elf_file import shared_library

DEVICE_CODE = b"code for a GPU. " * 4096
HOST_CODE = b"code for the host."


def library_with_device_code(path: Path, soname: str) -> Path:
    """A loadable library with a `.nv_fatbin` section, as CUDA's have."""
    shared_library(path, soname)
    content = bytearray(path.read_bytes())
    names = b"\0.nv_fatbin\0.shstrtab\0"
    device_at = len(content)
    host_at = device_at + len(DEVICE_CODE)
    names_at = host_at + len(HOST_CODE)
    content += DEVICE_CODE + HOST_CODE + names
    table_at = len(content)
    for name, kind, offset, size in (
        (0, 0, 0, 0),
        (names.index(b".nv_fatbin"), 1, device_at, len(DEVICE_CODE)),
        (names.index(b".shstrtab"), 3, names_at, len(names)),
    ):
        content += struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, offset, size, 0, 0, 1, 0)
    struct.pack_into("<Q", content, 40, table_at)
    struct.pack_into("<HHH", content, 58, 64, 3, 2)
    path.write_bytes(content)
    return path


def wheel(path: Path, members: dict[str, bytes]) -> Path:
    with ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab("unit", tmp_path / "cache")


TOOLKIT: dict[str, Any] = {
    "file": "cuda_11.8.0_520.61.05_linux.run",
    "kind": "toolkit",
    "cuda": "11.8",
    "version": "11.8.20220929",
    "gcc_max": 11,
    "driver": "520.61.05",
    "nvcc": "11.8.89",
    "components": [
        {"wheel": "nvidia-cublas-cu11==11.11.3.6", "key": "libcublas", "name": "CUDA cuBLAS"}
    ],
}


@pytest.fixture(scope="session")
def small_runfile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real runfile around a toolkit of a few bytes."""
    if shutil.which("makeself") is None:
        pytest.skip("makeself is not installed on this machine")
    work = tmp_path_factory.mktemp("runfile")
    return pack_small(work, TOOLKIT)


def pack_small(work: Path, artifact: dict[str, Any]) -> Path:
    tree = work / "tree"
    libraries = tree / "targets/x86_64-linux/lib"
    libraries.mkdir(parents=True)
    (tree / "bin").mkdir()
    (tree / "lib64").symlink_to("targets/x86_64-linux/lib")
    (libraries / "libcudart.so.11.8.89").write_text("a library")
    (libraries / "libcudart.so.11.0").symlink_to("libcudart.so.11.8.89")
    (tree / "version.json").write_text("{}")
    return runfile.pack(artifact, tree, work, runfile.INSTALLER, lab_libraries.README)
