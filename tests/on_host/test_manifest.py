"""Manifests and packages' records against what is on disk."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import os
from pathlib import Path

import pytest

from gpufleet.on_host import manifest
from gpufleet.on_host.host import Host
from gpufleet.on_host.manifest import (
    compare_manifest,
    compare_records,
    manifest_of,
    recorded_files,
    sha256_of,
)
from gpufleet.on_host.venvs import packages_of
from tests.support.planted_host import put


def test_a_manifest_is_of_real_paths_and_knows_libraries_by_content(root: Path) -> None:
    toolkit = root / "usr/local/cuda-11.8"
    manifest = manifest_of(
        str(toolkit), ["lib64/libcudnn.so.8", "lib64/libcudnn.so.8.6.0", "include"]
    )
    by_path = {entry["path"]: entry for entry in manifest}
    library = "targets/x86_64-linux/lib/libcudnn.so.8.6.0"
    assert list(by_path) == [
        "include/cudnn_version.h",
        "targets/x86_64-linux/lib/libcudnn.so.8",
        library,
    ]
    assert by_path["targets/x86_64-linux/lib/libcudnn.so.8"] == {
        "path": "targets/x86_64-linux/lib/libcudnn.so.8",
        "type": "link",
        "target": "libcudnn.so.8.6.0",
    }
    assert len(by_path[library]["sha256"]) == 64
    assert by_path["include/cudnn_version.h"]["sha256"] is None
    assert by_path["include/cudnn_version.h"]["mode"] == "0644"


def test_a_manifest_does_not_leave_its_root(root: Path) -> None:
    with pytest.raises(ValueError, match="leads out"):
        manifest_of(str(root / "usr/local/cuda-11.8"), ["../cuda"])


def test_each_kind_of_change_is_named(root: Path) -> None:
    toolkit = root / "usr/local/cuda-11.8"
    library = toolkit / "lib64/libcudnn.so.8.6.0"

    def changed(deep: bool = False) -> dict[str, str]:
        found = compare_manifest(str(toolkit), manifest, deep)
        return {Path(entry["path"]).name: entry["what"] for entry in found}

    manifest = manifest_of(
        str(toolkit),
        [
            "lib64/libcudnn.so.8.6.0",
            "lib64/libcudnn.so.8",
            "lib64/libcudnn.so",
            "version.json",
            "bin/nvcc",
        ],
    )
    assert changed(deep=True) == {}
    before = library.stat()
    content = bytearray(library.read_bytes())
    content[-1] ^= 1
    library.write_bytes(content)
    os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changed() == {}
    assert changed(deep=True) == {"libcudnn.so.8.6.0": "sha256"}
    (toolkit / "version.json").unlink()
    (toolkit / "bin/nvcc").chmod(0o700)
    (toolkit / "lib64/libcudnn.so").unlink()
    (toolkit / "lib64/libcudnn.so").write_bytes(content)
    (toolkit / "lib64/libcudnn.so.8").unlink()
    (toolkit / "lib64/libcudnn.so.8").symlink_to("elsewhere")
    os.utime(library, (0, 0))
    assert changed() == {
        "version.json": "missing",
        "nvcc": "mode",
        "libcudnn.so": "type",
        "libcudnn.so.8": "target",
        "libcudnn.so.8.6.0": "mtime",
    }


def test_packages_vouch_for_their_own_files(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    for name in ("keras", "mine"):
        put(site, f"{name}/core.py", "x = 1\n")
        put(site, f"{name}/gone.py", "x = 1\n")
        put(
            site,
            f"{name}-1.0.dist-info/RECORD",
            f"{name}/core.py,sha256=AAAA,6\n{name}/gone.py,,6\n{name}-1.0.dist-info/RECORD,,\n",
        )
        (site / name / "gone.py").unlink()
    gone = {"path": "lib/python3.11/site-packages/keras/gone.py", "what": "missing"}
    files = recorded_files(str(tmp_path), {"keras": "1.0"})
    assert compare_records(str(tmp_path), files) == [gone]
    deep = compare_records(str(tmp_path), files, deep=True)
    assert deep == [{"path": "lib/python3.11/site-packages/keras/core.py", "what": "sha256"}, gone]
    put(site, "keras/core.py", "x = 11\n")
    assert compare_records(str(tmp_path), files)[0]["what"] == "size"


def test_a_record_is_no_way_to_compare_a_secret_with_a_guess(tmp_path: Path) -> None:
    secret, venv = put(tmp_path, "secret", "hunter2"), tmp_path / "venv"
    guess = base64.urlsafe_b64encode(hashlib.sha256(b"hunter2").digest()).decode().rstrip("=")
    site = venv / "lib/python3.11/site-packages"
    put(
        site,
        "keras-1.0.dist-info/RECORD",
        "".join(
            f"{path},sha256={digest},7\n"
            for digest in (guess, "A" * 43)
            for path in ("../../../../secret", str(secret), "keras/linked", "keras/below/secret")
        ),
    )
    put(site, "keras/__init__.py")
    (site / "keras/linked").symlink_to(secret)
    (site / "keras/below").symlink_to(tmp_path)
    files = recorded_files(str(venv), {"keras": "1.0"})
    found = compare_records(str(venv), files, deep=True)
    assert [entry["what"] for entry in found] == ["type"] * 4


@pytest.mark.parametrize("name", ["METADATA", "RECORD"])
@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_what_is_no_file_is_neither_waited_for_nor_read_without_end(
    tmp_path: Path, name: str, kind: str
) -> None:
    """A pipe hung the probe, and a link to /dev/zero took all of the host's memory."""
    info = tmp_path / "lib/python3.11/site-packages/keras-1.0.dist-info"
    put(info, "METADATA", "Name: keras\nVersion: 1.0\n")
    put(info, "RECORD", "keras/core.py,,6\n")
    (info / name).unlink()
    if kind == "pipe":
        os.mkfifo(info / name)
    else:
        (info / name).symlink_to("/dev/zero")
    host = Host({"root": "/"})
    assert packages_of(host, str(tmp_path)) == ({} if name == "METADATA" else {"keras": "1.0"})
    assert len(recorded_files(str(tmp_path), {"keras": "1.0"})) == (name == "METADATA")
    with pytest.raises(OSError, match="not a regular file"):
        sha256_of(str(info / name))


