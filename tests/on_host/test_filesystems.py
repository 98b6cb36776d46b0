"""Mounts and attributes that keep files from being changed, as the kernel shows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.on_host.filesystems import attribute_of, existing, mount_of, parse_mounts
from gpufleet.on_host.host import Host
from gpufleet.on_host.obstacles import obstacles
from tests.support.file_attributes import attribute
from tests.support.planted_host import put

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:25 / /tmp rw,nosuid - tmpfs tmpfs rw
31 22 8:17 /a /srv/with\040blank ro,relatime shared:7 master:1 - ext4 /dev/sdb1 rw
32 22 8:33 / /usr/local/cuda-11.8 rw - xfs /dev/sdc1 ro,attr2
33 32 0:40 / /usr/local/cuda-11.8 rw - tmpfs over rw
a line of another form
"""


def test_mounts_are_read_with_options_of_their_own_and_of_their_file_system() -> None:
    found = {
        (mount["path"], mount["type"], mount["source"]): mount["readonly"]
        for mount in parse_mounts(MOUNTS)
    }
    assert found == {
        ("/", "ext4", "/dev/vda1"): False,
        ("/tmp", "tmpfs", "tmpfs"): False,
        ("/srv/with blank", "ext4", "/dev/sdb1"): True,
        ("/usr/local/cuda-11.8", "xfs", "/dev/sdc1"): True,
        ("/usr/local/cuda-11.8", "tmpfs", "over"): False,
    }


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("/usr/local/cuda-11.80/bin", "/dev/vda1"),
        ("/usr/local/cuda-11.8/bin", "over"),
        ("/usr/local/cuda-11.8", "over"),
        ("/srv/with blank/x", "/dev/sdb1"),
        ("/", "/dev/vda1"),
    ],
)
def test_a_path_is_on_the_innermost_mount_and_the_last_one_there(path: str, source: str) -> None:
    assert mount_of(path, parse_mounts(MOUNTS))["source"] == source


def test_no_mount_is_known_without_the_kernels_list() -> None:
    assert mount_of("/usr", []) is None


@pytest.fixture(params=["i", "a"])
def locked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A file with an attribute, on a file system that has attributes."""
    file = tmp_path / "locked"
    file.write_text("x")
    with attribute(file, request.param):
        yield file, {"i": "immutable", "a": "append-only"}[request.param]


def test_attributes_that_hold_against_root_are_read(locked: tuple[Path, str]) -> None:
    file, name = locked
    assert attribute_of(str(file)) == name
    with pytest.raises(PermissionError):
        file.unlink()


def test_what_is_not_there_or_no_plain_file_has_no_attribute(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert attribute_of(str(tmp_path)) is None
    assert attribute_of(str(tmp_path / "loop")) is None
    assert attribute_of(str(tmp_path / "absent")) is None
    assert attribute_of("/dev/null") is None


def test_of_a_path_that_is_not_there_the_directory_above_exists(tmp_path: Path) -> None:
    assert existing(str(tmp_path / "a/b/c")) == str(tmp_path)
    assert existing("/") == "/"


RECEIPT = {"path": "/usr/local/cuda-11.8", "changed": [{"path": "bin/ptxas", "what": "size"}]}


def planted(root: Path, mounts: str) -> Host:
    put(root, "usr/local/cuda-11.8/bin/ptxas")
    put(root, "var/lib/gpufleet/receipts/x.json")
    put(root, "proc/self/mountinfo", mounts)
    return Host({"root": str(root)})


def test_a_read_only_mount_is_an_obstacle_where_gpufleet_writes(root: Path) -> None:
    host = planted(
        root,
        "22 1 254:0 / / rw - ext4 /dev/vda1 rw\n"
        "32 22 8:33 / /usr/local/cuda-11.8 ro - xfs /dev/sdc1 rw\n"
        "33 22 8:34 / /home ro - xfs /dev/sdd1 rw\n",
    )
    assert obstacles(host, [RECEIPT]) == [
        {"path": "/usr/local/cuda-11.8", "what": "read-only", "source": "/dev/sdc1"}
    ]


@pytest.mark.parametrize(
    ("receipts", "ours", "named"),
    [([], True, True), ([RECEIPT], True, False), ([], False, False)],
)
def test_a_mount_over_the_records_is_an_obstacle_where_there_was_one(
    root: Path, receipts: list[dict[str, object]], ours: bool, named: bool
) -> None:
    """A fresh host may have a file system for them, and so may one that has its records there."""
    if ours:
        put(root, "etc/ld.so.conf.d/gpufleet-cuda.conf")
    host = planted(
        root,
        "22 1 254:0 / / rw - ext4 /dev/vda1 rw\n"
        "34 22 0:44 / /var/lib/gpufleet rw - tmpfs tmpfs rw\n",
    )
    found = obstacles(host, receipts)
    assert found == [{"path": "/var/lib/gpufleet", "what": "mounted", "source": "tmpfs"}] * named


def test_an_immutable_file_that_differs_is_an_obstacle(root: Path) -> None:
    host = planted(root, "22 1 254:0 / / rw - ext4 /dev/vda1 rw\n")
    file = root / "usr/local/cuda-11.8/bin/ptxas"
    with attribute(file):
        found = obstacles(host, [RECEIPT])
    assert found == [
        {"path": "/usr/local/cuda-11.8/bin/ptxas", "what": "immutable", "source": None}
    ]
