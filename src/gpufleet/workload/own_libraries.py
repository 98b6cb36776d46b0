"""The CUDA libraries of this interpreter's environment: which of them open, and which do not.

They are those that its binding names (`_gpufleet_binding.json`), and those in its wheels.
The framework has loaded what it needs before: a name that is mapped stays what it is. The others
are opened here, so that a host without a GPU proves them too.
"""

import ctypes
import glob
import json
import os
import re
import sys

from gpufleet.on_host.constants import is_cuda_file
from gpufleet.on_host.frameworks import each_of

from .loaded import mapped_files

# They do something when they are opened: a log file, another library's functions.
LEFT_OUT = re.compile(r"^lib(nvblas|cufile)")
DRIVER = "libcuda.so.1"
# cuDNN's own checks of its parts, of 9 and 8: each loads one of them, as the first use does. 8 ends
# the process where a part is missing, or where there is no driver.
CUDNN_CHECKS = (
    "cudnnGraphVersionCheck",
    "cudnnOpsVersionCheck",
    "cudnnCnnVersionCheck",
    "cudnnAdvVersionCheck",
    "cudnnOpsInferVersionCheck",
    "cudnnCnnInferVersionCheck",
    "cudnnAdvInferVersionCheck",
    "cudnnOpsTrainVersionCheck",
    "cudnnCnnTrainVersionCheck",
    "cudnnAdvTrainVersionCheck",
)
# Errors of a stack's library on a host without a driver, or with an older one: no fault of it.
WITHOUT_DRIVER = re.compile(
    r"libcuda\.so\.1: cannot open shared object file"
    r"|undefined symbol: cu[A-Z]"
)


def site_directories():
    """The directories of this environment's own packages."""
    prefix = os.path.realpath(sys.prefix) + "/"
    return [
        path
        for path in sys.path
        if "-packages" in path and os.path.realpath(path).startswith(prefix)
    ]


def bound_libraries():
    """Absolute paths of the libraries that the environment is bound to, in their order."""
    for site in site_directories():
        try:
            with open(site + "/_gpufleet_binding.json") as stream:
                return [str(path) for path in json.load(stream)["libraries"]]
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return []


def own_libraries():
    """The paths of the CUDA libraries of the binding and of the wheels, by soname."""
    paths = bound_libraries()
    for site in site_directories():
        for place in ("nvidia/*/lib", *each_of("libraries")):
            paths += sorted(glob.glob(glob.escape(site) + "/" + place + "/lib*.so.*"))
    found = {}
    for path in paths:
        name = os.path.basename(path)
        if is_cuda_file(name) and not LEFT_OUT.match(name):
            found.setdefault(name, path)
    return found


def open_own_libraries():
    """Open each of the stack's own libraries, and return "ran", "opened" and "failed".

    A library that the binding or the framework has loaded is opened by its name, as a framework
    does; the others by their path.
    """
    bound = {os.path.basename(path) for path in bound_libraries()}
    opened, failed, driver = [], [], try_open(DRIVER)
    check_cudnn(bound, failed, driver is None)
    for name, path in own_libraries().items():
        by_name = name in bound or is_mapped(name)
        error = try_open(name if by_name else path)
        if error and not WITHOUT_DRIVER.search(error):
            failed.append({"library": name, "error": error})
        elif not error:
            opened.append(name)
    if driver:
        failed.append({"library": DRIVER, "error": driver})
    else:
        opened.append(DRIVER)
    return {"ran": True, "opened": opened, "failed": failed}


def is_mapped(name):
    return any(os.path.basename(path) == name for path in mapped_files())


def try_open(name):
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return str(error)
    return None


def check_cudnn(bound, failed, with_driver):
    """Have cuDNN load its parts from where it finds them, before anything else loads them."""
    for name, path in own_libraries().items():
        major = re.match(r"libcudnn\.so\.(\d+)$", name)
        if not major or (int(major.group(1)) < 9 and not with_driver):
            continue
        try:
            library = ctypes.CDLL(name if name in bound or is_mapped(name) else path)
        except OSError:
            return  # it is reported with the others
        for check in CUDNN_CHECKS:
            # 8 has the names of 9 in none of its parts, and a part that is not there has no symbol.
            status = getattr(library, check, int)()
            if status:
                failed.append({"library": name, "error": "%s returned %d" % (check, status)})


def dies(path, function):
    """The signal that ends a process which calls this function of a library; 0 where none does.

    Tried in a process of its own: CUPTI 13.2.86 ends the one that asks for its version where there
    is no driver.
    """
    child = os.fork()
    if not child:
        try:
            getattr(ctypes.CDLL(path), function)(ctypes.byref(ctypes.c_uint32()))
        except (OSError, AttributeError):
            pass
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
