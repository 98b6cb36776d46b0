# Apache-2.0, see LICENSE
"""Bind this environment to its CUDA libraries. Written by gpufleet; described in its documentation.

A ``.pth`` line calls `watch` when the interpreter starts. When the framework is first imported, the
stack's CUDA libraries are loaded by absolute path, each after those it needs. The dynamic linker
matches a later request by SONAME, so the framework's own "libcublas.so.11" is then this very file,
whatever LD_LIBRARY_PATH or the linker's cache would have offered.

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


def load(libraries):
    """Load libraries; returns what could not be loaded, in words, but for want of a driver."""
    import ctypes
    import re

    failures = []
    for path in libraries:
        try:
            ctypes.CDLL(path)
        except OSError as error:
            if not re.search(DRIVER, str(error)):
                failures.append(f"{path}: {error}")
    return failures


def _own_packages_first():
    """Search other environments' CUDA wheels after this one's: PyTorch takes the first it finds."""
    import glob
    import os

    own = os.path.dirname(os.path.abspath(__file__))
    if own not in sys.path:
        return
    before, after = sys.path[: sys.path.index(own)], sys.path[sys.path.index(own) :]
    foreign = [path for path in before if glob.glob(os.path.join(path, "nvidia", "*", "lib"))]
    sys.path[:] = [path for path in before if path not in foreign] + after[:1] + foreign + after[1:]


def bind():
    """Have the framework find this environment's CUDA only; returns what could not be loaded."""
    import os

    document = _document()
    _own_packages_first()
    # Where the framework looks for CUDA's programs: ptxas, libdevice.
    os.environ.update(document.get("variables", {}))
    return load(document["libraries"])


class _Binder:
    """A finder that finds nothing: it sees the framework's first import and steps aside."""

    def __init__(self, modules):
        self.modules = modules

    def find_spec(self, name, path=None, target=None):
        if name in self.modules:
            # A list of its own: the import that asks is still on its way through the old one.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
            # The framework may still serve on the CPU; the person must know why the GPU is missing.
            for failure in bind():
                sys.stderr.write(f"gpufleet: cannot load {failure}\n")


def watch(*modules):
    """Bind the environment when one of these modules is first imported."""
    sys.meta_path.insert(0, _Binder(modules))


if __name__ == "__main__":
    sys.exit("\n".join(bind()) or 0)
