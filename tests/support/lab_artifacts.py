"""Small stand-ins for what the lab works on: a library with device code, a wheel, a toolkit."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from lab import artifacts, libraries, runfile
from tests.support.elf_file import shared_library

DEVICE_CODE = b"code for a GPU. " * 4096
HOST_CODE = b"code for the host."


def library_with_device_code(path: Path, soname: str, data: bytes = b"") -> Path:
    """A loadable library with a `.nv_fatbin` section, as CUDA's have, and with this `.data`."""
    shared_library(path, soname)
    sections = {".nv_fatbin": (1, DEVICE_CODE), ".text": (1, HOST_CODE), ".data": (1, data)}
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    sections[".shstrtab"] = (3, names)
    content = bytearray(path.read_bytes())
    table = bytes(64)
    for name, (kind, body) in sections.items():
        at = names.index(name.encode())
        table += struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, len(content), len(body), 0, 0, 1, 0)
        content += body
    struct.pack_into("<Q", content, 40, len(content))
    struct.pack_into("<HHH", content, 58, 64, 1 + len(sections), len(sections))
    path.write_bytes(content + table)
    return path


def with_gcc(directory: Path, version: str | None) -> str:
    """A search path with a gcc of the given version first, or with the machine's own."""
    directory.mkdir(exist_ok=True)
    gcc = directory / "gcc"
    gcc.unlink(missing_ok=True)
    if version:
        gcc.write_text(
            f"#!/bin/sh\ncase $1 in -v) echo 'gcc version {version} (test)' >&2 ;;"
            f" *) echo {version} ;; esac\n"
        )
        gcc.chmod(0o755)
    return f"{directory}:/usr/bin:/bin"


def wheel(path: Path, members: dict[str, bytes]) -> Path:
    with ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


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


def pack_small(work: Path, artifact: dict[str, Any]) -> Path:
    tree = work / "tree"
    directory = tree / "targets/x86_64-linux/lib"
    directory.mkdir(parents=True)
    (tree / "bin").mkdir()
    (tree / "lib64").symlink_to("targets/x86_64-linux/lib")
    (directory / "libcudart.so.11.8.89").write_text("a library")
    (directory / "libcudart.so.11.0").symlink_to("libcudart.so.11.8.89")
    (tree / "version.json").write_text("{}")
    return runfile.pack(artifact, tree, work, runfile.INSTALLER, libraries.readme(artifact))


DESCRIBED = {entry["file"]: entry for entry in artifacts.chosen(["8.0"])}


def make(name: str, work: Path) -> Path:
    entry: dict[str, Any] = DESCRIBED[name]
    work.mkdir()
    return artifacts.KINDS[entry["kind"]].make(entry, [], work)
