"""Section `disks`: what every account may write in."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.planted_host import probe_tree, put


@pytest.fixture
def open_root() -> Iterator[Path]:
    """A tree that every account reaches, as it does not those of pytest."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_files_of_every_program_are_tried_as_an_ordinary_account(open_root: Path) -> None:
    """A linker's cache that root alone can read went unnoticed: users' programs found no CUDA."""
    put(open_root, "etc/ld.so.cache", mode=0o600)
    put(open_root, "etc/passwd")
    ordinary = os.geteuid() == 0
    assert probe_tree(open_root)["disks"]["common"] == [
        {
            "path": "/etc/ld.so.cache",
            "kind": "mode" if ordinary else None,
            "error": "it has mode 0600" if ordinary else None,
        },
        {"path": "/etc/passwd", "kind": None, "error": None},
    ]


def test_shared_directories_and_what_is_mounted_over_them(root: Path) -> None:
    """/dev/shm with 64 kB, and a /tmp that users cannot write in, were not noticed."""
    (root / "tmp").chmod(0o1777)
    (root / "run/shm").mkdir(parents=True)
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/shm").symlink_to("/run/shm")
    put(
        root,
        "proc/self/mountinfo",
        "22 1 0:20 / /run rw - tmpfs tmpfs rw,size=9k\n"
        "23 22 0:21 / /run/shm rw,nosuid shared:1 - ext4 /dev/x rw\n"
        "24 22 0:22 / /run/shm rw,nosuid shared:1 - tmpfs tmpfs rw,size=64k\n",
    )
    put(root, "proc/meminfo", "MemTotal:       65536000 kB\nMemFree: 1 kB\n")
    found = probe_tree(root)["disks"]
    shm, tmp = found["shared"]
    assert found["memory_mib"] == 64000
    assert (shm["path"], shm["exists"], shm["mounted"]) == ("/dev/shm", True, "tmpfs")
    assert (tmp["path"], tmp["mode"], tmp["mounted"]) == ("/tmp", "1777", None)
    assert tmp["size_mib"] >= tmp["free_mib"] > 0
    (root / "tmp").rmdir()
    assert probe_tree(root, tmpdir="/var/tmp")["disks"]["shared"][1] == dict(
        dict.fromkeys(tmp), path="/tmp", exists=False
    )
