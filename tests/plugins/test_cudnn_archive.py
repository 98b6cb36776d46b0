"""cuDNN's archive unpacked beforehand: used where it is whole and root's alone, else done again."""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.ansible_modules import Run, load, sha256
from tests.support.elf_file import shared_library

from ansible_collections.gpufleet.gpu.plugins.module_utils import (  # isort: skip
    cudnn_archive,
)

TOP = "cudnn-linux-x86_64-8.6.0.163_cuda11-archive"
FOLDERS = {"include_dir": f"{TOP}/include", "lib_dir": f"{TOP}/lib"}


class Bench:
    """A toolkit's tree, and an archive in the directory of the artifacts."""

    def __init__(self, root: Path, run: Run) -> None:
        self.root, self.run = root, run
        self.module, self.cleanup = load("gpu_cudnn_archive"), load("gpu_artifact_cleanup")
        self.toolkit, self.artifacts = root / "cuda-11.8", root / "artifacts"
        self.archive = self.artifacts / f"{TOP}.tar.xz"
        self.unpacked = self.artifacts / f"{TOP}.tar.xz.unpacked"
        self.library = self.unpacked / TOP / "lib" / "libcudnn.so.8.6.0"
        for folder in ("lib64", "include"):
            (self.toolkit / folder).mkdir(parents=True)
        self.artifacts.mkdir()
        self.pack()
        (self.artifacts / "cuda.run").touch()

    def pack(self) -> None:
        """Write the archive."""
        library = shared_library(self.root / "libcudnn.so.8.6.0", "libcudnn.so.8")
        with tarfile.open(self.archive, "w:xz") as packed:
            packed.add(library, f"{TOP}/lib/{library.name}")
            header = tarfile.TarInfo(f"{TOP}/include/cudnn.h")
            header.size = 4
            packed.addfile(header, io.BytesIO(b"// 8"))

    def unpack(self, **more: str) -> None:
        """Unpack the archive beforehand."""
        artifact = {"file": self.archive.name, "checksum": sha256(self.archive), **FOLDERS, **more}
        runfile = str(self.artifacts / "cuda.run")
        with cudnn_archive.meanwhile(str(self.toolkit), runfile, [artifact]):
            pass

    def install(self, **more: Any) -> dict[str, Any]:
        """Run cuDNN's module."""
        arguments = {
            "version": "8.6.0.163",
            "major": 8,
            "toolkit": "11.8",
            "path": self.toolkit,
            "archive": self.archive,
            "checksum": sha256(self.archive),
            "state_dir": self.root / "state",
            **FOLDERS,
        }
        return self.run(self.module, **{**arguments, **more})


@pytest.fixture
def bench(tmp_path: Path, run: Run) -> Bench:
    return Bench(tmp_path, run)


def test_what_was_unpacked_beforehand_is_moved_in(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.unpack()
    inode = bench.library.stat().st_ino
    monkeypatch.setattr(bench.module, "unpack", None)  # not once more
    answer = bench.install()
    assert (answer["state"], answer["changed"]) == ("absent", True)
    assert (bench.toolkit / "lib64/libcudnn.so.8.6.0").stat().st_ino == inode
    assert (bench.toolkit / "include/cudnn.h").read_text() == "// 8"
    assert not bench.unpacked.exists()
    receipt = json.loads((bench.root / "state/receipts/cudnn-11.8-8.json").read_text())
    checksum = sha256(bench.archive).partition(":")[2]
    assert receipt["source"] == {"file": bench.archive.name, "sha256": checksum}
    assert not bench.install()["changed"]


def record(bench: Bench, **more: Any) -> None:
    """Change what is recorded of the archive that was unpacked."""
    file = bench.unpacked / cudnn_archive.WHOLE
    file.write_text(json.dumps({**json.loads(file.read_text()), **more}))


def of_another_boot(bench: Bench) -> None:
    record(bench, boot_id="another")


def of_another_archive(bench: Bench) -> None:
    record(bench, source={"file": bench.archive.name, "sha256": "0" * 64})


def other_directories(bench: Bench) -> None:
    record(bench, wanted=[f"{TOP}/include", f"{TOP}/lib64"])


def half_done(bench: Bench) -> None:
    (bench.unpacked / cudnn_archive.WHOLE).unlink()


def damaged(bench: Bench) -> None:
    (bench.unpacked / cudnn_archive.WHOLE).write_text("{")


def open_to_others(bench: Bench) -> None:
    bench.unpacked.chmod(0o711)


def of_somebody(bench: Bench) -> None:
    os.chown(bench.unpacked, 1000, 1000)


def a_link(bench: Bench) -> None:
    bench.unpacked.rename(bench.root / "elsewhere")
    bench.unpacked.symlink_to(bench.root / "elsewhere")


SPOILT = [
    of_another_boot,
    of_another_archive,
    other_directories,
    half_done,
    damaged,
    open_to_others,
    of_somebody,
    a_link,
]


@pytest.mark.parametrize("spoil", SPOILT)
def test_what_is_not_whole_or_not_roots_alone_is_unpacked_again(
    bench: Bench, spoil: Callable[[Bench], None]
) -> None:
    bench.unpack()
    bench.library.write_bytes(b"not the archive's")
    spoil(bench)
    assert bench.install()["changed"]
    assert (bench.toolkit / "lib64/libcudnn.so.8.6.0").read_bytes().startswith(b"\x7fELF")
    assert not os.path.lexists(bench.unpacked)


def without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_archive, "has_room", lambda *_: False)


