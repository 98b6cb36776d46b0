"""Wheels become the trees that NVIDIA's own packages unpack to."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from lab import artifacts, cudnn, libraries, toolkit
from lab.errors import LabError
from lab.wheels import Wheel, pinned
from tests.support.lab_artifacts import TOOLKIT, library_with_device_code, wheel


@pytest.mark.parametrize(
    ("soname", "version", "real", "links"),
    [
        (
            *("libcudart.so.11.0", "11.8.89", "libcudart.so.11.8.89"),
            [("libcudart.so.11.0", "libcudart.so.11.8.89"), ("libcudart.so", "libcudart.so.11.0")],
        ),
        ("libplain.so", "1.0", "libplain.so.1.0", [("libplain.so", "libplain.so.1.0")]),
        ("libfull.so.4.0.0", "4.0.0", "libfull.so.4.0.0", [("libfull.so", "libfull.so.4.0.0")]),
    ],
)  # fmt: skip
def test_full_name_and_links(
    soname: str, version: str, real: str, links: list[tuple[str, str]]
) -> None:
    assert libraries.names(soname, version) == (real, links)


def test_what_is_a_library_is_named_by_its_name() -> None:
    assert libraries.stem("nvidia/cublas/lib/libcublas.so.11") == "libcublas"
    for other in ("nvidia/cublas/include/cublas.h", "libfoo.a", "x.dist-info/RECORD"):
        assert not libraries.is_library(other)


@pytest.fixture
def cublas(tmp_path: Path) -> tuple[Wheel, Path]:
    library = library_with_device_code(tmp_path / "lib.so", "libcublas.so.11").read_bytes()
    path = wheel(
        tmp_path / "cublas.whl",
        {
            "nvidia/__init__.py": b"",
            "nvidia/cublas/__init__.py": b"",
            "nvidia/cublas/lib/__init__.py": b"",
            "nvidia/cublas/lib/libcublas.so.11": library,
            "nvidia/cublas/include/cublas.h": b"#define CUBLAS 1\n",
            "nvidia/cublas/bin/ptxas": b"#!",
            "nvidia/cublas/nvvm/libdevice/libdevice.10.bc": b"BC",
            "nvidia_cublas_cu11-11.11.3.6.dist-info/METADATA": b"",
        },
    )
    return Wheel("nvidia-cublas-cu11==11.11.3.6", path.name, "0", 0), path


def test_a_toolkit_for_arm64_has_its_own_target(cublas: tuple[Wheel, Path], tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    toolkit.lay_out(TOOLKIT | {"arch": "aarch64"}, [cublas], tree)
    assert (tree / "lib64").readlink() == Path("targets/sbsa-linux/lib")
    assert (tree / "lib64" / "libcublas.so.11").exists()


def test_toolkit_tree(cublas: tuple[Wheel, Path], tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    toolkit.lay_out(TOOLKIT, [cublas], tree)

    assert (tree / "lib64").readlink() == Path("targets/x86_64-linux/lib")
    lib64 = tree / "lib64"
    assert sorted(path.name for path in lib64.iterdir()) == [
        "libcublas.so",
        "libcublas.so.11",
        "libcublas.so.11.11.3.6",
    ]
    assert (lib64 / "libcublas.so").readlink() == Path("libcublas.so.11")
    assert (lib64 / "libcublas.so.11").readlink() == Path("libcublas.so.11.11.3.6")
    assert (tree / "include/cublas.h").read_text() == "#define CUBLAS 1\n"
    assert (tree / "bin/ptxas").stat().st_mode & 0o111
    assert (tree / "nvvm/libdevice/libdevice.10.bc").read_bytes() == b"BC"
    assert not list(tree.rglob("__init__.py"))
    assert "stand-in" in (tree / "README-STAND-IN.txt").read_text()
    versions = json.loads((tree / "version.json").read_text())
    assert versions["cuda"] == {"name": "CUDA SDK", "version": "11.8.20220929"}
    assert versions["libcublas"] == {"name": "CUDA cuBLAS", "version": "11.11.3.6"}


def test_nvcc_knows_its_version_and_refuses_to_compile(
    cublas: tuple[Wheel, Path], tmp_path: Path
) -> None:
    toolkit.lay_out(TOOLKIT, [cublas], tmp_path / "tree")
    nvcc = tmp_path / "tree/bin/nvcc"
    output = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    assert "Cuda compilation tools, release 11.8, V11.8.89" in output
    refused = subprocess.run([nvcc, "a.cu"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "stand-in" in refused.stderr


def test_cudnn_archive(tmp_path: Path) -> None:
    library = library_with_device_code(tmp_path / "lib.so", "libcudnn.so.8").read_bytes()
    path = wheel(
        tmp_path / "cudnn.whl",
        {
            "nvidia/cudnn/lib/libcudnn.so.8": library,
            "nvidia/cudnn/include/cudnn_version.h": b"#define CUDNN_MAJOR 8\n",
            "nvidia_cudnn_cu11-8.6.0.163.dist-info/License.txt": b"terms",
        },
    )
    name = "cudnn-linux-x86_64-8.6.0.163_cuda11-archive"
    artifact = {"file": f"{name}.tar.xz", "version": "8.6.0"}
    pin = Wheel("nvidia-cudnn-cu11==8.6.0.163", path.name, "0", 0)
    made = []
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        made.append(cudnn.make(artifact, [(pin, path)], tmp_path / run))

    assert made[0].read_bytes() == made[1].read_bytes()
    with tarfile.open(made[0]) as archive:
        kinds = {entry.name.removeprefix(f"{name}/"): entry for entry in archive.getmembers()}
    assert {entry.uid for entry in kinds.values()} == {0}
    assert kinds["lib/libcudnn.so"].linkname == "libcudnn.so.8"
    assert kinds["lib/libcudnn.so.8"].linkname == "libcudnn.so.8.6.0"
    assert kinds["lib/libcudnn.so.8.6.0"].size == len(library)
    assert kinds["include/cudnn_version.h"].mode == 0o644
    assert {"LICENSE", "README-STAND-IN.txt"} <= kinds.keys()


def test_every_described_artifact_has_pinned_wheels_and_a_maker() -> None:
    described = artifacts.described()
    assert {entry["file"] for entry in described} >= {
        "cuda_11.8.0_520.61.05_linux.run",
        "cudnn-linux-x86_64-8.6.0.163_cuda11-archive.tar.xz",
    }
    for entry in described:
        assert len(artifacts.recipe(entry)) == 64


def test_a_wheel_that_is_not_pinned_is_refused() -> None:
    with pytest.raises(LabError, match="not pinned") as caught:
        pinned("nvidia-cublas-cu11==0.0.1")
    assert "wheels.yml" in caught.value.remedy
