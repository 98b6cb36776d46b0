"""What a TensorFlow wheel says about the CUDA it was built with.

Libraries that it is linked to stand in the dynamic sections of its own libraries. Those that it
opens while it runs do not stand there by name: TensorFlow makes `libcublas.so.11` of a function
(`DsoLoader::GetCublasDsoHandle`, in the symbols) and a constant (`TF_CUBLAS_VERSION`, in the
wheel's `cuda_config.h`). Where the wheel has no such header, the name stays without its version.
"""

from __future__ import annotations

import mmap
import re
import shutil
import tempfile
import zipfile
from dataclasses import dataclass, field
from email.parser import HeaderParser
from typing import BinaryIO

from packaging.requirements import Requirement

from compat.records import DRIVER_SONAME
from verify.probe import elf_dynamic

SMALLEST = 1 << 20  # bytes; what is smaller is an operation or a wrapper, linked to the large ones
# CUPTI, NCCL and TensorRT are left out: a GPU computes without them.
COMPUTE = ("cudart", "cublas", "cublasLt", "cufft", "curand", "cusolver", "cusparse", "cudnn")
_HANDLES = {("CudaRuntime" if name == "cudart" else name.capitalize()): name for name in COMPUTE}
_HANDLES["CublasLt"] = _HANDLES.pop("Cublaslt")
_LINKED = re.compile(rf"lib({'|'.join(COMPUTE)})\.so\.[\d.]+")
_HANDLE = re.compile(rb"9DsoLoader\d+Get(\w+?)DsoHandleE")
_MACRO = re.compile(r'^#define TF_(\w+)_VERSION "([\d.]+)"', re.MULTILINE)
_BUILT = re.compile(r"\b(cuda|cudnn)_version(?:_number)?'?(?:,| =) '([\d.]+)'")
_TARGET = re.compile(r"'(sm|compute)_(\d+)(\d)'")


@dataclass
class Contents:
    """What the members of one wheel say; None where they say nothing."""

    cuda: str | None = None
    cudnn: str | None = None
    linked: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    sass: list[str] | None = None
    ptx: list[str] | None = None
    and_cuda: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def contents(stream: BinaryIO, largest: int | None = None) -> Contents:
    """Read a wheel; libraries of more than `largest` packed bytes are only named, as unread."""
    found = Contents()
    linked: set[str] = set()
    handles: set[str] = set()
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
                found.sass, found.ptx = _targets(text)
            elif member.filename.endswith(".dist-info/METADATA"):
                found.and_cuda = extra(archive.read(member).decode(), "and-cuda")
            elif re.search(r"\.so(\.\d+)*$", name) and member.file_size >= SMALLEST:
                if largest is not None and member.compress_size > largest:
                    found.unread.append(name)
                    continue
                needed, symbols = _library(archive, member)
                linked |= needed
                handles |= symbols
    found.linked = sorted(linked)
    # A library that it is linked to is there before it could be opened.
    stems = {_LINKED.fullmatch(name)[1] for name in linked}  # type: ignore[index]
    found.opened = sorted(_soname(name, macros) for name in handles - stems)
    from_name = dict(re.findall(r"^lib(cudart|cudnn)\.so\.([\d.]+)$", "\n".join(linked), re.M))
    found.cuda = macros.get("CUDA") or built.get("cuda") or from_name.get("cudart")
    found.cudnn = macros.get("CUDNN") or built.get("cudnn") or from_name.get("cudnn")
    return found


def extra(metadata: str, name: str) -> list[str]:
    """What one extra of a package asks for on Linux, each as `project==1.2`, sorted."""
    here = {"platform_system": "Linux", "sys_platform": "linux", "platform_machine": "x86_64"}
    asked = [Requirement(line) for line in
             HeaderParser().parsestr(metadata).get_all("Requires-Dist") or []]
    return sorted(
        f"{each.name}{each.specifier}"
        for each in asked
        if each.marker
        and each.marker.evaluate({**here, "extra": name})
        and not each.marker.evaluate({**here, "extra": ""})
    )


def _library(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[set[str], set[str]]:
    """The CUDA libraries that one library is linked to, and those that it has functions to open."""
    with tempfile.TemporaryFile() as copy:  # nameless: nothing is left, however this ends
        with archive.open(member) as source:
            shutil.copyfileobj(source, copy, 1 << 20)
        copy.flush()
        needed: list[str] = elf_dynamic(f"/proc/self/fd/{copy.fileno()}")["needed"]
        with mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ) as data:
            symbols = {symbol.decode() for symbol in _HANDLE.findall(data)}
    return (
        {name for name in needed if name != DRIVER_SONAME and _LINKED.fullmatch(name)},
        {_HANDLES[symbol] for symbol in symbols & _HANDLES.keys()},
    )


def _soname(name: str, macros: dict[str, str]) -> str:
    """The name under which TensorFlow opens a library, without its version where none is told.

    Up to CUDA 10.0 all libraries bear the toolkit's version; `cublasLt` comes with `cublas`.
    """
    own = "cublas" if name == "cublasLt" else name
    every = "" if name == "cudnn" else macros.get("CUDA_LIB") or macros.get("CUDA", "")
    version = macros.get(own.upper(), every)
    return f"lib{name}.so.{version}".removesuffix(".")


def _targets(text: str) -> tuple[list[str] | None, list[str] | None]:
    """The GPU architectures with machine code, and with PTX: `sm_35` is the one, `compute_80` both.
    """
    found = [(kind, f"{major}.{minor}") for kind, major, minor in _TARGET.findall(text)]
    if not found:
        return None, None
    return [each for _, each in found], [each for kind, each in found if kind == "compute"]
