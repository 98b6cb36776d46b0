"""The driver's own programs and libraries: the host's, or those of a container that has the driver.

Such a container shows its root below CONTAINER (NVIDIA/gpu-operator issues 178 and 2137). Its
nvidia-smi is started with the driver's libraries alone, as the operator's validator does it: the
other libraries there belong to another system than the host's linker.
"""

import os
import shutil

from .processes import run_command
from .programs import SYSTEM_LOCATIONS, find_program
from .trust import CACHE, SYSTEM_PATH, account_for, library_file

CONTAINER = "/run/nvidia/driver"
# Where the driver's user-space libraries are: of distributions, of a container that has them from
# its host, of a driver that runs in a container, and of Windows' subsystem for Linux.
LIBRARY_LOCATIONS = (
    "/usr/lib/*-linux-gnu",
    "/usr/lib/*-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    CONTAINER + "/usr/lib/*-linux-gnu",
    CONTAINER + "/usr/lib64",
    "/usr/lib/wsl/lib",
)
CONTAINER_PROGRAMS = tuple(CONTAINER + place + "nvidia-smi" for place in SYSTEM_LOCATIONS)
# Libraries that nvidia-smi opens by name.
SMI_LIBRARIES = ("libnvidia-ml.so.1", "libcuda.so.1")


def of_container(host):
    """True where a container has the driver's programs, or its root is closed to this account."""
    for name in CONTAINER_PROGRAMS:
        try:
            os.stat(host.path(name))
        except PermissionError:
            return True
        except OSError:
            continue
        return True
    return False


def driver_library(host, soname):
    """The name of the library to open, as programs do, or the path of a container's library.

    In a planted tree it is the file that is there, or was there: a name alone would leave the tree.
    """
    found = [name for location in LIBRARY_LOCATIONS for name in host.glob(location + "/" + soname)]
    if host.real and (library_file(soname) or not (found and found[0].startswith(CONTAINER))):
        return soname
    return host.path(host.realpath(found[0]) if found else LIBRARY_LOCATIONS[-1] + "/" + soname)


def judge_library(name):
    """Raise RefusedError where root would load what others could have written.

    Such a library opens others by their names.
    """
    account_for(
        [name, CACHE] if "/" in name else [library_file(name) or CACHE, CACHE], as_owner=False
    )


def nvidia_smi(host):
    """The path of nvidia-smi: in the usual directories, on PATH, or in a container's root; None
    without nvidia-smi."""
    own = find_program(host, "nvidia-smi") or (shutil.which("nvidia-smi") if host.real else None)
    return own or next((name for name in CONTAINER_PROGRAMS if host.exists(name)), None)


def ask_nvidia_smi(host, arguments, deadline_s):
    """Status, stdout and stderr of nvidia-smi, which has to be there."""
    program = nvidia_smi(host)
    if not program.startswith(CONTAINER):
        return run_command([host.path(program), *arguments], deadline_s)
    found = [driver_library(host, soname) for soname in SMI_LIBRARIES]
    loaded = [path for path in found if os.path.exists(path)]
    return run_command(
        [host.path(program), *arguments],
        deadline_s,
        env={"PATH": SYSTEM_PATH, "LD_PRELOAD": ":".join(loaded)},
        code=loaded,
    )
