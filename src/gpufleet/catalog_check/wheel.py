"""Read from a TensorFlow wheel which CUDA it was built with.

Linked libraries are in the dynamic sections of the wheel's own libraries. Libraries that are opened
at run time are not there by name: TensorFlow builds `libcublas.so.11` from a function
(`DsoLoader::GetCublasDsoHandle`, in the symbols) and a constant (`TF_CUBLAS_VERSION`, in the
wheel's `cuda_config.h`). Without that header, the name has no version.

The GPU architectures are in `build_info.py`, or else with each piece of device code.
"""

from __future__ import annotations

import mmap
import re
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from email.parser import HeaderParser
from typing import BinaryIO

from packaging.requirements import Requirement

from gpufleet.probe.elf import elf_dynamic

# What `import tensorflow` loads. The others are linked to these, or belong to contrib (1.x), where
# one asks for TensorRT as well.
_CORE = re.compile(
    r"(libtensorflow_(framework|cc)|_pywrap_tensorflow(_internal|_common)?)\.so(\.\d+)*"
)
# The library that each function opens; not CUPTI, NCCL and TensorRT, without which GPUs compute.
_HANDLES = {
    "CudaRuntime": "cudart",
    "Cublas": "cublas",
    "CublasLt": "cublasLt",
    "Cufft": "cufft",
    "Curand": "curand",
    "Cusolver": "cusolver",
    "Cusparse": "cusparse",
    "Cudnn": "cudnn",
}
_LINKED = re.compile(rf"lib({'|'.join(_HANDLES.values())})\.so\.[\d.]+")
_HANDLE = re.compile(rb"9DsoLoader\d+Get(\w+?)DsoHandleE")
_MACRO = re.compile(r'^#define TF_(\w+)_VERSION "([\d.]+)"', re.MULTILINE)
_BUILT = re.compile(r"\b(cuda|cudnn)_version(?:_number)?'?(?:,| =) '([\d.]+)'")
_TARGET = re.compile(r"'(sm|compute)_(\d+)'")
# A container of device code (magic, version 1, header of 16 bytes, size of what follows); in it the
# pieces: kind, version, size of this header, size of what follows, and the architecture.
_CONTAINER = b"\x50\xed\x55\xba\x01\x00\x10\x00"
_PIECE = struct.Struct("<HHIQ12xI")
_PTX, _MACHINE_CODE = 1, 2


@dataclass
class Library:
    """The contents of shared libraries: names of linked libraries, libraries that functions open,
    and the pieces of device code as kind and architecture."""

    linked: set[str] = field(default_factory=set)
    handles: set[str] = field(default_factory=set)
    code: set[tuple[int, int]] = field(default_factory=set)


@dataclass
class Contents:
    """The information in the members of one wheel; None where there is none."""

    cuda: str | None = None
    cudnn: str | None = None
    linked: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    sass: list[str] | None = None
    ptx: list[str] | None = None
    and_cuda: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def contents(stream: BinaryIO, largest: int | None = None) -> Contents:
    """Read a wheel; libraries of more than `largest` packed bytes are listed as unread."""
    found = Contents()
    every = Library()
    targets: list[tuple[str, str]] = []
    macros: dict[str, str] = {}
    built: dict[str, str] = {}
    with zipfile.ZipFile(stream) as archive:
        for member in archive.infolist():
            name = member.filename.rsplit("/", 1)[-1]
            if name == "cuda_config.h":
                macros |= _MACRO.findall(archive.read(member).decode())
            elif member.filename.endswith("python/platform/build_info.py"):
                text = archive.read(member).decode()
                built |= _BUILT.findall(text)
                targets = _TARGET.findall(text)
            elif member.filename.endswith(".dist-info/METADATA"):
                found.and_cuda = extra(archive.read(member).decode(), "and-cuda")
            elif _CORE.fullmatch(name):
                if largest is not None and member.compress_size > largest:
                    found.unread.append(name)
                    continue
                one = _library(archive, member)
                every.linked |= one.linked
                every.handles |= one.handles
                every.code |= one.code
    found.linked = sorted(every.linked)
    from_name = dict(name.removeprefix("lib").split(".so.") for name in every.linked)
    # A linked library is loaded before it could be opened.
    found.opened = sorted(_soname(name, macros) for name in every.handles - from_name.keys())
    found.cuda = macros.get("CUDA") or built.get("cuda") or from_name.get("cudart")
    found.cudnn = macros.get("CUDNN") or built.get("cudnn") or from_name.get("cudnn")
    if targets:  # `sm_35` is machine code; `compute_80` is both
        found.sass = _capabilities(int(number) for _, number in targets)
        found.ptx = _capabilities(int(number) for kind, number in targets if kind == "compute")
    elif every.code and not found.unread:
        found.sass = _capabilities(each for kind, each in every.code if kind == _MACHINE_CODE)
        found.ptx = _capabilities(each for kind, each in every.code if kind == _PTX)
    return found


def extra(metadata: str, name: str) -> list[str]:
    """Return the requirements of an extra on Linux, each as `project==1.2`, sorted."""
    linux = {"platform_system": "Linux", "sys_platform": "linux", "platform_machine": "x86_64"}
    requirements = [Requirement(line) for line in
             HeaderParser().parsestr(metadata).get_all("Requires-Dist") or []]
    return sorted(
        f"{each.name}{each.specifier}"
        for each in requirements
        if each.marker
        and each.marker.evaluate({**linux, "extra": name})
        and not each.marker.evaluate({**linux, "extra": ""})
    )


def _library(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Library:
    with tempfile.TemporaryFile() as copy:  # unnamed: removed however this ends
        with archive.open(member) as source:
            shutil.copyfileobj(source, copy, 1 << 20)
        copy.flush()
        needed: list[str] = elf_dynamic(f"/proc/self/fd/{copy.fileno()}")["needed"]
        with mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ) as data:
            handles = {found[1].decode() for found in _HANDLE.finditer(data)}
            code = set(_device_code(data))
    return Library(
        {name for name in needed if _LINKED.fullmatch(name)},
        {_HANDLES[handle] for handle in handles & _HANDLES.keys()},
        code,
    )


def _device_code(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Kind and architecture of each piece of code for GPUs."""
    at = -1
    while (at := data.find(_CONTAINER, at + 1)) >= 0:
        end = at + 16 + int.from_bytes(data[at + 8 : at + 16], "little")
        piece = at + 16
        while piece + _PIECE.size <= min(end, len(data)):
            kind, _, header, size, number = _PIECE.unpack_from(data, piece)
            if kind not in (_PTX, _MACHINE_CODE) or header < _PIECE.size:
                break
            yield kind, number
            piece += header + size


def _capabilities(numbers: Iterable[int]) -> list[str]:
    """`3.5` for each 35, in order."""
    return [f"{number // 10}.{number % 10}" for number in sorted(set(numbers))]


def _soname(name: str, macros: dict[str, str]) -> str:
    """The name under which TensorFlow opens a library, without a version if none is known.

    Before each library had a constant of its own (2.3), cudart had the toolkit's, and the others
    shared one, or (1.13) had the toolkit's as well; `cublasLt` comes with `cublas`.
    """
    own = "CUBLAS" if name == "cublasLt" else name.upper()
    shared = {"cudart": ("CUDA",), "cudnn": ()}.get(name, ("CUDA_LIB", "CUDA"))
    version = next((macros[each] for each in (own, *shared) if each in macros), "")
    return f"lib{name}.so.{version}".removesuffix(".")
