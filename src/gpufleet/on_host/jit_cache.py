"""Code that the driver compiled for the host's GPUs, kept for each stack between probes.

A stack without machine code for a GPU has its PTX compiled at the first use, which takes minutes.
The driver keeps the result in a directory that CUDA_CACHE_PATH names. The probe runs as root, so
it takes only a directory that nobody else can write to. What is kept there stays until the stack is
removed; the driver limits its size.
"""

import json
import os
import shutil
import stat

from .frameworks import each_of
from .text import first_match

PLACE = "/var/cache/gpufleet/jit"
# The size that TensorFlow's documentation asks for: a driver's own limit is below that of a stack.
MOST_BYTES = 2 << 30
OWNER = 0
# How the packages begin whose code is compiled.
COMPILED = ("nvidia-", *each_of("compiled"))


def cache_path(name):
    """The directory of a stack."""
    return PLACE + "/" + name


def open_cache(host, name):
    """The directory of a stack, created where it is missing; None where it cannot be trusted."""
    if os.geteuid() != OWNER or os.path.basename(name) != name or name.startswith("."):
        return None
    path = ""
    for part in cache_path(name).strip("/").split("/"):
        path += "/" + part
        try:
            if not os.path.lexists(host.path(path)):
                os.mkdir(host.path(path), 0o700 if path.startswith(PLACE) else 0o755)
            info = os.lstat(host.path(path))
        except OSError:
            return None
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != OWNER or info.st_mode & 0o022:
            return None
    return path


def remove_cache(name):
    """Remove the directory of a stack, and what is recorded of it."""
    if os.path.basename(name) == name and not name.startswith("."):
        shutil.rmtree(cache_path(name), ignore_errors=True)
        try:
            os.unlink(cache_path(name) + ".json")
        except OSError:
            pass


def cache_variables(host, path):
    """The environment variables by which the driver keeps its code there."""
    return (
        {"CUDA_CACHE_PATH": host.path(path), "CUDA_CACHE_MAXSIZE": str(MOST_BYTES)} if path else {}
    )


def state_of(host, packages):
    """The state that the compiled code depends on."""
    return {
        "driver": first_match(
            r"Kernel Module[^\n]*?\s(\d[\d.]+)\s", host.text_or_none("/proc/driver/nvidia/version")
        ),
        "capabilities": host["capabilities"],
        "packages": {
            name: version for name, version in packages.items() if name.startswith(COMPILED)
        },
    }


def is_warm(host, path, packages):
    """Return whether the stack ran to its end with this directory, this driver, these cards."""
    try:
        return json.loads(host.text(path + ".json")) == state_of(host, packages)
    except (OSError, ValueError, TypeError):
        return False


def record_warm(host, path, packages):
    """Record that the stack has run to its end."""
    try:
        with open(host.path(path + ".json"), "w", encoding="utf-8") as stream:
            json.dump(state_of(host, packages), stream)
    except OSError:
        pass


def must_compile(host, venv):
    """Return whether a stack has no machine code for one of the cards, as far as known."""
    known = host["compiles"].get(venv)
    if not known:
        return False
    if host["capabilities"] is None:
        return bool(known["seconds"])
    return not all(
        any(_runs(card, target) for target in known["native"]) for card in host["capabilities"]
    )


def _runs(capability, target):
    """Machine code runs on its own major version, from its minor version on."""
    card, code = ([int(part) for part in text.split(".")] for text in (capability, target))
    return card[0] == code[0] and card[1] >= code[1]
