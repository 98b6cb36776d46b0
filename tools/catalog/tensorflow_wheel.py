"""Read from a TensorFlow wheel which CUDA it was built with.

Linked libraries are in the dynamic sections of the wheel's own libraries. Libraries that are opened
at run time are not there by name: TensorFlow builds `libcublas.so.11` from a function
(`DsoLoader::GetCublasDsoHandle`, in the symbols) and a constant (`TF_CUBLAS_VERSION`, in the
wheel's `cuda_config.h`). Without that header, the name has no version.

The GPU architectures are in `build_info.py`, or else with each piece of device code. Of the last in
`build_info.py`, `compute_90`, most containers have PTX alone: these are counted in any case.
"""

from __future__ import annotations

import re
import zipfile
from typing import BinaryIO

from gpufleet.catalog import facts

from .wheel import Contents, Library, architectures, capabilities, extra, library

# Files that `import tensorflow` loads. Others are linked to these, or of contrib (1.x), where
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


def contents(stream: BinaryIO, largest: int | None = None, arch: str = facts.X86_64) -> Contents:
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
                found.pins = extra(archive.read(member).decode(), "and-cuda", arch)
            elif _CORE.fullmatch(name) and not found.leaves_out(member, largest):
                every.add(library(archive, member, _LINKED, _HANDLE))
    found.linked = sorted(every.linked)
    handles = {_HANDLES[word] for word in every.words & _HANDLES.keys()}
    from_name = dict(name.removeprefix("lib").split(".so.") for name in every.linked)
    # A linked library is loaded before it could be opened.
    found.opened = sorted(_soname(name, macros) for name in handles - from_name.keys())
    found.cuda = macros.get("CUDA") or built.get("cuda") or from_name.get("cudart")
    found.cudnn = macros.get("CUDNN") or built.get("cudnn") or from_name.get("cudnn")
    if targets:  # `sm_35` is machine code; `compute_80` is both
        found.sass = capabilities(int(number) for _, number in targets)
        found.ptx = capabilities(int(number) for kind, number in targets if kind == "compute")
    if every.containers and not found.unread:
        found.containers = dict(sorted(every.containers.items()))
        if not targets:
            found.sass, found.ptx = architectures(found.containers)
    return found


def _soname(name: str, macros: dict[str, str]) -> str:
    """The name under which TensorFlow opens a library, without a version if none is known.

    Before each library had a constant of its own (2.3), cudart had the toolkit's, and the others
    shared one, or (1.13) had the toolkit's as well; `cublasLt` comes with `cublas`.
    """
    own = "CUBLAS" if name == "cublasLt" else name.upper()
    shared = {"cudart": ("CUDA",), "cudnn": ()}.get(name, ("CUDA_LIB", "CUDA"))
    version = next((macros[each] for each in (own, *shared) if each in macros), "")
    return f"lib{name}.so.{version}".removesuffix(".")