def on_another_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_archive, "same_filesystem", lambda *_: False)


@pytest.mark.parametrize("where", [without_room, on_another_file_system])
def test_nothing_is_unpacked_beforehand(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: Callable[[pytest.MonkeyPatch], None]
) -> None:
    where(monkeypatch)
    bench.unpack()
    assert not bench.unpacked.exists()
    assert bench.install()["changed"]


def test_nothing_is_written_where_another_account_could_lead_it_elsewhere(bench: Bench) -> None:
    bench.artifacts.chmod(0o777)
    bench.unpack()
    assert not bench.unpacked.exists()


@pytest.mark.parametrize(
    "more",
    [
        {"checksum": "sha256:" + "0" * 64},
        {"file": "absent.tar.xz"},
        {"lib_dir": f"{TOP}/lib64"},
    ],
)
def test_what_cannot_be_unpacked_leaves_nothing_and_the_installation_does_it(
    bench: Bench, more: dict[str, str]
) -> None:
    bench.unpack(**more)
    assert not bench.unpacked.exists()
    assert bench.install()["changed"]


def test_a_truncated_archive_is_named_by_the_installation(bench: Bench) -> None:
    whole = sha256(bench.archive)
    bench.archive.write_bytes(bench.archive.read_bytes()[:-40])
    bench.unpack(checksum=whole)
    assert not bench.unpacked.exists()
    assert "truncated or was replaced" in bench.install(checksum=whole)["msg"]


def test_where_the_installer_fails_unpacking_ends_and_leaves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, goes_on, read = threading.Event(), threading.Event(), cudnn_archive.Stoppable.read

    def slow(stream: Any, size: int = -1) -> bytes:
        reading.set()
        assert goes_on.wait(30)
        data: bytes = read(stream, size)
        return data

    monkeypatch.setattr(cudnn_archive.Stoppable, "read", slow)
    artifact = {"file": bench.archive.name, "checksum": sha256(bench.archive), **FOLDERS}
    runfile = str(bench.artifacts / "cuda.run")
    with (
        pytest.raises(RuntimeError, match="the installer failed"),
        cudnn_archive.meanwhile(str(bench.toolkit), runfile, [artifact]),
    ):
        assert reading.wait(30)
        # Let go after the installer has failed.
        threading.Timer(0.1, goes_on.set).start()
        raise RuntimeError("the installer failed")
    assert not bench.unpacked.exists()


def test_what_was_unpacked_for_another_toolkit_is_left(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.unpack()
    monkeypatch.setattr(cudnn_archive, "unpack", None)
    bench.unpack()
    assert bench.library.exists()


def test_the_end_of_a_run_removes_what_nobody_needed(bench: Bench) -> None:
    bench.unpack()
    arguments = {"directory": bench.artifacts, "files": [], "state_dir": bench.root / "state"}
    answer = bench.run(bench.cleanup, **arguments)
    assert answer["removed"] == [str(bench.unpacked)]
    assert bench.archive.exists()
    assert not bench.run(bench.cleanup, **arguments)["changed"]
