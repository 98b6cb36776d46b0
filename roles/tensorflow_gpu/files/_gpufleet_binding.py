# Apache-2.0, see LICENSE
"""Bind this environment to its CUDA toolkit. Written by gpufleet; described in its documentation.

A ``.pth`` line imports this module when the interpreter starts. When ``tensorflow`` is first
imported, the toolkit's libraries are loaded by absolute path, each after those it needs. The
dynamic linker matches a later request by SONAME, so TensorFlow's own "libcublas.so.11" is then this
very file, whatever LD_LIBRARY_PATH or the linker's cache would have offered.

``python -m _gpufleet_binding`` tries every library and fails with the reason if one does not load.
"""

import sys

# How the dynamic linker says that a host has no driver, or one that is too old: the driver's own
# functions are cuX. cuDNN 9.28 is linked against it; whether there has to be one, and which, is no
# affair of this environment.
DRIVER = r"libcuda\.so\.1: cannot open shared object file|undefined symbol: cu[A-Z]"


def _document():
    import json
    import os

    with open(os.path.splitext(os.path.abspath(__file__))[0] + ".json") as stream:
        return json.load(stream)


def load():
    """Load the libraries; returns what could not be loaded, in words, but for want of a driver."""
    import ctypes
    import re

    failures = []
    for path in _document()["libraries"]:
        try:
            ctypes.CDLL(path)
        except OSError as error:
            if not re.search(DRIVER, str(error)):
                failures.append(f"{path}: {error}")
    return failures


class _Binder:
    """A finder that finds nothing: it sees the first import of TensorFlow and steps aside."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "tensorflow":
            # A list of its own: the import that asks is still on its way through the old one.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not cls]
            # TensorFlow may still serve on the CPU; the person must know why the GPU is missing.
            for failure in load():
                sys.stderr.write(f"gpufleet: cannot load {failure}\n")


if __name__ == "__main__":
    sys.exit("\n".join(load()) or 0)
else:
    sys.meta_path.insert(0, _Binder)
