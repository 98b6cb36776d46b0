# Apache-2.0, see LICENSE
"""The library files that a stack must load, dependencies first. Reads only."""

from __future__ import annotations

import glob
import os

from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.elf import elf_dynamic
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import StateError

# Libraries that others open at run time, by names that are not in their headers. From cuDNN 8 on,
# libcudnn.so.N is a shim that opens libcudnn_*.so.N when it is used. Read from the libraries' own
# strings: CUDA 11.7 to 13.2, cuDNN 8.5 to 9.26.
OPENS = {
    "libcudnn": ("libcudnn_*.so.{}", "libnvrtc.so.*", "libcublasLt.so.*"),
    "libcublasLt": ("libnvrtc.so.*",),
    "libcufft": ("libnvJitLink.so.*",),
    "libnvrtc": ("libnvrtc-builtins.so*",),
}


def sub_libraries(folders, soname):
    """Return the SONAMEs of the libraries in ``folders`` that a library opens at run time."""
    stem, _, number = soname.partition(".so.")
    patterns = OPENS.get(stem, ())
    if stem == "libcudnn" and int(number) < 8:
        patterns = patterns[:1]
    found = [
        path
        for folder in folders
        for pattern in patterns
        for path in glob.glob(os.path.join(glob.escape(folder), pattern.format(number)))
    ]
    return sorted({elf(path)["soname"] for path in found} - {None})


def elf(path):
    """Return a library's dynamic section; raises ``StateError`` where it is damaged."""
    try:
        return elf_dynamic(path)
    except ValueError as error:
        raise StateError("{} is damaged: {}".format(path, error)) from error


def libraries_in_order(folders, sonames, optional=()):
    """Paths of the libraries with these SONAMEs in ``folders``, each after those it needs.

    Raises ``StateError`` when one is damaged, or missing and not optional.
    """
    order = []
    visited = set()

    def visit(soname, wanted):
        if soname in visited:
            return
        visited.add(soname)
        paths = [os.path.join(folder, soname) for folder in folders]
        path = next(filter(os.path.exists, paths), None)
        if path is None:
            if wanted:
                raise StateError(
                    "{} is missing in {}; the stack cannot be bound to its libraries.".format(
                        soname, ", ".join(folders) or "the environment"
                    )
                )
            return  # optional, or the system's: libc, libm, libstdc++
        for name in elf(path)["needed"]:
            visit(name, False)
        for name in sub_libraries(folders, soname):
            visit(name, True)
        order.append(path)

    for soname in sonames:
        visit(soname, True)
    for soname in optional:
        visit(soname, False)
    return order
