# Apache-2.0, see LICENSE
"""Which library files a stack must load, dependencies before their users."""

from __future__ import annotations

import glob
import os

from ansible.module_utils.gpufleet_probe import elf_dynamic
from ansible.module_utils.gpufleet_receipts import StateError


def sub_libraries(folder, soname):
    """What a library opens by itself without saying so in its header.

    From cuDNN 8 on, ``libcudnn.so.N`` is a shim that opens ``libcudnn_*.so.N`` when it is used.
    """
    stem, _, number = soname.partition(".so.")
    if stem != "libcudnn":
        return []
    pattern = os.path.join(glob.escape(folder), "libcudnn_*.so." + number)
    return sorted(os.path.basename(path) for path in glob.glob(pattern))


def libraries_in_order(folder, sonames):
    """Paths of the libraries with these SONAMEs in ``folder``, each after those it needs.

    Raises ``StateError`` when one is missing or damaged.
    """
    order = []
    visited = set()

    def visit(soname, wanted):
        if soname in visited:
            return
        visited.add(soname)
        path = os.path.join(folder, soname)
        if not os.path.exists(path):
            if wanted:
                raise StateError(
                    "{} is missing; the stack cannot be bound to its toolkit.".format(path)
                )
            return  # the system's: libc, libm, libstdc++
        try:
            needed = elf_dynamic(path)["needed"]
        except ValueError as error:
            raise StateError("{} is damaged: {}".format(path, error)) from error
        for name in needed:
            visit(name, False)
        for name in sub_libraries(folder, soname):
            visit(name, True)
        order.append(path)

    for soname in sonames:
        visit(soname, True)
    return order
