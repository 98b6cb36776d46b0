"""Kernel modules that are there and that no kernel can load."""

from __future__ import annotations

import base64
import gzip
import lzma
import struct
from pathlib import Path
from typing import Any

import pytest

from gpufleet.on_host import kernel_modules
from gpufleet.on_host.host import Host
from gpufleet.on_host.kernel_modules import driver_modules
from gpufleet.on_host.module_files import damage
from tests.support.elf_file import kernel_module
from tests.support.planted_host import probe_tree, put

KERNEL = "6.1.0-9-amd64"
TOP = f"lib/modules/{KERNEL}"
BUILT, OWN = "updates/dkms/nvidia.ko", "kernel/nvidia-580srv/nvidia.ko"
# What zstd makes of 300,000 zeros and 48 other bytes: blocks of every kind, with and without checksum.
ZSTD = (
    "KLUv/QRYVAAAEAAAAQD7/znAAgIAEADVAQAUAwBEIII8/ebxwmsw+Q7H3QHkiHU0og8LDQTDbtgOceD9d7B2cOuUC9UzZ3B1ZmxlZXQBANwTHQgBaJeqtA==",
    "KLUv/QBYVAAAEAAAAQD7/znAAgIAEADVAQAUAwBEIII8/ebxwmsw+Q7H3QHkiHU0og8LDQTDbtgOceD9d7B2cOuUC9UzZ3B1ZmxlZXQBANwTHQgB",
)


def modules(root: Path) -> list[dict[str, Any]]:
    return driver_modules(Host({"root": str(root)}), KERNEL)


def errors(root: Path) -> list[str | None]:
    return [row["error"] for row in modules(root)]


def module(root: Path, name: str = BUILT) -> Path:
    return kernel_module(root / TOP / name, version="535.261.03", license="NVIDIA")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "it is empty"),
        (b"\x7fELF\x02\x01", "not a kernel module of this machine"),
        (b"<html>Please log in</html>", "not a kernel module of this machine"),
        (bytes(200), "not a kernel module of this machine"),
        (lzma.compress(b"x" * 999)[:-4], "it is cut off"),
        (gzip.compress(b"x" * 999)[:-4], "it is cut off"),
        (base64.b64decode(ZSTD[0])[:-4], "it is cut off"),
    ],
    ids=["empty", "a beginning", "a page", "zeros", "xz", "gzip", "zstd"],
)
@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_a_module_that_is_not_whole_says_why(
    tmp_path: Path, content: bytes, error: str, suffix: str
) -> None:
    """Only its name counted, and the next boot had no GPU."""
    path = module(tmp_path, BUILT + suffix)
    path.write_bytes(content)
    (row,) = modules(tmp_path)
    assert (row["version"], row["error"]) == (None, error)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bytes])
def test_a_packed_module_cut_anywhere_is_damaged(tmp_path: Path, pack: Any) -> None:
    whole = pack(kernel_module(tmp_path / "x.ko", version="1").read_bytes())
    path = tmp_path / "cut"
    path.write_bytes(whole)
    assert damage(str(path)) is None
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert damage(str(path)), length


@pytest.mark.parametrize(
    "packed", [base64.b64decode(text) for text in ZSTD], ids=["first", "second"]
)
def test_a_module_packed_by_zstd_ends_with_its_last_block(tmp_path: Path, packed: bytes) -> None:
    """No Python before 3.14 unpacks it; where its blocks end is known without that."""
    path = tmp_path / "x"
    path.write_bytes(packed)
    assert damage(str(path)) is None
    for length in range(len(packed)):
        path.write_bytes(packed[:length])
        assert damage(str(path)), length


@pytest.mark.parametrize(
    ("place", "form", "value"),
    [(40, "<Q", 1 << 63), (58, "<H", 1), (60, "<H", 0), (62, "<H", 9)],
)
def test_a_header_that_contradicts_itself_is_damaged(
    tmp_path: Path, place: int, form: str, value: int
) -> None:
    path = kernel_module(tmp_path / "x.ko", version="1")
    content = bytearray(path.read_bytes())
    struct.pack_into(form, content, place, value)
    path.write_bytes(content)
    assert damage(str(path))


