"""The contents of TensorFlow's wheel: linked and opened libraries, versions, GPUs, requirements."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.wheel_index import (
    BUILD_INFO,
    CONFIG,
    METADATA,
    device_code,
    library,
    modern,
    wheel_file,
)
from tools.catalog import tensorflow_wheel, wheel

FRAMEWORK = "a/libtensorflow_framework.so.1"
INTERNAL = "a/python/_pywrap_tensorflow_internal.so"


def read(path: Path, largest: int | None = None) -> wheel.Contents:
    with path.open("rb") as stream:
        return tensorflow_wheel.contents(stream, largest)


def test_opened_sonames_come_from_function_and_constant(
    tmp_path: Path,
) -> None:
    found = read(modern(tmp_path / "tensorflow.whl"))
    assert found.linked == []
    assert found.opened == [
        "libcublas.so.11",
        "libcublasLt.so.11",
        "libcudart.so.11.0",
        "libcudnn.so.8",
    ]
    assert (found.cuda, found.cudnn) == ("11.8", "8")
    assert (found.sass, found.ptx) == (["3.5", "8.0"], ["8.0"])
    assert found.pins == ["nvidia-cublas-cu11==11.11.3.6"]
    assert found.unread == []


def test_linked_sonames_come_from_the_dynamic_section(tmp_path: Path) -> None:
    needed = ("libcudart.so.8.0", "libcudnn.so.6", "libcuda.so.1", "libm.so.6")
    one = library(tmp_path, needed, ("Cudnn", "Cublas"))
    found = read(wheel_file(tmp_path / "old.whl", {INTERNAL: one}))
    assert found.linked == ["libcudart.so.8.0", "libcudnn.so.6"]
    assert found.opened == ["libcublas.so"]  # nothing in this wheel tells its version
    assert (found.cuda, found.cudnn) == ("8.0", "6")
    assert (found.sass, found.ptx) == (None, None)


def test_sonames_of_contrib_alone_are_ignored(tmp_path: Path) -> None:
    core = library(tmp_path, ("libcudart.so.10.0",), ("Cufft",))
    contrib = library(tmp_path, ("libcufft.so.10.0", "libnvinfer.so.5"))
    members: dict[str, bytes | str] = {FRAMEWORK: core, "a/contrib/_wrap_conversion.so": contrib}
    found = read(wheel_file(tmp_path / "1.13.whl", members))
    assert (found.linked, found.opened) == (["libcudart.so.10.0"], ["libcufft.so"])


def test_libraries_but_cudart_share_one_constant_before_2_3(tmp_path: Path) -> None:
    constants = {"CUDA": "10.1", "CUDA_LIB": "10", "CUDNN": "7"}
    config = "".join(f'#define TF_{key}_VERSION "{value}"\n' for key, value in constants.items())
    one = library(tmp_path, (), ("CudaRuntime", "Curand", "Cudnn"))
    found = read(wheel_file(tmp_path / "2.1.whl", {FRAMEWORK: one, "a/cuda_config.h": config}))
    assert found.opened == ["libcudart.so.10.1", "libcudnn.so.7", "libcurand.so.10"]


def test_architectures_come_from_device_code_without_build_information(tmp_path: Path) -> None:
    code = device_code((2, 35), (2, 52), (1, 52))
    one = library(tmp_path, ("libcudart.so.9.0",)) + code + b"\x50\xed\x55\xba and no container"
    path = wheel_file(tmp_path / "1.12.whl", {FRAMEWORK: one, INTERNAL: library(tmp_path)})
    found = read(path)
    assert (found.sass, found.ptx) == (["3.5", "5.2"], ["5.2"])
    # A part was not read, so the result is unknown.
    found = read(path, largest=10)
    assert (found.sass, found.unread) == (
        None,
        ["libtensorflow_framework.so.1", "_pywrap_tensorflow_internal.so"],
    )


def test_containers_are_counted_by_their_code_with_and_without_build_information(
    tmp_path: Path,
) -> None:
    both, one = device_code((2, 80), (2, 90), (1, 90)), device_code((2, 80), (1, 90))
    members: dict[str, bytes | str] = {
        FRAMEWORK: library(tmp_path) + both + one,
        INTERNAL: library(tmp_path) + one + device_code(),
    }
    counted = {"sm_80 compute_90/8.3": 2, "sm_80 sm_90 compute_90/8.3": 1}
    assert read(wheel_file(tmp_path / "1.15.whl", members)).containers == counted
    members["tensorflow/python/platform/build_info.py"] = BUILD_INFO
    found = read(wheel_file(tmp_path / "2.17.whl", members))
    assert (found.containers, found.sass) == (counted, ["3.5", "8.0"])
    assert read(tmp_path / "2.17.whl", largest=10).containers is None


def test_a_library_that_is_too_large_is_named_as_unread(tmp_path: Path) -> None:
    found = read(modern(tmp_path / "tensorflow.whl"), largest=10)
    assert found.unread == ["libtensorflow_framework.so.2", "libtensorflow_cc.so.2"]
    assert found.opened == []


def test_a_library_that_is_damaged_is_refused(tmp_path: Path) -> None:
    members: dict[str, bytes | str] = {FRAMEWORK: b"\x7fELF" + bytes(100)}
    with pytest.raises(ValueError, match=r"truncated|no dynamic|damaged"):
        read(wheel_file(tmp_path / "bad.whl", {**members, "a/cuda_config.h": CONFIG}))


def test_an_extra_has_requirements_beside_the_package() -> None:
    assert wheel.extra(METADATA, "and-cuda") == ["nvidia-cublas-cu11==11.11.3.6"]
    assert wheel.extra(METADATA, "other") == []
