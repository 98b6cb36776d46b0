"""The stand-in runfile behaves as NVIDIA's: same options, same refusals, same traces."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import runfile
from lab.errors import LabError
from tests.support.lab_artifacts import TOOLKIT, pack_small, with_gcc

Install = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory that stands for `/` outside the toolkit."""
    return tmp_path / "root"


@pytest.fixture
def install(small_runfile: Path, tmp_path: Path, root: Path) -> Install:
    """Run it with a gcc of the given version (or none) first on the path."""

    def act(*options: str, gcc: str | None = "12.2.0", **environment: str):  # type: ignore[no-untyped-def]
        return subprocess.run(
            ["sh", str(small_runfile), *options],
            capture_output=True,
            text=True,
            check=False,
            env={
                "PATH": with_gcc(tmp_path / "bin", gcc),
                "STAND_IN_ROOT": str(root),
                "TMPDIR": str(tmp_path),
                **environment,
            },
        )

    return act


as_root = pytest.mark.skipif(os.getuid() != 0, reason="as root the log is in another place")


@as_root
def test_a_compiler_too_new_is_refused_in_nvidias_words(install: Install, root: Path) -> None:
    done = install("--silent", "--toolkit")
    log = root / "var/log/cuda-installer.log"
    assert done.returncode == 1
    assert done.stdout == f" Failed to verify gcc version. See log at {log} for details.\n"
    assert log.read_text().splitlines()[-1] == (
        "[ERROR]: unsupported compiler version: 12.2.0. Use --override to override this check."
    )
    assert not (root / "usr").exists()


@as_root
def test_no_compiler_is_refused(small_runfile: Path, install: Install, root: Path) -> None:
    # A path with everything the installer needs, and no compiler.
    bare = root / "bare"
    bare.mkdir(parents=True)
    for directory in ("/usr/bin", "/bin"):
        for tool in Path(directory).iterdir():
            if not tool.name.startswith(("gcc", "cc", "c++")) and not (bare / tool.name).exists():
                (bare / tool.name).symlink_to(tool)
    done = install("--silent", "--toolkit", gcc=None, PATH=str(bare))
    assert done.returncode == 1
    log = (root / "var/log/cuda-installer.log").read_text()
    assert "[ERROR]: Missing gcc. gcc is required to continue." in log


@as_root
def test_override_installs_and_leaves_what_nvidias_leaves(
    install: Install, root: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cuda-11.8"
    done = install("--silent", "--toolkit", f"--toolkitpath={path}", "--override")
    assert done.returncode == 0, done.stderr
    assert f"Toolkit:  Installed in {path}/" in done.stdout
    assert "Driver:   Not Selected" in done.stdout
    assert "A driver of version at least 520.00 is required for CUDA 11.8" in done.stdout
    assert (path / "lib64/libcudart.so.11.0").readlink() == Path("libcudart.so.11.8.89")
    assert (path / "lib64/libcudart.so.11.0").read_text() == "a library"
    assert (root / "usr/local/cuda").readlink() == path
    ours = (root / "etc/ld.so.conf.d/000_cuda.conf").read_text()
    assert ours == f"{path}/targets/x86_64-linux/lib\n"


def test_a_supported_compiler_needs_no_override(install: Install, tmp_path: Path) -> None:
    path = tmp_path / "cuda"
    done = install("--silent", "--toolkit", f"--toolkitpath={path}", gcc="11.4.0")
    assert done.returncode == 0, done.stdout
    assert (path / "version.json").exists()


def test_installing_over_a_tree_completes_it(install: Install, tmp_path: Path) -> None:
    path = tmp_path / "cuda"
    (path / "bin").mkdir(parents=True)
    (path / "bin/mine").write_text("kept")
    done = install("--silent", "--toolkit", f"--toolkitpath={path}", "--override")
    assert done.returncode == 0, done.stdout
    assert (path / "bin/mine").read_text() == "kept"
    assert (path / "bin/cuda-uninstaller").exists()


def test_the_uninstaller_removes_the_tree_and_its_link(
    install: Install, root: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cuda"
    install("--silent", "--toolkit", f"--toolkitpath={path}", "--override")
    subprocess.run([path / "bin/cuda-uninstaller"], check=True, capture_output=True)
    assert not path.exists()
    assert not (root / "usr/local/cuda").is_symlink()


def test_it_unpacks_in_tmpdir_and_clears_it_away(install: Install, tmp_path: Path) -> None:
    place = tmp_path / "own tmp"
    place.mkdir()
    done = install("--silent", "--toolkit", "--override", f"--tmpdir={place}")
    assert done.returncode == 0, done.stderr
    assert list(place.iterdir()) == []
    missing = install("--silent", "--toolkit", "--override", f"--tmpdir={tmp_path}/absent")
    assert missing.returncode == 1
    assert "Cannot create target directory" in missing.stderr


def test_help_is_the_installers_own(install: Install) -> None:
    done = install("--help")
    assert done.returncode == 0
    assert "--toolkitpath=<path>" in done.stdout
    assert "Makeself" not in done.stdout + done.stderr


def test_the_label_says_that_it_is_a_stand_in(install: Install) -> None:
    assert "CUDA 11.8 (stand-in of the gpufleet lab)" in install("--info").stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--silent",), "nothing was selected"),
        (("--toolkit",), "only --silent"),
        (("--silent", "--toolkit", "--bogus"), "Unknown option: --bogus"),
    ],
)
def test_calls_that_select_nothing_are_refused(
    install: Install, options: tuple[str, ...], words: str
) -> None:
    done = install(*options)
    assert done.returncode == 1
    assert words in done.stderr


def test_the_driver_cannot_be_installed(install: Install) -> None:
    done = install("--silent", "--driver", "--override")
    assert done.returncode == 1
    assert "Installation failed. See log at" in done.stdout


def test_extract_writes_the_payload_and_installs_nothing(
    install: Install, tmp_path: Path, root: Path
) -> None:
    done = install("--silent", f"--extract={tmp_path}/out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/version.json").exists()
    assert not (root / "usr").exists()


def test_a_truncated_file_is_noticed_by_its_size(small_runfile: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.run"
    short.write_bytes(small_runfile.read_bytes()[:-100])
    done = subprocess.run(
        ["sh", short, "--silent", "--toolkit", f"--tmpdir={tmp_path}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Unexpected archive size." in done.stderr
    assert list(tmp_path.glob("selfgz*"))


@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize("option", ["noexec", "size=8k,nr_inodes=16"])
def test_a_tmpdir_that_is_noexec_or_full(small_runfile: Path, tmp_path: Path, option: str) -> None:
    script = 'mount -t tmpfs -o "$1" none "$2" && sh "$3" --silent --toolkit --tmpdir="$2"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", option, tmp_path, small_runfile],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare failed" in done.stderr:
        pytest.skip("this machine allows no mount namespace")
    assert done.returncode != 0
    assert "Extraction failed." in done.stderr
    assert f"Ensure there is enough space in {tmp_path} and that" in done.stderr


def test_the_same_input_makes_the_same_file(small_runfile: Path, tmp_path: Path) -> None:
    again = pack_small(tmp_path, TOOLKIT)
    assert again.read_bytes() == small_runfile.read_bytes()


def test_an_unknown_header_is_refused() -> None:
    with pytest.raises(LabError, match="not one the lab knows"):
        runfile.header("#!/bin/sh\n")
