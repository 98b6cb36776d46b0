"""Read from a PyTorch wheel which CUDA it was built with.

`torch/version.py` has the CUDA, the requirements have cuDNN and the other packages of NVIDIA's from
1.13 on. The answer of `torch.cuda.get_arch_list` is one string in `libtorch_python.so`, from 1.6
on. Before that nothing tells: the device code is also that of cuDNN and NCCL within. Up to 1.12
CUDA's libraries are in the wheel under names of their own (`libcudart-80664282.so.10.2`), which
nothing else can have, and so none is listed.
"""

from __future__ import annotations

import re
import zipfile
from typing import BinaryIO

from gpufleet.catalog import facts

from .wheel import CUDA_LIBRARY, Contents, Library, capabilities, cuda_packages, library

_CUDA = re.compile(r"^cuda(?:: [\w\[\]]+)? = '([\d.]+)'", re.MULTILINE)
_CUDNN = re.compile(r"nvidia-cudnn[\w-]*==(.+)")
_ARCHITECTURES = re.compile(rb"((?:sm|compute)_\d+[a-z]?(?: (?:sm|compute)_\d+[a-z]?)+)")
_TARGET = re.compile(r"(sm|compute)_(\d+)")
# Files of torch itself, without those of others that its wheel contains.
_OWN = re.compile(r"torch/(lib/lib(torch|c10|caffe2)\w*\.so|_C\.[\w-]+\.so)")


def contents(stream: BinaryIO, largest: int | None = None, arch: str = facts.X86_64) -> Contents:
    """Read a wheel; libraries of more than `largest` packed bytes are listed as unread."""
    found, every = Contents(), Library()
    with zipfile.ZipFile(stream) as archive:
        for member in archive.infolist():
            if member.filename == "torch/version.py":
                version = _CUDA.search(archive.read(member).decode())
                found.cuda = version and version[1]
            elif member.filename.endswith(".dist-info/METADATA"):
                found.pins = cuda_packages(archive.read(member).decode(), arch)
            elif _OWN.fullmatch(member.filename) and not found.leaves_out(member, largest):
                every.add(library(archive, member, CUDA_LIBRARY, _ARCHITECTURES))
    found.linked = sorted(every.linked)
    exact = [match[1] for pin in found.pins or () if (match := _CUDNN.fullmatch(pin))]
    found.cudnn = exact[0] if exact else None
    if every.words:
        targets = _TARGET.findall(max(every.words, key=len))
        found.sass = capabilities(int(number) for kind, number in targets if kind == "sm")
        found.ptx = capabilities(int(number) for kind, number in targets if kind == "compute")
    return found
