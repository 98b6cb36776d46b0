"""ELF files, whole and damaged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpufleet.on_host.elf import elf_dynamic
from tests.support.elf_file import shared_library


def test_elf_names_itself_and_what_it_needs(tmp_path: Path) -> None:
    path = shared_library(tmp_path / "libx.so.1", "libx.so.1", ("libc.so.6", "libm.so.6"))
    assert elf_dynamic(path) == {
        "soname": "libx.so.1",
        "needed": ["libc.so.6", "libm.so.6"],
        "filters": [],
        "runpath": [],
        "interpreter": None,
        "unfit": None,
    }


def test_elf_reads_a_real_library() -> None:
    import _ctypes  # noqa: PLC0415

    place = getattr(_ctypes, "__file__", None) or sys.executable
    assert any(name.startswith("libc.so") for name in elf_dynamic(place)["needed"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"<!DOCTYPE html><html>Please log in</html>", "web page"),
        (b"libcudnn.so.8.6.0\n", "a text file"),
        (bytes(range(256)), "invalid ELF header"),
        (b"\x7fELF\x02\x01", "truncated"),
    ],
)
def test_what_is_no_library_says_why(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "libcudnn.so.8"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        elf_dynamic(path)


def test_a_library_cut_off_anywhere_says_so(tmp_path: Path) -> None:
    whole = shared_library(tmp_path / "libx.so", "libx.so").read_bytes()
    cut = tmp_path / "cut.so"
    for length in range(4, len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="truncated"):
            elf_dynamic(cut)