def test_a_file_that_grows_while_it_is_read_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, "grows", "x" * 10)
    monkeypatch.setattr(manifest, "open_regular", lambda _: Growing(path))
    assert len(sha256_of(str(path))) == 64
    assert Growing.reads < 5


class Growing(io.FileIO):
    """A file to which somebody writes as fast as it is read."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        type(self).reads += 1
        return b"x" * 10 if self.reads < 100 else b""


# What is written where: [(offset, bytes)], and the size in the end.
SPARSE = {
    "nothing written": ([], 300_000),
    "a hole first": ([(1 << 20, b"x" * 70_000)], (1 << 20) + 70_000),
    "a hole last": ([(0, b"x" * 70_000)], 1 << 20),
    "holes between": ([(0, b"a"), (1 << 19, b"b" * 5000), (1 << 21, b"c")], 3 << 20),
    "no hole": ([(0, b"x" * 200_001)], 200_001),
    "empty": ([], 0),
}


@pytest.mark.parametrize("case", SPARSE)
def test_holes_count_as_zeros_and_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    written, size = SPARSE[case]
    path = tmp_path / "sparse"
    with path.open("wb") as stream:
        for offset, data in written:
            stream.seek(offset)
            stream.write(data)
        stream.truncate(size)
    taken = []
    real = os.pread

    def counted(descriptor: int, length: int, offset: int) -> bytes:
        taken.append(real(descriptor, length, offset))
        return taken[-1]

    monkeypatch.setattr(manifest.os, "pread", counted)
    assert sha256_of(str(path)) == hashlib.sha256(path.read_bytes()).hexdigest()
    # A file system keeps whole blocks of its own.
    assert sum(map(len, taken)) <= sum(len(data) + (1 << 16) for _, data in written)


def test_a_file_system_that_knows_no_holes_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(manifest.os, "lseek", refused)
    (tmp_path / "file").write_bytes(b"x" * 200_000)
    assert sha256_of(str(tmp_path / "file")) == hashlib.sha256(b"x" * 200_000).hexdigest()
