"""Only what is asked for is made, once, and the catalogue says what is there."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from gpufleet.components import resolver
from lab import artifacts, elf, files, libraries, wheels
from lab.errors import LabError
from lab.progress import Progress
from lab.settings import Lab
from tests.support.lab_command import ROOT, call

EXPECTED_FILES = {
    "cuda_8.0.61_375.26_linux-run",
    "cuda_8.0.61.2_linux-run",
    "cudnn-8.0-linux-x64-v5.1.tgz",
    "cudnn-8.0-linux-x64-v6.0.tgz",
}
needs_makeself = pytest.mark.skipif(
    shutil.which("makeself") is None, reason="makeself is not installed on this machine"
)


def plan(release: str) -> dict[str, list[dict[str, str]]]:
    declared = {"gpu_stacks": [{"tensorflow": release}], "gpu_accept_nvidia_eula": True}
    made: dict[str, list[dict[str, str]]] = resolver.resolve(declared)
    return made


@pytest.mark.parametrize("release", ["1.0.0", "1.4.0", "2.13.1", "2.16.2", "2.17.1", "2.18.1"])
def test_a_stand_in_has_the_name_that_the_plan_has(release: str) -> None:
    planned = plan(release)
    (toolkit,) = planned["toolkits"]
    wanted = {item["file"] for item in planned["artifacts"]}
    described = {entry["file"]: entry for entry in artifacts.chosen([toolkit["short"]])}
    assert wanted <= described.keys()
    entry = described[planned["toolkits"][0]["artifact"]["file"]]  # type: ignore[index]
    assert entry["gcc_max"] == toolkit["gcc_max"]
    assert entry["version"].startswith(toolkit["short"])


def test_the_usual_ones_are_those_of_11_8() -> None:
    assert [entry["file"] for entry in artifacts.chosen(artifacts.DEFAULT_RELEASES)] == [
        "cuda_11.8.0_520.61.05_linux.run",
        "cudnn-linux-x86_64-8.6.0.163_cuda11-archive.tar.xz",
    ]
    assert artifacts.chosen(None) == artifacts.described()


def test_what_no_release_needs_is_made_by_its_name_only() -> None:
    name = "cudnn-linux-x86_64-8.7.0.84_cuda11-archive.tar.xz"
    assert [entry["file"] for entry in artifacts.named([name, name])] == [name]
    with pytest.raises(LabError, match=r"no stand-in for theirs\.run") as caught:
        artifacts.named(["theirs.run"])
    assert name in caught.value.remedy


def test_an_unknown_release_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LabError, match=r"no stand-in for CUDA 7\.5") as caught:
        artifacts.chosen(["8.0", "7.5"])
    assert "8.0, 11.8, 12.3, 12.5" in caught.value.remedy
    done = call("artifacts", "--cuda", "7.5")
    assert done.returncode == 1
    assert "remedy: It has 8.0" in done.stderr


@needs_makeself
def test_only_what_was_chosen_is_made_and_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    built = artifacts.ensure(lab, artifacts.chosen(["8.0"]), Progress())
    assert {item.file for item in built} == EXPECTED_FILES
    catalogue = json.loads((lab.artifacts / "catalogue.json").read_text())
    assert catalogue.keys() == EXPECTED_FILES
    for item in built:
        assert catalogue[item.file] == {"sha256": item.sha256, "size_bytes": item.size_bytes}
        assert files.sha256(item.path) == item.sha256

    def refuse(*_: object) -> None:
        pytest.fail("what is there was made again")

    monkeypatch.setattr(artifacts, "_build", refuse)
    assert artifacts.ensure(lab, artifacts.chosen(["8.0"]), Progress()) == built


@needs_makeself
def test_what_was_damaged_or_lost_is_made_again(lab: Lab) -> None:
    wanted = artifacts.chosen(["8.0"])
    before = artifacts.ensure(lab, wanted, Progress())
    before[0].path.write_text("damaged")
    before[1].path.unlink()
    assert artifacts.ensure(lab, wanted, Progress()) == before
    assert files.sha256(before[0].path) == before[0].sha256


@needs_makeself
def test_the_catalogue_forgets_what_is_gone(lab: Lab) -> None:
    made = artifacts.ensure(lab, artifacts.chosen(["8.0"]), Progress())
    made[0].path.unlink()
    artifacts.ensure(lab, artifacts.chosen(["8.0"])[1:], Progress())
    catalogue = json.loads((lab.artifacts / "catalogue.json").read_text())
    assert catalogue.keys() == EXPECTED_FILES - {made[0].file}


@pytest.mark.slow
@needs_makeself
@pytest.mark.parametrize("release", ["2.17.1", "2.18.1"])
def test_slim_libraries_of_12_can_be_loaded(release: str, tmp_path: Path) -> None:
    """Every library that TensorFlow asks for is in the stand-ins, under its SONAME."""
    planned = plan(release)
    toolkit, archive = (planned[kind][0] for kind in ("toolkits", "cudnn"))
    done = call("artifacts", "--json", "--cuda", toolkit["short"])
    assert done.returncode == 0, done.stderr
    paths = {item["file"]: item["path"] for item in json.loads(done.stdout)}
    tree = tmp_path / "cuda"
    runfile = paths[toolkit["artifact"]["file"]]  # type: ignore[index]
    subprocess.run(["sh", runfile, "--silent", f"--extract={tree}"], check=True)
    packed = archive["artifact"]["file"]  # type: ignore[index]
    subprocess.run(["tar", "-C", tmp_path, "-xf", paths[packed]], check=True)
    unpacked = tmp_path / archive["artifact"]["lib_dir"]  # type: ignore[index]
    output = json.loads((tree / "version.json").read_text())["cuda"]["version"]
    assert output == toolkit["version"]
    for soname in planned["stacks"][0]["sonames"]:
        place = unpacked if "cudnn" in soname else tree / "lib64"
        assert elf.soname(place / soname) == soname
        done = subprocess.run(
            [sys.executable, "-c", f"import ctypes; ctypes.CDLL({soname!r})"],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={"LD_LIBRARY_PATH": f"{tree}/lib64:{unpacked}"},
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_real_library_cut_to_one_architecture_keeps_everything_else(tmp_path: Path) -> None:
    """Its symbols and host code are the same bytes, and a program can call it."""
    mine = Lab.from_environment(os.environ)
    curand = wheels.pinned("nvidia-curand-cu11==10.3.0.86")
    wheels.fetch(mine, [curand], Progress())
    member = "nvidia/curand/lib/libcurand.so.10"
    with ZipFile(mine.wheels / curand.file) as archive:
        whole = libraries.place(archive, member, tmp_path / "whole", "10", libraries.ALL)
        cut = libraries.place(archive, member, tmp_path / "cut", "10", 90)
    assert cut.stat().st_size == whole.stat().st_size
    assert cut.stat().st_blocks < 0.6 * whole.stat().st_blocks

    kept = bytearray(whole.read_bytes())
    holes = list(elf.code_for_others(whole, 90))
    for at, size in holes:
        kept[at : at + size] = bytes(size)
    assert holes
    assert cut.read_bytes() == kept
    assert elf.soname(cut) == "libcurand.so.10"
    version = ctypes.c_int()
    assert ctypes.CDLL(str(cut)).curandGetVersion(ctypes.byref(version)) == 0
    assert version.value == 10300
