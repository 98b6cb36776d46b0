"""Read from a CUDA plugin of JAX (`jax-cuda12-plugin`) what it needs and has device code for.

Up to 0.4.29 the extra of `jax` asks for NVIDIA's packages, and the plugin for none. Its libraries
are linked to none of CUDA's: they open them by name. The CUDA that it was built with is only in its
code (`_versions.so`), which is not run here.
"""

from __future__ import annotations

import re
import zipfile
from typing import BinaryIO

from gpufleet.catalog import facts

from .wheel import CUDA_LIBRARY, Contents, Library, architectures, extra, library

_KERNELS = re.compile(r"jax_cuda\d+_plugin/_\w+\.so")


def contents(stream: BinaryIO, largest: int | None = None, arch: str = facts.X86_64) -> Contents:
    """Read a wheel; libraries of more than `largest` packed bytes are listed as unread."""
    found, every = Contents(), Library()
    with zipfile.ZipFile(stream) as archive:
        for member in archive.infolist():
            if member.filename.endswith(".dist-info/METADATA"):
                text = archive.read(member).decode()
                # The name of the extra was written with _ and with -.
                found.pins = (
                    extra(text, "with-cuda", arch) or extra(text, "with_cuda", arch) or None
                )
            elif _KERNELS.fullmatch(member.filename) and not found.leaves_out(member, largest):
                every.add(library(archive, member, CUDA_LIBRARY))
    found.linked = sorted(every.linked)
    if every.containers and not found.unread:
        found.containers = dict(sorted(every.containers.items()))
        found.sass, found.ptx = architectures(found.containers)
    return found
