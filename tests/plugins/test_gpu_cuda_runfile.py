"""The toolkit's module: installs whole, leaves alone, repairs, finishes, refuses."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.ansible_modules import Run, load, sha256, tree
from tests.support.elf_file import shared_library

from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (  # isort: skip
    Installation,
    StateError,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.recreation import (  # isort: skip
    Recreation,
)

# What a runfile does, reduced to a shell script: options, log, refusals, tree, linker file.
RUNFILE = """#!/bin/sh
for word; do case $word in
  --toolkitpath=*) path=${{word#*=}} ;;
  --tmpdir=*) tmp=${{word#*=}} ;;
esac; done
[ -d "$tmp" ] || exit 3
echo "$@" >>{calls}
echo "[INFO]: Setup complete" >{log}
{before}
mkdir -p "$path/targets/lib" "$path/bin"
ln -sfn targets/lib "$path/lib64"
cp {library} "$path/lib64/libcudart.so.11.8.89"
ln -sf libcudart.so.11.8.89 "$path/lib64/libcudart.so.11.0"
echo '{{"cuda": {{"version": "11.8.0"}}}}' >"$path/version.json"
echo "$path/lib64" >{conf}/000_cuda.conf
{after}
"""


class Bench:
    """A toolkit's place below a temporary directory, and the runfile that goes there."""

    def __init__(self, root: Path, module: ModuleType, run: Run) -> None:
        self.root, self.module, self.run = root, module, run
        self.path, self.state = root / "local" / "cuda-11.8", root / "state"
        self.calls, self.log, self.conf = root / "calls", root / "log", root / "ld.so.conf.d"
        self.tmp, self.runfile = root / "tmp", root / "cuda_11.8.0_linux.run"
        for folder in (self.path.parent, self.conf, self.tmp):
            folder.mkdir()
        self.library = shared_library(root / "libcudart.so", "libcudart.so.11.0")
        self.write()

    def write(self, before: str = "", after: str = "") -> None:
        """Write the runfile, with lines to run before and after it installs."""
        names = {name: getattr(self, name) for name in ("calls", "log", "library", "conf")}
        self.runfile.write_text(RUNFILE.format(before=before, after=after, **names))

    def install(self, check: bool = False, **more: Any) -> dict[str, Any]:
        """Run the module."""
        arguments = {
            "version": "11.8.0",
            "short": "11.8",
            "path": self.path,
            "runfile": self.runfile,
            "checksum": sha256(self.runfile),
            "tmpdir": self.tmp,
            "state_dir": self.state,
        }
        return self.run(self.module, check, **{**arguments, **more})

    def receipt(self) -> dict[str, Any]:
        """The toolkit's receipt."""
        document: dict[str, Any] = json.loads(
            (self.state / "receipts" / "toolkit-11.8.json").read_text()
        )
        return document

    def journal(self, fresh: bool) -> None:
        """Leave what a killed run leaves."""
        self.install()
        (self.state / "receipts" / "toolkit-11.8.json").unlink()
        entry = {"fresh": fresh, "started": "2026-01-01T00:00:00Z", "linker_files": []}
        (self.state / "journal" / "toolkit-11.8.json").write_text(json.dumps(entry))


@pytest.fixture
def bench(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Bench:
    module = load("gpu_cuda_runfile")
    made = Bench(tmp_path, module, run)
    monkeypatch.setattr(module, "LOG", str(made.log))
    monkeypatch.setattr(module, "STALE_LOG", str(tmp_path / "stale.log"))
    monkeypatch.setattr(module, "LD_SO_CONF", str(made.conf))
    return made


def test_installs_with_a_receipt_that_lists_every_file(bench: Bench) -> None:
    answer = bench.install()
    assert answer["changed"]
    assert answer["state"] == "absent"
    listed = {entry["path"] for entry in bench.receipt()["manifest"]}
    assert listed == set(tree(bench.path))
    assert "targets/lib/libcudart.so.11.8.89" in listed
    assert not list((bench.state / "journal").iterdir())


def test_runs_the_installer_silently_in_a_directory_of_its_own(bench: Bench) -> None:
    bench.install()
    words = bench.calls.read_text().split()
    assert words[:4] == ["--silent", "--toolkit", f"--toolkitpath={bench.path}", "--override"]
    assert words[4] == f"--tmpdir={bench.tmp}/gpufleet-cuda-11.8"
    assert not list(bench.tmp.iterdir())


PATCH = """#!/bin/sh
echo "$@" >>{calls}
for word; do case $word in --installdir=*|--toolkitpath=*) path=${{word#*=}} ;; esac; done
echo patched >"$path/lib64/libcublas.so.8.0.88"
{after}
"""


def patches(bench: Bench, after: str = "") -> list[dict[str, str]]:
    """Two patches beside the runfile, as the module is told of them."""
    files = [bench.root / f"patch{number}" for number in (1, 2)]
    for file in files:
        file.write_text(PATCH.format(calls=bench.calls, after=after))
    return [{"file": file.name, "checksum": sha256(file)} for file in files]


def test_patches_are_applied_in_order_and_stand_in_the_receipt(bench: Bench) -> None:
    reported = patches(bench)
    bench.install(generation="perl", patches=reported)
    calls = bench.calls.read_text().splitlines()
    assert calls[0].startswith("--silent --toolkit ")
    assert calls[1:] == [f"--silent --accept-eula --installdir={bench.path}"] * 2
    assert bench.receipt()["patches"] == reported
    listed = {entry["path"] for entry in bench.receipt()["manifest"]}
    assert "targets/lib/libcublas.so.8.0.88" in listed
    assert not bench.install(generation="perl", patches=reported)["changed"]
    again = bench.install(generation="perl", patches=reported[:1])
    assert "patches is" in again["because"]


def test_patches_of_the_newer_installer_take_its_options(bench: Bench) -> None:
    bench.install(patches=patches(bench))
    calls = bench.calls.read_text().splitlines()
    assert calls[1] == calls[0]


def test_a_patch_that_fails_is_named_and_leaves_no_receipt(bench: Bench) -> None:
    answer = bench.install(generation="perl", patches=patches(bench, "echo Error: no; exit 1"))
    assert answer["failed"]
    assert "The installer of patch1 failed with status 1" in answer["msg"]
    assert not (bench.state / "receipts").exists()


def test_a_damaged_patch_is_refused_before_anything_is_installed(bench: Bench) -> None:
    (first, second) = patches(bench)
    answer = bench.install(patches=[first, {**second, "checksum": "sha256:00"}])
    assert answer["failed"]
    assert "patch2 has sha256" in answer["msg"]
    assert not bench.path.exists()


def test_a_second_run_changes_nothing_and_runs_nothing(bench: Bench) -> None:
    bench.install()
    before = tree(bench.root)
    answer = bench.install()
    assert (answer["changed"], answer["state"]) == (False, "installed")
    assert tree(bench.root) == before


def test_check_mode_says_what_it_would_do_and_does_nothing(bench: Bench) -> None:
    before = tree(bench.root)
    answer = bench.install(check=True, runfile=bench.root / "not-there.run")
    assert answer["changed"]
    assert "11.8.0" in answer["diff"]["after"]
    assert tree(bench.root) == before


def test_removes_what_the_installer_registers_by_itself(bench: Bench) -> None:
    (bench.conf / "site-cuda.conf").write_text("/opt/site\n")
    bench.write(after=f"echo /opt/other >{bench.conf}/other-cuda.conf")
    bench.install()
    assert {path.name for path in bench.conf.iterdir()} == {"site-cuda.conf", "other-cuda.conf"}


def test_refuses_a_tree_that_it_did_not_install(bench: Bench) -> None:
    bench.path.mkdir()
    (bench.path / "theirs").write_text("precious")
    answer = bench.install()
    assert answer["failed"]
    assert "was not installed by gpufleet" in answer["msg"]
    assert tree(bench.path) == {"theirs": b"precious".hex()}


@pytest.mark.parametrize("damage", ["missing", "truncated", "relinked"])
def test_repairs_what_is_no_longer_as_the_receipt_says(bench: Bench, damage: str) -> None:
    bench.install()
    before = tree(bench.path)
    library = bench.path / "targets/lib/libcudart.so.11.8.89"
    link = bench.path / "targets/lib/libcudart.so.11.0"
    if damage == "missing":
        library.unlink()
    elif damage == "truncated":
        library.write_bytes(library.read_bytes()[:50])
    else:
        link.unlink()
        link.symlink_to("nowhere")
    answer = bench.install()
    assert (answer["changed"], answer["state"]) == (True, "changed")
    assert "libcudart" in answer["because"]
    assert tree(bench.path) == before


def test_a_repair_leaves_what_people_added_and_does_not_claim_it(bench: Bench) -> None:
    bench.install()
    added = bench.path / "bin" / "mine"
    added.write_text("precious")
    bench.path.joinpath("version.json").unlink()
    # What the installer writes is told by its change time: let the clock pass the module's margin.
    let_age(added)
    bench.install()
    assert added.read_text() == "precious"
    assert "bin/mine" not in {entry["path"] for entry in bench.receipt()["manifest"]}


def test_what_a_killed_first_run_left_is_torn_down_and_done_again(bench: Bench) -> None:
    bench.journal(fresh=True)
    (bench.path / "half").write_text("written")
    answer = bench.install()
    assert (answer["changed"], answer["state"]) == (True, "half-installed")
    assert not (bench.path / "half").exists()
    assert not list((bench.state / "journal").iterdir())


def test_what_a_killed_repair_left_is_finished_in_place(bench: Bench) -> None:
    bench.journal(fresh=False)
    (bench.path / "theirs").write_text("precious")
    assert bench.install()["state"] == "half-installed"
    assert (bench.path / "theirs").exists()


def test_a_wrong_checksum_is_refused_before_anything_changes(bench: Bench) -> None:
    answer = bench.install(checksum="sha256:" + "0" * 64)
    assert answer["failed"]
    assert "0" * 64 + " is declared" in answer["msg"]
    assert not bench.path.exists()
    assert not bench.calls.exists()


def test_a_tmpdir_in_which_others_replace_files_is_refused(bench: Bench) -> None:
    bench.tmp.chmod(0o777)
    answer = bench.install()
    assert answer["failed"]
    assert "Other accounts can replace" in answer["msg"]
    assert not bench.calls.exists()
    # As /tmp is.
    bench.tmp.chmod(0o1777)
    assert bench.install()["changed"]


def test_what_somebody_prepared_under_the_name_of_our_directory_is_not_used(
    bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "precious").touch()
    (bench.tmp / "gpufleet-cuda-11.8").symlink_to(tmp_path / "theirs")
    assert bench.install()["changed"]
    assert [each.name for each in (tmp_path / "theirs").iterdir()] == ["precious"]


def test_a_tmpdir_from_which_nothing_runs_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a noexec mount: the kernel refuses to run the trial script.
    monkeypatch.setattr(bench.module.os, "chmod", lambda *_: None)
    answer = bench.install()
    assert answer["failed"]
    assert "mounted noexec" in answer["msg"]
    assert "gpu_tmpdir" in answer["msg"]
    assert not list(bench.tmp.iterdir())


@pytest.mark.parametrize(
    ("says", "status", "reported"),
    [
        (
            "echo ' Failed to verify gcc version. See log at x for details.'; exit 1",
            1,
            "Failed to verify gcc version",
        ),
        ("echo 'Extraction failed.'; exit 1", 1, "too little space"),
        ("echo 'Unexpected archive size.'; exit 2", 2, "The runfile is damaged"),
        ("echo '[ERROR]: Install of toolkit failed, quitting' >>{log}; exit 0", 0, "quitting"),
        ("exit 0", 0, "missing: version.json or version.txt, lib64/libcudart.so.*"),
    ],
)
def test_a_failed_installer_is_reported_in_its_words(
    bench: Bench, says: str, status: int, reported: str
) -> None:
    bench.write(before=says.format(log=bench.log))
    answer = bench.install()
    assert answer["failed"]
    assert reported in answer["msg"]
    assert f"status {status}" in answer["msg"]
    assert (bench.state / "journal" / "toolkit-11.8.json").exists()
    bench.write()
    assert bench.install()["state"] == "half-installed"
    assert not bench.install()["changed"]


def test_another_version_of_the_same_toolkit_replaces_it(bench: Bench) -> None:
    bench.install()
    stale = bench.path / "targets" / "lib" / "libcudart.so.11.8.99"
    stale.write_text("of 11.8.0 only")
    receipt = bench.receipt()
    receipt["manifest"].append(
        {"path": "targets/lib/libcudart.so.11.8.99", "type": "file"})  # fmt: skip
    (bench.state / "receipts" / "toolkit-11.8.json").write_text(json.dumps(receipt))
    answer = bench.install(version="11.8.1")
    assert not stale.exists()
    assert "11.8.0 is installed, 11.8.1 is declared" in answer["because"]
    assert bench.receipt()["version"] == "11.8.1"


LIBRARY = "targets/lib/libcudart.so.11.8.89"


def let_age(path: Path) -> None:
    """Until it is older than what an installer writes now; nothing can set this time."""
    while time.time() - path.lstat().st_ctime < 1.1:
        time.sleep(0.05)


def rot(path: Path) -> None:
    """Change a byte, and nothing that a directory listing shows."""
    state, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_a_library_of_the_same_size_and_time_is_restored_by_its_content(bench: Bench) -> None:
    """Bit rot: a circle between a check that said provision and a run that had nothing to do."""
    bench.install()
    library = bench.path / LIBRARY
    rot(library)
    assert not bench.install()["changed"]
    shown = bench.install(check=True, repair="contents")
    assert f"{LIBRARY}: sha256" in shown["because"]
    assert f"{LIBRARY}: sha256" in shown["diff"]["before"]
    assert bench.install(repair="contents")["changed"]
    assert library.read_bytes() == bench.library.read_bytes()
    assert not bench.install(repair="contents")["changed"]


@pytest.mark.parametrize("repair", ["reinstall", "recreate"])
def test_a_repair_leaves_alone_what_others_have_in_the_tree(bench: Bench, repair: str) -> None:
    bench.install()
    (bench.path / "lib64" / "libnccl.so.2").write_text("theirs")
    (bench.path / "bin" / "own").symlink_to("nowhere")
    before = {row["path"] for row in bench.receipt()["manifest"]}
    let_age(bench.path / "bin" / "own")
    answer = bench.install(repair=repair)
    assert answer["changed"], answer
    assert (bench.path / "lib64" / "libnccl.so.2").read_text() == "theirs"
    assert (bench.path / "bin" / "own").is_symlink()
    assert {row["path"] for row in bench.receipt()["manifest"]} == before
    assert not list(bench.path.parent.glob(".gpufleet-*"))
    assert not bench.install()["changed"]


def test_a_tree_that_no_installer_can_write_to_is_recreated(bench: Bench) -> None:
    bench.install()
    shutil.rmtree(bench.path / "targets")
    (bench.path / "targets").write_text("a file in the place of a directory")
    assert bench.install(repair="recreate")["changed"]
    assert not bench.install(repair="contents")["changed"]


def test_a_directory_in_the_place_of_a_file_is_set_aside(bench: Bench) -> None:
    bench.install()
    (bench.path / "version.json").unlink()
    (bench.path / "version.json").mkdir()
    (bench.path / "version.json" / "theirs").write_text("precious")
    assert bench.install()["changed"]
    assert not bench.install()["changed"]
    assert [path.read_text() for path in bench.state.glob("set-aside/**/theirs")] == ["precious"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"schema": 1, "manifest": []}', "directory"]
)
def test_a_damaged_receipt_is_written_again_and_keeps_nothing_waiting(
    bench: Bench, text: str
) -> None:
    """It was refused as a tree of unknown origin, and any other module failed with it."""
    bench.install()
    path = bench.state / "receipts" / "toolkit-11.8.json"
    before = bench.receipt()["manifest"]
    path.unlink()
    path.mkdir() if text == "directory" else path.write_text(text)
    other = bench.run(bench.module, True, version="12.4.1", short="12.4", path=bench.root / "12.4",
                      runfile=bench.runfile, checksum="sha256:0", tmpdir=bench.tmp,
                      state_dir=bench.state)  # fmt: skip
    assert other["state"] == "absent", other
    assert bench.install()["changed"]
    assert [row["path"] for row in bench.receipt()["manifest"]] == [row["path"] for row in before]
    assert not bench.install()["changed"]


def test_a_lost_receipt_is_written_again_where_the_plan_says_that_the_tree_is_ours(
    bench: Bench,
) -> None:
    bench.install()
    shutil.rmtree(bench.state / "receipts")
    (bench.state / "receipts").write_text("not even a directory")
    assert "not installed by gpufleet" in bench.install()["msg"]
    assert bench.install(repair="reinstall")["changed"]
    assert not bench.install()["changed"]


@pytest.mark.parametrize("moment", ["commands", "run_installer", "put_back", "finish", "receipt"])
def test_a_recreation_that_is_killed_is_finished_by_the_next_run(
    bench: Bench, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.install()
    (bench.path / "lib64" / "libnccl.so.2").write_text("theirs")

    def killed(*_: Any, **__: Any) -> None:
        raise StateError("killed")

    place: Any = {"put_back": Recreation, "finish": Recreation, "receipt": Installation}.get(
        moment, bench.module
    )
    monkeypatch.setattr(place, "finish" if moment == "receipt" else moment, killed)
    assert bench.install(repair="recreate")["failed"]
    monkeypatch.undo()
    for name in ("LOG", "STALE_LOG"):
        monkeypatch.setattr(bench.module, name, str(bench.log))
    monkeypatch.setattr(bench.module, "LD_SO_CONF", str(bench.conf))
    if moment == "receipt":
        let_age(bench.path / "lib64" / "libnccl.so.2")
    answer = bench.install()
    assert answer["state"] == "half-installed", answer
    assert (bench.path / "lib64" / "libnccl.so.2").read_text() == "theirs"
    assert "libnccl" not in json.dumps(bench.receipt())
    assert not list(bench.path.parent.glob(".gpufleet-*"))
    assert not bench.install(repair="contents")["changed"]
