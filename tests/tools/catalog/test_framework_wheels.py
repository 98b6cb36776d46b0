"""The contents of the wheels of PyTorch and of JAX's plugins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.wheel_index import device_code, library, wheel_file
from tools.catalog import jax_wheel, pytorch_wheel, wheel

VERSION = "__version__ = '2.6.0+cu124'\ndebug = False\ncuda: Optional[str] = '12.4'\nhip = None\n"
METADATA = """\
Metadata-Version: 2.1
Name: torch
Version: 2.6.0
Requires-Dist: filelock
Requires-Dist: nvidia-cudnn-cu12==9.1.0.70 ; platform_system == "Linux"
Requires-Dist: nvidia-cublas-cu12==12.4.5.8 ; platform_system == "Windows"
Requires-Dist: cuda-toolkit[nvrtc,cublas]==13.0.2; platform_system == "Linux"
Requires-Dist: nvidia-extra==1 ; extra == "more"
"""
PLUGIN = """\
Metadata-Version: 2.1
Name: jax-cuda12-plugin
Version: 0.5.3
Requires-Dist: jax-cuda12-pjrt==0.5.3
Provides-Extra: {extra}
Requires-Dist: nvidia-cudnn-cu12<10.0,>=9.1 ; extra == "{extra}"
"""
CUDA = (
    "libcudart.so.12",
    "libcudnn.so.9",
    "libcuda.so.1",
    "libcudart-80664282.so.10.2",
    "libm.so.6",
)


def torch(path: Path, largest: int | None = None, **libraries: bytes) -> wheel.Contents:
    members: dict[str, bytes | str] = {
        "torch/version.py": VERSION,
        "torch-2.6.0.dist-info/METADATA": METADATA,
        **{f"torch/lib/lib{name}.so": content for name, content in libraries.items()},
    }
    with wheel_file(path / "torch.whl", members).open("rb") as stream:
        return pytorch_wheel.contents(stream, largest)


def test_version_requirements_and_links_of_pytorch(tmp_path: Path) -> None:
    found = torch(tmp_path, torch_cuda=library(tmp_path, CUDA))
    assert (found.cuda, found.cudnn) == ("12.4", "9.1.0.70")
    assert found.pins == ["cuda-toolkit[cublas,nvrtc]==13.0.2", "nvidia-cudnn-cu12==9.1.0.70"]
    # What is within the wheel under a name of its own is nobody else's.
    assert found.linked == ["libcudart.so.12", "libcudnn.so.9"]
    assert (found.sass, found.ptx) == (None, None)


@pytest.mark.parametrize(
    ("text", "sass", "ptx"),
    [
        (b"\0sm_50 sm_90a compute_90\0sm_35\0", ["5.0", "9.0"], ["9.0"]),
        (b"sm_75 sm_120", ["7.5", "12.0"], []),
    ],
)
def test_the_answer_of_get_arch_list_is_in_the_library(
    tmp_path: Path, text: bytes, sass: list[str], ptx: list[str]
) -> None:
    found = torch(
        tmp_path,
        torch_python=library(tmp_path) + text,
        torch_cuda=library(tmp_path) + device_code((2, 35)),
    )
    assert (found.sass, found.ptx) == (sass, ptx)


def test_architectures_are_unknown_without_the_arch_list(tmp_path: Path) -> None:
    """cuDNN and NCCL are within the library, with code for more GPUs."""
    code = library(tmp_path) + device_code((2, 37), (1, 37))
    found = torch(tmp_path, caffe2_gpu=code)
    assert (found.sass, found.ptx) == (None, None)
    assert torch(tmp_path, largest=10, caffe2_gpu=code).unread == ["libcaffe2_gpu.so"]


def test_libraries_of_others_in_the_wheel_do_not_count(tmp_path: Path) -> None:
    found = torch(tmp_path, cudnn=library(tmp_path, ("libcublas.so.10",)))
    assert found.linked == []


def test_pins_are_unknown_for_a_plugin_without_requirements(tmp_path: Path) -> None:
    metadata = PLUGIN.partition("Provides-Extra")[0]
    path = wheel_file(
        tmp_path / "old.whl", {"jax_cuda12_plugin-0.4.23.dist-info/METADATA": metadata}
    )
    with path.open("rb") as stream:
        assert jax_wheel.contents(stream).pins is None


@pytest.mark.parametrize("extra", ["with_cuda", "with-cuda"])
def test_a_plugin_of_jax_has_requirements_and_device_code(tmp_path: Path, extra: str) -> None:
    path = wheel_file(
        tmp_path / "plugin.whl",
        {
            "jax_cuda12_plugin-0.5.3.dist-info/METADATA": PLUGIN.format(extra=extra),
            "jax_cuda12_plugin/_linalg.so": library(tmp_path) + device_code((2, 90), (1, 90)),
        },
    )
    with path.open("rb") as stream:
        found = jax_wheel.contents(stream)
    assert found.pins == ["nvidia-cudnn-cu12<10.0,>=9.1"]
    assert (found.sass, found.ptx, found.linked) == (["9.0"], ["9.0"], [])
    with path.open("rb") as stream:
        assert jax_wheel.contents(stream, largest=1).unread == ["_linalg.so"]
