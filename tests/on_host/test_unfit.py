"""A library of another machine, or for a newer C library, is named as such.

The loader passes over it: it was reported as missing where it is.
"""

from __future__ import annotations

import os
import platform
import struct
from pathlib import Path

import pytest

from gpufleet.on_host import elf, processes
from gpufleet.on_host.elf import elf_dynamic, unfit
from gpufleet.on_host.host import Host
from gpufleet.on_host.trees import with_unfit_libraries
from tests.support.elf_file import shared_library
from tests.support.planted_host import LIB, probe_tree, put

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="its libraries are planted")
AARCH64 = "it is for aarch64, this host is x86_64"


def patched(path: Path, at: int, value: bytes) -> Path:
    content = bytearray(path.read_bytes())
    content[at : at + len(value)] = value
    path.write_bytes(content)
    return path


def for_machine(path: Path, soname: str, number: int) -> Path:
    return patched(shared_library(path, soname), 18, struct.pack("<H", number))


def for_aarch64(path: Path, soname: str) -> Path:
    return for_machine(path, soname, 183)


def test_the_machine_of_a_library(tmp_path: Path) -> None:
    assert unfit(str(shared_library(tmp_path / "own.so", "x.so"))) is None
    assert unfit(str(for_aarch64(tmp_path / "a.so", "x.so"))) == AARCH64
    # The x32 ABI: the same processor, other pointers.
    i386 = patched(shared_library(tmp_path / "b.so", "x.so"), 18, struct.pack("<H", 3))
    assert unfit(str(i386)) == "it is for i386, this host is x86_64"
    assert unfit(str(put(tmp_path, "text.so", "no"))) is None


def test_the_c_library_that_a_library_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    import _ctypes  # noqa: PLC0415

    place = getattr(_ctypes, "__file__", None) or os.path.realpath("/usr/bin/python3")
    assert elf_dynamic(place)["unfit"] is None
    monkeypatch.setattr(elf.os, "confstr", lambda name: "glibc 2.1")
    reason = str(elf_dynamic(place)["unfit"])
    assert reason.startswith("it needs GLIBC_2.")
    assert reason.endswith(", this host has 2.1")


def test_a_loaders_message_says_what_is_wrong_with_the_file_that_is_there(root: Path) -> None:
    for_aarch64(root / LIB / "libcublas.so.11", "libcublas.so.11")
    message = (
        "libcublas.so.11: cannot open shared object file: No such file or directory; "
        "libgone.so.1: cannot open shared object file: No such file or directory"
    )
    found = with_unfit_libraries(
        Host({"root": str(root)}), {"failed": [{"error": message}]}, ("/usr/local/cuda-11.8",)
    )
    assert found["failed"][0]["error"] == (
        f"/usr/local/cuda-11.8/lib64/libcublas.so.11: {AARCH64}; "
        "libgone.so.1: cannot open shared object file: No such file or directory"
    )


def test_sections_name_the_machine(root: Path, tmp_path: Path) -> None:
    for_aarch64(root / LIB / "libcudnn.so.8.6.0", "libcudnn.so.8")
    for_aarch64(root / LIB / "libcufft.so.10.9", "libcufft.so.10")
    # A number that no processor has: an emulator of aarch64 may be registered with the kernel.
    for_machine(root / "usr/local/cuda-11.8/bin/nvcc", "nvcc", 4660).chmod(0o755)
    found = probe_tree(root)
    (tree,) = found["cudnn"]["trees"]
    assert [row["error"] for row in tree["libraries"]] == [AARCH64]
    assert AARCH64 in tree["loaded"][0]["error"]
    (toolkit,) = found["toolkits"]["trees"]
    assert toolkit["unfit"] == [{"path": f"/{LIB}/libcufft.so.10.9", "error": AARCH64}]
    assert toolkit["nvcc_error"].endswith("it is for machine 4660, this host is x86_64")


def test_a_driver_library_of_another_machine(tmp_path: Path) -> None:
    path = for_aarch64(tmp_path / "libcuda.so.1", "libcuda.so.1")
    with pytest.raises(RuntimeError, match=AARCH64):
        processes.open_library(str(path))
