"""Section `linker`, the linker's cache and configuration."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from gpufleet.on_host.host import Host
from gpufleet.on_host.linker_cache import linker_cache, parse_linker_cache
from gpufleet.on_host.sections.linker import section_linker
from tests.support.elf_file import shared_library
from tests.support.planted_host import LIB, probe_tree, put

LDCONFIG = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin") or ""


def test_every_place_of_the_linkers_is_searched(root: Path) -> None:
    conf = "etc/ld.so.conf.d/"
    put(root, "etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    put(root, conf + "cuda.conf", "/usr/local/cuda-11.8/lib64\n")
    place = "usr/lib/x86_64-linux-gnu"
    shared_library(root / place / "glibc-hwcaps/x86-64-v3/libx.so.1", "libx.so.1")
    shared_library(root / place / "glibc-hwcaps/x86-64-v3/libcublas.so.11.4", "libcublas.so.11")
    found = {row["path"]: row["soname"] for row in probe_tree(root)["linker"]["providers"]}
    assert found[f"/{place}/glibc-hwcaps/x86-64-v3/libcublas.so.11.4"] == "libcublas.so.11"
    assert set(found.values()) == {"libcublas.so.11", "libcudart.so.11.0", "libcudnn.so.8"}


def test_the_linker_of_tomorrow_is_foreseen(root: Path) -> None:
    put(root, "etc/ld.so.conf", "include ld.so.conf.d/*.conf\n")
    put(root, "etc/ld.so.conf.d/000.conf", "/opt/aaa\n")
    put(root, "etc/ld.so.conf.d/gpufleet-cuda.conf", "/usr/local/cuda-11.8/lib64\n")
    shared_library(root / "opt/aaa/libcudnn.so.8", "libcudnn.so.8")
    put(root, "etc/ld.so.cache", "cut short")
    found = probe_tree(root)["linker"]
    assert {e["soname"]: e["path"] for e in found["offered"]} == {
        "libcudnn.so.8": "/opt/aaa/libcudnn.so.8",
        "libcudart.so.11.0": "/usr/local/cuda-11.8/lib64/libcudart.so.11.8.89",
    }
    assert found["cache_error"].startswith("/etc/ld.so.cache is damaged")


def test_each_libcuda_that_the_linker_may_load_is_named(root: Path) -> None:
    stubs, compat = f"{LIB}/stubs", "usr/local/cuda-11.8/compat"
    put(root, "etc/ld.so.conf", f"/{stubs}\n/{compat}\n/opt/link\n/opt/empty\n")
    shared_library(root / stubs / "libcuda.so", "libcuda.so.1")
    shared_library(root / compat / "libcuda.so.520.61.05", "libcuda.so.1")
    (root / "opt").mkdir(exist_ok=True)
    (root / "opt/link").symlink_to(f"../{stubs}")
    (root / "etc/ld.so.cache").write_bytes(
        cache_of([(0x0303, "libcuda.so.1", "/usr/lib/libcuda.so.1")])
    )
    found = probe_tree(root)["linker"]
    assert found["cache"] == []
    assert [(e["path"], e["realpath"]) for e in found["drivers"]] == [
        ("/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.1"),
        (f"/{stubs}/libcuda.so.1", f"/{stubs}/libcuda.so"),
        (f"/{compat}/libcuda.so.1", f"/{compat}/libcuda.so.520.61.05"),
        ("/opt/link/libcuda.so.1", f"/{stubs}/libcuda.so"),
    ]


def cache_of(entries: list[tuple[int, str, str]]) -> bytes:
    """An ld.so.cache as ldconfig writes it since glibc 2.32."""
    table, strings = b"", b""
    start = 48 + 24 * len(entries)
    for flags, soname, path in entries:
        key = start + len(strings)
        strings += soname.encode() + b"\0"
        table += struct.pack("=iIIIQ", flags, key, start + len(strings), 0, 0)
        strings += path.encode() + b"\0"
    head = b"glibc-ld.so.cache1.1" + struct.pack("=II", len(entries), len(strings)) + bytes(20)
    return head + table + strings


def test_the_linkers_cache_keeps_its_order_and_shows_stale_entries(root: Path) -> None:
    path = root / "etc/ld.so.cache"
    path.write_bytes(
        cache_of(
            [
                (0x0003, "libcudnn.so.8", "/lib32/libcudnn.so.8"),
                (0x0303, "libcudnn.so.8", "/usr/local/cuda-11.8/lib64/libcudnn.so.8"),
                (0x0303, "libcudnn.so.8", "/opt/gone/libcudnn.so.8"),
                (0x0303, "libz.so.1", "/lib/libz.so.1"),
            ]
        )
    )
    assert linker_cache(str(root)) == [
        {
            "soname": "libcudnn.so.8",
            "path": "/usr/local/cuda-11.8/lib64/libcudnn.so.8",
            "exists": True,
            "realpath": f"/{LIB}/libcudnn.so.8.6.0",
        },
        {
            "soname": "libcudnn.so.8",
            "path": "/opt/gone/libcudnn.so.8",
            "exists": False,
            "realpath": "/opt/gone/libcudnn.so.8",
        },
    ]


def test_an_unknown_cache_format_is_an_error_not_an_empty_list() -> None:
    with pytest.raises(ValueError, match="unknown format"):
        parse_linker_cache(b"something else")


@pytest.mark.skipif(not LDCONFIG, reason="no ldconfig here to compare with")
@pytest.mark.skipif(not Path("/etc/ld.so.cache").exists(), reason="no linker cache here")
def test_the_real_cache_is_read_as_ldconfig_prints_it() -> None:
    printed = subprocess.run([LDCONFIG, "-p"], capture_output=True, text=True, check=True).stdout
    theirs = [
        line.split(" => ")[1]
        for line in printed.splitlines()
        if " => " in line and "x86-64" in line
    ]
    ours = [path for _, path in parse_linker_cache(Path("/etc/ld.so.cache").read_bytes())]
    assert theirs and [path for path in ours if path in set(theirs)] == theirs


def test_the_linkers_configuration_follows_includes(root: Path) -> None:
    put(root, "etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n/usr/lib/x # comment\n")
    put(root, "etc/ld.so.conf.d/gpufleet-cuda.conf", "/usr/local/cuda-11.8/lib64\n")
    found = probe_tree(root)["linker"]
    assert found["files"] == [
        {"path": "/etc/ld.so.conf", "directories": ["/usr/lib/x"]},
        {
            "path": "/etc/ld.so.conf.d/gpufleet-cuda.conf",
            "directories": ["/usr/local/cuda-11.8/lib64"],
        },
    ]
    assert found["unregistered"] == []
    (root / "etc/ld.so.conf.d/gpufleet-cuda.conf").unlink()
    assert probe_tree(root)["linker"]["unregistered"] == ["/usr/local/cuda-11.8/lib64"]


@pytest.mark.skipif(not LDCONFIG, reason="no ldconfig here to compare with")
@pytest.mark.parametrize(
    "lines",
    [
        "include /etc/ld.so.conf.d/*.conf\n/opt/late\n",
        "/opt/late\ninclude ld.so.conf.d/*.conf\n",
        "include /etc/ld.so.conf.d/b.conf /etc/ld.so.conf.d/a.conf\n/opt/late\n",
        " \tinclude\t/etc/ld.so.conf.d/b.conf # first\n/opt/late\ninclude ld.so.conf.d/*.conf\n",
        "include /etc/ld.so.conf\nhwcap 0 x\n\t/opt/late/ # c\n/opt/a\n",
        "/opt/a /opt/b\n/opt/a,/opt/b\n/opt/a:/opt/b\n/opt/late\n",
        "/opt/with blank\n/opt/late\n",
        "/opt/late = libc6\n/opt/a\n",
        "/opt/link\n/opt/late\n/opt/b\n",
    ],
)
def test_the_first_of_a_librarys_directories_is_the_one_that_ldconfig_takes(
    tmp_path: Path, lines: str
) -> None:
    """Directories after an `include` were taken for earlier than those of the included files."""
    for name in ("late", "a", "b", "with blank"):
        shared_library(tmp_path / "opt" / name / "libcudart.so.11.0", "libcudart.so.11.0")
    (tmp_path / "opt/link").symlink_to("b")
    put(tmp_path, "etc/ld.so.conf", lines)
    put(tmp_path, "etc/ld.so.conf.d/a.conf", "/opt/a\n/opt/late\n")
    put(tmp_path, "etc/ld.so.conf.d/b.conf", "/opt/b\n")
    found = section_linker(Host({"root": str(tmp_path)}))
    subprocess.run(
        [LDCONFIG, "-X", "-r", str(tmp_path)],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C"},
    )
    (written, *_) = linker_cache(str(tmp_path))
    assert [row["path"] for row in found["offered"]] == [written["path"]]
