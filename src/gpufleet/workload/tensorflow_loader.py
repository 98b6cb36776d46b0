"""TensorFlow's own loader of CUDA's libraries: which it opens, and which it cannot."""

import ctypes
import os
import re

from .output import captured, unique

# TensorFlow's own check of its libraries, newest name first. Each returns a status object by
# hidden pointer and does nothing but dlopen.
LOADERS = (
    "_ZN3tsl8internal9DsoLoader22TryDlopenCUDALibrariesEv",
    "_ZN3tsl8internal9DsoLoader26MaybeTryDlopenGPULibrariesEv",
    "_ZN10tensorflow8internal9DsoLoader22TryDlopenCUDALibrariesEv",
    "_ZN15stream_executor8internal9DsoLoader22TryDlopenCUDALibrariesEv",
    "_ZN15stream_executor8internal9DsoLoader26MaybeTryDlopenGPULibrariesEv",
)
OPENED = re.compile(r"Successfully opened (?:dynamic|CUDA) library (\S+)")
NOT_OPENED = re.compile(
    r"(?:Could not (?:load|dlopen) (?:dynamic )?library '([^']+)'; dlerror: )"
    r"(.*?)(?:; LD_LIBRARY_PATH:.*)?$",
    re.MULTILINE,
)


def query_loader(tensorflow):
    """Make TensorFlow open its CUDA libraries now, with or without a GPU; parse its log."""
    silent = {"ran": False, "opened": [], "failed": []}
    directory = os.path.dirname(tensorflow.__file__)
    core = os.path.join(os.path.dirname(directory), "tensorflow_core")
    for location in (directory, core):
        names = sorted(os.listdir(location)) if os.path.isdir(location) else []
        for name in names:
            if not name.startswith(("libtensorflow_framework.so", "libtensorflow_cc.so")):
                continue
            try:
                library = ctypes.CDLL(os.path.join(location, name))
            except OSError:
                continue
            for symbol in LOADERS:
                if hasattr(library, symbol):
                    text = captured(lambda: status_of(getattr(library, symbol)))[1]  # noqa: B023
                    failed = [
                        {"library": library_, "error": error}
                        for library_, error in NOT_OPENED.findall(text)
                    ]
                    return {"ran": True, "opened": unique(OPENED.findall(text)), "failed": failed}
    return silent


def status_of(function):
    """Call a C++ function that returns a status object by hidden pointer."""
    status = ctypes.create_string_buffer(64)
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_void_p
    function(status)
