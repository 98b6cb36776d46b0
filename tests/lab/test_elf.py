"""SONAMEs are read, and device code becomes holes, without touching anything else."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import pytest

from lab import elf, fatbin
from tests.support.elf_file import runpath, shared_library
from tests.support.lab_artifacts import DEVICE_CODE, HOST_CODE, library_with_device_code


def test_soname_is_read_from_the_dynamic_section(tmp_path: Path) -> None:
    path = shared_library(tmp_path / "any-name", "libcudart.so.11.0", needed=("libc.so.6",))
    assert elf.soname(path) == "libcudart.so.11.0"


def test_a_library_without_a_soname_has_none(tmp_path: Path) -> None:
    assert elf.soname(shared_library(tmp_path / "libcheckpoint.so", None)) is None


def test_other_files_have_no_soname_and_no_device_code(tmp_path: Path) -> None:
    for name, content in {"empty": b"", "text": b"#!/bin/sh\n" * 50, "cut": b"\x7fELF"}.items():
        path = tmp_path / name
        path.write_bytes(content)
        assert elf.soname(path) is None
        assert elf.device_code(path) == []


def test_slim_copy_has_holes_for_device_code_alone(tmp_path: Path) -> None:
    whole = library_with_device_code(tmp_path / "whole.so", "libcublas.so.11")
    slim = tmp_path / "slim.so"

    assert elf.slim(whole, slim) == len(DEVICE_CODE)

    before, after = whole.read_bytes(), slim.read_bytes()
    at = before.index(DEVICE_CODE)
    assert len(after) == len(before)
    assert after[:at] == before[:at]
    assert after[at : at + len(DEVICE_CODE)] == bytes(len(DEVICE_CODE))
    assert after[at + len(DEVICE_CODE) :] == before[at + len(DEVICE_CODE) :]
    assert HOST_CODE in after
    assert elf.soname(slim) == "libcublas.so.11"


def test_the_dynamic_linker_accepts_a_slim_copy(tmp_path: Path) -> None:
    whole = library_with_device_code(tmp_path / "whole.so", "libcublas.so.11")
    slim = tmp_path / "slim.so"
    elf.slim(whole, slim)
    assert ctypes.CDLL(str(slim))._handle


def test_a_library_without_sections_is_copied_whole(tmp_path: Path) -> None:
    whole = shared_library(tmp_path / "whole.so", "libcudart.so.11.0")
    slim = tmp_path / "slim.so"
    assert elf.slim(whole, slim) == 0
    assert slim.read_bytes() == whole.read_bytes()


def test_device_code_among_the_data_becomes_holes_too(tmp_path: Path) -> None:
    containers = [struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 9000) + b"c" * 9000 for _ in range(2)]
    lookalike = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 40)
    data = b"table" + containers[0] + b"between" + containers[1] + lookalike + b"the end"
    whole = library_with_device_code(tmp_path / "whole.so", "libcufft.so.11", data)
    slim = tmp_path / "slim.so"

    assert elf.slim(whole, slim) == len(DEVICE_CODE) + 2 * len(containers[0])

    kept = whole.read_bytes().replace(DEVICE_CODE, bytes(len(DEVICE_CODE)))
    for container in containers:
        kept = kept.replace(container, bytes(len(container)))
    assert slim.read_bytes() == kept
    assert lookalike + b"the end" in kept


def test_a_runpath_is_moved_in_place(tmp_path: Path) -> None:
    path = runpath(tmp_path / "python", "/home/me/.pyenv/versions/3.6.15/lib")
    before = path.read_bytes()
    assert elf.move_runpath(path, "/home/me/.pyenv/versions/3.6.15/", "/opt/python/3.6/")
    assert len(path.read_bytes()) == len(before)
    assert b"\0/opt/python/3.6/lib\0" in path.read_bytes()
    assert ctypes.CDLL(str(path))._handle


def test_a_runpath_is_left_alone_if_it_is_elsewhere_or_too_short(tmp_path: Path) -> None:
    path = runpath(tmp_path / "python", "/py/lib")
    before = path.read_bytes()
    assert not elf.move_runpath(path, "/other/", "/opt/python/3.6/")
    assert not elf.move_runpath(path, "/py/", "/opt/python/3.6/")
    assert not elf.move_runpath(Path(__file__), "/py/", "/p/")
    assert path.read_bytes() == before


def entry(kind: int, architecture: int, code: bytes) -> bytes:
    """An entry of a container: its header and its code."""
    return struct.pack("<HHIQ8xHHI32x", kind, 0, 64, len(code), 3, 8, architecture) + code


def container(*entries: bytes) -> bytes:
    """A container of these entries."""
    inside = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(inside)) + inside


PTX, MACHINE, OTHER = 1, 2, 8


def test_a_copy_for_one_architecture_keeps_its_code_and_every_header(tmp_path: Path) -> None:
    own, code = b"sm_90 " * 1000, b"for others " * 1000
    data = container(entry(MACHINE, 80, code), entry(MACHINE, 90, own), entry(PTX, 90, code))
    whole = library_with_device_code(tmp_path / "whole.so", "libcublas.so.12", data)
    cut = tmp_path / "cut.so"

    assert elf.slim(whole, cut, 90) == 2 * len(code)

    kept = container(
        entry(MACHINE, 80, bytes(len(code))),
        entry(MACHINE, 90, own),
        entry(PTX, 90, bytes(len(code))),
    )
    assert cut.read_bytes() == whole.read_bytes().replace(data, kept)
    assert elf.soname(cut) == "libcublas.so.12"
    assert ctypes.CDLL(str(cut))._handle


@pytest.mark.parametrize(
    ("present", "left"),
    [
        ([(MACHINE, 80), (PTX, 80), (PTX, 100)], [(PTX, 80)]),
        ([(PTX, 50), (PTX, 90), (OTHER, 50)], [(PTX, 90), (OTHER, 50)]),
        ([(MACHINE, 90), (MACHINE, 90)], [(MACHINE, 90), (MACHINE, 90)]),
        ([(MACHINE, 70), (MACHINE, 80)], []),
    ],
    ids=["newest PTX that it knows", "unknown kind", "two parts of one module", "nothing for it"],
)
def test_a_module_keeps_what_a_gpu_of_the_architecture_runs(
    present: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    data = container(*(entry(kind, number, b"code") for kind, number in present))
    gone = {at for at, size in fatbin.unused(data, 90)}
    places = [16 + number * 68 + 64 for number in range(len(present))]
    assert [it for it, at in zip(present, places, strict=True) if at not in gone] == left


def test_a_container_that_cannot_be_read_stays() -> None:
    damaged = bytearray(container(entry(MACHINE, 80, b"code"), entry(MACHINE, 80, b"code")))
    damaged[16 + 68 + 8] += 1  # the second entry would end behind the container
    assert list(fatbin.unused(bytes(damaged), 90)) == []
