"""cuDNN's module: real files renamed in, links made from SONAMEs, several majors, no escape."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.ansible_modules import Run, load, sha256, tree
from tests.support.elf_file import shared_library

TOP = "cudnn-linux-x86_64-8.6.0.163_cuda11-archive"


class Bench:
    """A toolkit's tree and an archive as NVIDIA packs it."""

    def __init__(self, root: Path, module: ModuleType, run: Run) -> None:
        self.root, self.module, self.run = root, module, run
        self.path, self.state = root / "cuda-11.8", root / "state"
        self.lib = self.path / "targets" / "lib"
        self.include = self.path / "targets" / "include"
        for folder in (self.lib, self.include):
            folder.mkdir(parents=True)
        (self.path / "lib64").symlink_to("targets/lib")
        (self.path / "include").symlink_to("targets/include")
        (self.lib / "libcudart.so.11.8.89").write_text("the toolkit's own")

    def archive(self, version: str = "8.6.0", **extra: tarfile.TarInfo) -> Path:
        """Pack an archive of a version; ``extra`` members are added as they are."""
        major = version.split(".", maxsplit=1)[0]
        source = self.root / f"source-{version}"
        for stem in ("libcudnn", "libcudnn_ops_infer"):
            shared_library(source / "lib" / f"{stem}.so.{version}", f"{stem}.so.{major}")
            for link, target in (
                (f"{stem}.so.{major}", f"{stem}.so.{version}"),
                (f"{stem}.so", f"{stem}.so.{major}"),
            ):
                (source / "lib" / link).symlink_to(target)
        (source / "lib" / "libcudnn_static.a").write_text("static")
        (source / "include").mkdir()
        (source / "include" / "cudnn.h").write_text(f"// {version}")
        (source / "include" / "cudnn.h").chmod(0o600)
        path = self.root / f"cudnn-{version}.tar.xz"
        with tarfile.open(path, "w:xz") as packed:
            packed.add(source, TOP)
            for member in extra.values():
                packed.addfile(member, io.BytesIO(b""))
        return path

    def install(self, archive: Path, check: bool = False, **more: Any) -> dict[str, Any]:
        """Run the module."""
        arguments = {
            "version": "8.6.0.163",
            "major": 8,
            "toolkit": "11.8",
            "path": self.path,
            "archive": archive,
            "checksum": sha256(archive),
            "include_dir": f"{TOP}/include",
            "lib_dir": f"{TOP}/lib",
            "state_dir": self.state,
        }
        return self.run(self.module, check, **{**arguments, **more})

    def manifest(self, name: str = "cudnn-11.8-8") -> set[str]:
        """The paths of a receipt."""
        receipt = json.loads((self.state / "receipts" / f"{name}.json").read_text())
        return {entry["path"] for entry in receipt["manifest"]}


@pytest.fixture
def bench(tmp_path: Path, run: Run) -> Bench:
    return Bench(tmp_path, load("gpu_cudnn_archive"), run)


def test_libraries_stand_under_their_full_name_with_a_link_for_each_soname(bench: Bench) -> None:
    answer = bench.install(bench.archive())
    assert (answer["changed"], answer["state"]) == (True, "absent")
    lib = bench.lib
    assert (lib / "libcudnn.so").readlink() == Path("libcudnn.so.8")
    assert (lib / "libcudnn.so.8").readlink() == Path("libcudnn.so.8.6.0")
    assert not (lib / "libcudnn.so.8.6.0").is_symlink()
    assert (lib / "libcudnn_ops_infer.so.8").readlink() == Path("libcudnn_ops_infer.so.8.6.0")
    assert (bench.include / "cudnn.h").read_text() == "// 8.6.0"


def test_everybody_may_read_what_was_installed(bench: Bench) -> None:
    bench.install(bench.archive())
    modes = {name: (bench.path / name).stat().st_mode & 0o777 for name in bench.manifest()}
    assert modes["targets/include/cudnn.h"] == 0o644
    assert all(mode & 0o444 == 0o444 for mode in modes.values())


def test_the_receipt_lists_cudnn_and_nothing_of_the_toolkit(bench: Bench) -> None:
    bench.install(bench.archive())
    assert "targets/lib/libcudnn.so.8" in bench.manifest()
    assert "targets/lib/libcudart.so.11.8.89" not in bench.manifest()
    assert bench.manifest() | {"targets/lib/libcudart.so.11.8.89"} == {
        name for name in tree(bench.path) if name not in ("lib64", "include")
    }


