"""A small wheel in the form of TensorFlow's, and a package index that serves it."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.elf_file import shared_library

CONFIG = """\
#define TF_CUDA_VERSION "11.8"
#define TF_CUDART_VERSION "11.0"
#define TF_CUBLAS_VERSION "11"
#define TF_CUDNN_VERSION "8"
"""
BUILD_INFO = """\
build_info = collections.OrderedDict([('cuda_compute_capabilities', ['sm_35', 'compute_80']),
 ('cuda_version', '11.8'), ('cudnn_version', '8'), ('is_cuda_build', True)])
"""
METADATA = """\
Metadata-Version: 2.1
Name: tensorflow
Requires-Dist: numpy >=1.22
Requires-Dist: tensorflow-intel ==2.13.1 ; platform_system == "Windows"
Requires-Dist: nvidia-cublas-cu11 ==11.11.3.6 ; extra == 'and-cuda'
"""
HANDLES = ("CudaDriver", "CudaRuntime", "Cublas", "CublasLt", "Cudnn", "Cupti", "NvInfer")


def library(folder: Path, needed: tuple[str, ...] = (), handles: tuple[str, ...] = ()) -> bytes:
    """A library that is linked to some, and has TensorFlow's functions to open some."""
    content = shared_library(folder / "made.so", None, needed).read_bytes()
    names = [f"Get{handle}DsoHandle" for handle in handles]
    symbols = "".join(f"\0_ZN3tsl8internal9DsoLoader{len(n)}{n}Ev\0" for n in names)
    return content + symbols.encode()


def device_code(*pieces: tuple[int, int]) -> bytes:
    """A container of empty pieces of code for GPUs, each of a kind for an architecture.

    Its PTX (kind 1) is of version 8.3.
    """
    inside = b"".join(
        struct.pack("<HHIQ8xHHI32x", kind, 0, 64, 8, 3, 8, number) + bytes(8)
        for kind, number in pieces
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(inside)) + inside


def wheel_file(path: Path, members: dict[str, bytes | str]) -> Path:
    """A wheel of these members."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def modern(path: Path) -> Path:
    """A wheel as since 1.14: everything is opened while it runs."""
    return wheel_file(
        path,
        {
            "tensorflow/libtensorflow_framework.so.2": library(path.parent, (), HANDLES),
            "tensorflow/libtensorflow_cc.so.2": library(path.parent, ("libm.so.6",)),
            "tensorflow/include/third_party/gpus/cuda/cuda_config.h": CONFIG,
            "tensorflow/python/platform/build_info.py": BUILD_INFO,
            "tensorflow-2.13.1.dist-info/METADATA": METADATA,
        },
    )


@dataclass
class Index:
    """A package index on this machine: its files, how it answers, and what it was asked for."""

    files: dict[str, bytes]
    ranges: bool = True
    address: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    passwords: list[str | None] = field(default_factory=list)

    def page(self, project: str) -> bytes:
        return "".join(
            f'<a href="../../files/{name}#sha256={hashlib.sha256(content).hexdigest()}">x</a>'
            for name, content in self.files.items()
            if name.startswith(project.replace("-", "_") + "-")
        ).encode()
