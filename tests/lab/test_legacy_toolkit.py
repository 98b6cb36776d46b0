"""CUDA 8.0, its patch and its cuDNN: the layout and the installers' manners of that time."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import legacy_toolkit
from tests.support.lab_artifacts import DESCRIBED, make, with_gcc

Run = Callable[..., "subprocess.CompletedProcess[str]"]
BASE, PATCH = "cuda_8.0.61_375.26_linux-run", "cuda_8.0.61.2_linux-run"


@pytest.fixture(scope="module")
def runfiles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    for program in ("makeself", "perl"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed on this machine")
    work = tmp_path_factory.mktemp("legacy")
    return {name: make(name, work / name) for name in (BASE, PATCH)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def run(runfiles: dict[str, Path], tmp_path: Path, root: Path) -> Run:
    def act(name: str, *options: str, gcc: str = "12.2.0", **environment: str):  # type: ignore[no-untyped-def]
        return subprocess.run(
            ["sh", str(runfiles[name]), *options],
            capture_output=True,
            text=True,
            check=False,
            env={
                "PATH": with_gcc(tmp_path / "bin", gcc),
                "STAND_IN_ROOT": str(root),
                "TMPDIR": str(tmp_path),
                "PERL5LIB": ".",
                **environment,
            },
        )

    return act


@pytest.fixture
def tree(run: Run, tmp_path: Path) -> Path:
    path = tmp_path / "cuda-8.0"
    done = run(BASE, "--silent", "--toolkit", f"--toolkitpath={path}", "--override")
    assert done.returncode == 0, done.stderr
    return path


def test_a_compiler_too_new_is_refused_in_nvidias_words(run: Run, root: Path) -> None:
    done = run(BASE, "--silent", "--toolkit", gcc="5.4.0")
    assert done.returncode == 0, done.stdout
    shutil.rmtree(root)
    done = run(BASE, "--silent", "--toolkit")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "Error: unsupported compiler: 12.2.0. Use --override to override this check."
    )
    assert "Toolkit:  Installation Failed. Using unsupported Compiler." in lines
    log = lines[-1].removeprefix("Logfile is ")
    assert Path(log).parent == root / "tmp"
    assert Path(log).read_text() == done.stdout
    assert not (root / "usr").exists()


def test_newer_perls_do_not_find_its_module(run: Run) -> None:
    done = run(BASE, "--silent", "--toolkit", "--override", PERL5LIB="")
    assert done.returncode != 0
    assert "Can't locate InstallUtils.pm in @INC" in done.stderr


@pytest.mark.parametrize("option", ["--no-man-page", "--installpath=/x", "--defaultroot=/x"])
def test_options_of_a_later_time_are_refused(run: Run, option: str) -> None:
    done = run(BASE, "--silent", "--toolkit", "--override", option)
    assert done.returncode != 0
    name = option.lstrip("-").partition("=")[0]
    assert f"Unknown option: {name}" in done.stderr


def test_one_dash_is_enough(run: Run, root: Path) -> None:
    done = run(BASE, "-silent", "-toolkit", "-override")
    assert done.returncode == 0, done.stderr
    assert "Toolkit:  Installed in " in done.stdout
    path = root / "usr/local/cuda-8.0"
    assert (path / "version.txt").read_text() == "CUDA Version 8.0.61\n"
    if os.getuid() == 0:
        assert (root / "usr/local/cuda").readlink() == path
    subprocess.run([path / "bin/uninstall_cuda_8.0.pl"], check=True)
    assert not path.exists()
    assert not (root / "usr/local/cuda").is_symlink()


def test_nothing_selected_is_refused(run: Run) -> None:
    assert "nothing was selected" in run(BASE, "--silent").stderr
    assert "only --silent" in run(BASE, "--toolkit").stderr
    assert run(BASE, "--help").returncode == 0


def test_the_tree_of_that_time(tree: Path) -> None:
    assert (tree / "lib64").readlink() == Path("targets/x86_64-linux/lib")
    assert (tree / "lib64/libcudart.so.8.0").readlink() == Path("libcudart.so.8.0.61")
    assert (tree / "extras/CUPTI/lib64/libcupti.so.8.0").exists()
    assert "#define CUDA_VERSION 8000" in (tree / "include/cuda.h").read_text()
    assert "gcc versions later than 5" in (tree / "include/host_config.h").read_text()
    assert not (tree / "version.json").exists()
    nvcc = subprocess.run([tree / "bin/nvcc", "--version"], capture_output=True, check=True)
    assert b"release 8.0, V8.0.61" in nvcc.stdout
    driver = ctypes.CDLL(str(tree / "lib64/stubs/libcuda.so"))
    assert driver.cuInit(0) == 100
    for name in DESCRIBED[BASE]["libraries"]:
        assert ctypes.CDLL(str(next(tree.rglob(f"{name}.so.8.0"))))._handle


def test_the_patch_replaces_a_library_and_is_noted_once(run: Run, tree: Path) -> None:
    for installdir in ([f"--installdir={tree}"], ["--installdir", str(tree)]):
        done = run(PATCH, "--silent", "--accept-eula", *installdir, PERL5LIB="")
        assert done.returncode == 0, done.stderr
        assert done.stdout == (
            "Welcome to the CUDA Patcher.\nInstallation complete!\n"
            f"Installation directory: {tree}\n"
        )
    assert (tree / "lib64/libcublas.so.8.0").readlink() == Path("libcublas.so.8.0.88")
    assert (tree / "version.txt").read_text() == (
        "CUDA Version 8.0.61\nCUDA Patch Version 8.0.61.2\n"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--silent", "--accept-eula"), "no installation of CUDA 8.0 was found"),
        (("--silent",), "only --silent --accept-eula"),
        (("--silent", "--accept-eula", "--toolkit"), "Unknown option: toolkit"),
    ],
)
def test_the_patch_refuses(run: Run, root: Path, options: tuple[str, ...], words: str) -> None:
    done = run(PATCH, *options)
    assert done.returncode != 0
    assert words in done.stderr
    assert not (root / "usr").exists()


def test_the_patch_refuses_another_release(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "cuda"
    other.mkdir()
    (other / "version.txt").write_text("CUDA Version 9.0.176\n")
    done = run(PATCH, "--silent", "--accept-eula", f"--installdir={other}")
    assert "no installation of CUDA 8.0 was found" in done.stderr
    assert list(other.iterdir()) == [other / "version.txt"]


@pytest.mark.parametrize(
    ("file", "version", "number"),
    [
        ("cudnn-8.0-linux-x64-v5.1.tgz", "5.1.10", 5110),
        ("cudnn-8.0-linux-x64-v6.0.tgz", "6.0.21", 6021),
    ],
)
def test_cudnn_archives(file: str, version: str, number: int, tmp_path: Path) -> None:
    one, two = make(file, tmp_path / "one"), make(file, tmp_path / "two")
    assert one.read_bytes() == two.read_bytes()
    subprocess.run(["tar", "-C", tmp_path, "-xzf", one], check=True)
    lib = tmp_path / "cuda/lib64"
    major = version[0]
    assert (lib / "libcudnn.so").readlink() == Path(f"libcudnn.so.{major}")
    assert (lib / f"libcudnn.so.{major}").readlink() == Path(f"libcudnn.so.{version}")
    assert (lib / "libcudnn_static.a").read_bytes() == legacy_toolkit.EMPTY_ARCHIVE
    header = (tmp_path / "cuda/include/cudnn.h").read_text().split()
    for name, value in zip(("MAJOR", "MINOR", "PATCHLEVEL"), version.split("."), strict=True):
        assert header[header.index(f"CUDNN_{name}") + 1] == value
    assert ctypes.CDLL(str(lib / f"libcudnn.so.{major}")).cudnnGetVersion() == number