def test_a_second_run_changes_nothing(bench: Bench) -> None:
    archive = bench.archive()
    bench.install(archive)
    before = tree(bench.root)
    assert not bench.install(archive)["changed"]
    assert tree(bench.root) == before


def test_check_mode_changes_nothing(bench: Bench) -> None:
    archive = bench.archive()
    before = tree(bench.root)
    assert bench.install(archive, check=True)["changed"]
    assert tree(bench.root) == before


@pytest.mark.parametrize("damage", ["link removed", "link copied", "library truncated"])
def test_repairs(bench: Bench, damage: str) -> None:
    archive = bench.archive()
    bench.install(archive)
    before = tree(bench.path)
    link, library = bench.lib / "libcudnn.so.8", bench.lib / "libcudnn.so.8.6.0"
    if damage == "library truncated":
        library.write_bytes(library.read_bytes()[:70])
    else:
        link.unlink()
        if damage == "link copied":
            link.write_bytes(library.read_bytes())
    answer = bench.install(archive)
    assert (answer["changed"], answer["state"]) == (True, "changed")
    assert tree(bench.path) == before


def test_an_upgrade_leaves_nothing_of_the_version_before(bench: Bench) -> None:
    bench.install(bench.archive())
    answer = bench.install(bench.archive("8.7.0"), version="8.7.0.84")
    assert "8.6.0.163 is installed, 8.7.0.84 is declared" in answer["because"]
    assert not [name for name in tree(bench.path) if "8.6.0" in name]
    assert (bench.lib / "libcudnn.so.8").readlink() == Path("libcudnn.so.8.7.0")


def test_a_killed_upgrade_that_is_declared_no_longer_leaves_nothing_of_it(bench: Bench) -> None:
    archive = bench.archive()
    bench.install(archive)
    before = tree(bench.path)
    shared_library(bench.lib / "libcudnn.so.8.7.0", "libcudnn.so.8")
    (bench.state / "journal" / "cudnn-11.8-8.json").write_text(
        json.dumps({"fresh": False, "started": "x", "state": "installing", "version": "8.7.0.84"})
    )
    assert bench.install(archive)["state"] == "half-installed"
    assert tree(bench.path) == before


def test_two_majors_share_a_toolkit_and_the_default_has_header_and_bare_link(bench: Bench) -> None:
    bench.install(bench.archive())
    bench.install(bench.archive("7.6.5"), version="7.6.5.32", major=7, default=False)
    assert (bench.lib / "libcudnn.so.7").readlink() == Path("libcudnn.so.7.6.5")
    assert (bench.lib / "libcudnn.so").readlink() == Path("libcudnn.so.8")
    assert (bench.include / "cudnn.h").read_text() == "// 8.6.0"
    assert not bench.install(bench.root / "cudnn-8.6.0.tar.xz")["changed"]


def test_the_default_moves_to_another_major_and_back(bench: Bench) -> None:
    eight, seven = bench.archive(), bench.archive("7.6.5")
    old = {"version": "7.6.5.32", "major": 7}
    bench.install(eight)
    bench.install(seven, default=False, **old)

    bench.install(eight, default=False)
    answer = bench.install(seven, default=True, **old)
    assert answer["because"] == "default is False, declared is True"
    assert (bench.lib / "libcudnn.so").readlink() == Path("libcudnn.so.7")
    assert (bench.include / "cudnn.h").read_text() == "// 7.6.5"
    assert not bench.install(eight, default=False)["changed"]

    # In the wrong order, too, nothing of the other is lost.
    bench.install(eight, default=True)
    assert "targets/include/cudnn.h" not in bench.manifest("cudnn-11.8-7")
    bench.install(seven, default=False, **old)
    assert (bench.include / "cudnn.h").read_text() == "// 8.6.0"
    assert not bench.install(eight, default=True)["changed"]


def test_a_toolkit_that_is_declared_elsewhere_is_refused(bench: Bench) -> None:
    archive = bench.archive()
    bench.install(archive)
    bench.path.rename(bench.root / "moved")
    answer = bench.install(archive, path=bench.root / "moved")
    assert answer["failed"]
    assert f"is installed in {bench.path}, but declared in {bench.root}/moved" in answer["msg"]