def test_a_link_that_leads_nowhere_is_no_module_and_none_is_preferred(tmp_path: Path) -> None:
    """weak-updates has links to the modules of another kernel, which may be removed."""
    link = tmp_path / TOP / "updates/nvidia.ko"
    link.parent.mkdir(parents=True)
    link.symlink_to("/lib/modules/gone/extra/nvidia.ko")
    assert errors(tmp_path) == ["it is a link to what is not there"]
    module(tmp_path, "weak-updates/nvidia.ko")
    assert errors(tmp_path) == [None, "it is a link to what is not there"]
    kernel_module(tmp_path / "lib/modules/gone/extra/nvidia.ko", version="1")
    assert errors(tmp_path) == [None, None]


def test_modprobe_finds_only_what_depmod_listed(tmp_path: Path) -> None:
    module(tmp_path)
    for listed, error in (
        (None, None),
        ("", None),
        (f"kernel/fs/ext4.ko: kernel/x.ko\n{BUILT}: kernel/x.ko\n", None),
        (f"/{TOP}/{BUILT}:\n", None),
        ("kernel/fs/ext4.ko:\n", "modules.dep does not list it, so modprobe does not find it"),
        (f"{BUILT}.xz:\n", "modules.dep does not list it, so modprobe does not find it"),
    ):
        if listed is not None:
            put(tmp_path, f"{TOP}/modules.dep", listed)
        assert errors(tmp_path) == [error], listed


def test_what_depmod_listed_counts_in_any_directory_but_the_kernel_s_own(tmp_path: Path) -> None:
    own = "kernel/drivers/perf/arm_cspmu/nvidia_cspmu.ko"
    put(tmp_path, f"{TOP}/modules.dep", f"vendor/nvidia.ko:\ngone/nvidia.ko:\n{own}:\n")
    module(tmp_path, own)
    assert modules(tmp_path) == []
    module(tmp_path, "vendor/nvidia.ko")
    assert [row["path"] for row in modules(tmp_path)] == [f"/{TOP}/vendor/nvidia.ko"]


def test_a_packed_module_that_nothing_unpacks_has_no_version_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_modules, "run_command", lambda *_: (1, "", "not supported"))
    host = Host({})
    path = tmp_path / "nvidia.ko.zst"
    path.write_bytes(base64.b64decode(ZSTD[0]))
    assert kernel_modules.module_information(host, str(path), "nvidia") == {}
    assert damage(str(path)) is None


@pytest.mark.parametrize(
    ("name", "text", "blocked"),
    [
        ("etc/modprobe.d/x.conf", "install nvidia /bin/false\n", ["nvidia"]),
        ("etc/modprobe.d/x.conf", "install nvidia-uvm /bin/true # no\n", ["nvidia_uvm"]),
        ("etc/modprobe.d/x.conf", "install nvidia* :\n", ["nvidia", "nvidia_uvm"]),
        ("etc/modprobe.d/x.conf", "#install nvidia /bin/false\n", []),
        ("etc/modprobe.d/x.conf", "blacklist nvidia\n", []),
        ("etc/modprobe.d/x.conf", "install nvidia modprobe -i nvidia-current $CMDLINE_OPTS\n", []),
        ("proc/cmdline", "quiet module_blacklist=nouveau,nvidia\n", ["nvidia"]),
        ("proc/cmdline", "quiet modprobe.blacklist=nvidia\n", []),
    ],
)
def test_what_keeps_the_driver_from_being_loaded(
    tmp_path: Path, name: str, text: str, blocked: list[str]
) -> None:
    (tmp_path / "tmp").mkdir()
    put(tmp_path, name, text)
    found = probe_tree(tmp_path)["driver"]["blocked"]
    assert found == [{"module": module, "by": f"/{name}"} for module in blocked]