def test_libraries_of_unknown_origin_are_refused(bench: Bench) -> None:
    (bench.lib / "libcudnn.so.8.5.0").write_text("theirs")
    before = tree(bench.path)
    answer = bench.install(bench.archive())
    assert answer["failed"]
    assert "was not installed by gpufleet" in answer["msg"]
    assert tree(bench.path) == before


def test_a_killed_run_is_finished_also_for_another_version(bench: Bench) -> None:
    bench.install(bench.archive())
    (bench.state / "receipts" / "cudnn-11.8-8.json").unlink()
    (bench.state / "journal" / "cudnn-11.8-8.json").write_text(
        json.dumps({"fresh": True, "started": "2026-01-01T00:00:00Z"})
    )
    assert bench.install(bench.archive("8.7.0"), version="8.7.0.84")["state"] == "half-installed"
    assert not [name for name in tree(bench.path) if "8.6.0" in name]
    assert not list((bench.state / "journal").iterdir())


def outside(kind: str) -> tarfile.TarInfo:
    """An archive member that would leave the archive's tree."""
    if kind == "path":
        return tarfile.TarInfo(f"{TOP}/lib/../../../../evil")
    member = tarfile.TarInfo(f"{TOP}/lib/libevil.so")
    member.type = tarfile.SYMTYPE if kind == "link" else tarfile.FIFOTYPE
    member.linkname = "../../../../etc/passwd" if kind == "link" else ""
    return member


@pytest.mark.parametrize(
    ("kind", "reported"),
    [("path", "outside of its own tree"), ("link", "leads out of it"), ("fifo", "no plain file")],
)
def test_an_archive_that_would_escape_is_refused(bench: Bench, kind: str, reported: str) -> None:
    answer = bench.install(bench.archive(evil=outside(kind)))
    assert answer["failed"]
    assert reported in answer["msg"]
    assert not (bench.lib / "libcudnn.so.8.6.0").exists()


def test_a_login_page_saved_as_an_archive_is_refused(bench: Bench) -> None:
    page = bench.root / "page.tar.xz"
    page.write_text("<html>Please log in</html>")
    answer = bench.install(page)
    assert answer["failed"]
    assert "cannot be unpacked" in answer["msg"]


def test_a_wrong_checksum_is_refused_before_anything_changes(bench: Bench) -> None:
    archive = bench.archive()
    before = tree(bench.path)
    answer = bench.install(archive, checksum="sha256:" + "0" * 64)
    assert answer["failed"]
    assert tree(bench.path) == before
    assert not (bench.state / "journal").exists()


@pytest.mark.parametrize("repair", ["contents", "reinstall", "recreate"])
def test_a_library_of_the_same_size_and_time_is_restored(bench: Bench, repair: str) -> None:
    """Bit rot: provision compared sizes and times, and had nothing to do."""
    archive = bench.archive()
    bench.install(archive)
    library = bench.lib / "libcudnn.so.8.6.0"
    right, state = library.read_bytes(), library.stat()
    library.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    os.utime(library, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert not bench.install(archive)["changed"]
    assert bench.install(archive, repair=repair)["changed"]
    assert library.read_bytes() == right
    assert not bench.install(archive, repair="contents")["changed"]
    assert (bench.lib / "libcudart.so.11.8.89").read_text() == "the toolkit's own"


def test_what_is_in_the_place_of_its_files_is_set_aside(bench: Bench) -> None:
    archive = bench.archive()
    bench.install(archive)
    for name in ("libcudnn.so.8.6.0", "libcudnn.so.8"):
        (bench.lib / name).unlink()
        (bench.lib / name).mkdir()
        (bench.lib / name / "theirs").write_text("precious")
    (bench.lib / "libcudnn_extra.so.8").write_text("theirs")
    assert bench.install(archive, repair="recreate")["changed"]
    assert not bench.install(archive, repair="contents")["changed"]
    kept = {path.name for path in bench.state.glob("set-aside/**/*") if path.is_file()}
    assert kept == {"theirs", "libcudnn_extra.so.8"}


@pytest.mark.parametrize("text", ["", "{", '{"schema": 1, "manifest": []}'])
def test_a_damaged_receipt_is_written_again(bench: Bench, text: str) -> None:
    archive = bench.archive()
    bench.install(archive)
    before = bench.manifest()
    (bench.state / "receipts" / "cudnn-11.8-8.json").write_text(text)
    assert bench.install(archive)["changed"]
    assert bench.manifest() == before
    assert not bench.install(archive)["changed"]
