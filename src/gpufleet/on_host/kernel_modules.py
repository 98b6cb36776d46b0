"""NVIDIA's kernel modules on disk."""

import glob
import os
import re
import struct

from .elf import elf_modinfo
from .modprobe import commands, modprobe_files
from .module_files import ABSENT, damage
from .processes import run_command
from .programs import find_tool
from .text import first_match

# Kernel modules of the driver, by the names that distributions give them (nvidia-current-uvm.ko).
DRIVER_MODULE = re.compile(r"^(nvidia(?![-_](?:wmi|fs)\b)(?:[-_][\w-]+)?)\.ko(?:\.(?:xz|zst|gz))?$")
BESIDE_MODULE = re.compile(r"[-_](uvm|drm|modeset|peermem)$")
# Where in /lib/modules/VERSION they are put, in the order in which depmod prefers them; to walk
# through all of it takes ten times as long.
MODULE_DIRECTORIES = (
    "updates",
    "extra",
    "weak-updates",
    "misc",
    "kernel/nvidia*",
    "kernel/extra",
    "kernel/drivers/video",
    "kernel/drivers/char",
)


def driver_modules(host, kernel):
    """NVIDIA's modules for a kernel; of several drivers the one first that would be loaded."""
    top = "/lib/modules/%s/" % kernel
    listed = listed_modules(host, top)
    found = []
    for location in MODULE_DIRECTORIES:
        for directory in host.glob(glob.escape(top) + location):
            for place, _, files in os.walk(host.path(directory)):
                found += [
                    host.name(os.path.join(place, f))
                    for f in sorted(files)
                    if DRIVER_MODULE.match(f)
                ]
    # In other directories there are such as the kernel's own nvidia_cspmu.
    found += [
        path
        for path in listed or []
        if path not in found and not path.startswith(top + "kernel/") and host.exists(path)
    ]
    chosen, modules = loaded_by_name(host), []
    for at, path in enumerate(found):
        stem = DRIVER_MODULE.match(os.path.basename(path)).group(1)
        suffix = BESIDE_MODULE.search(stem)
        information = module_information(host, path, "" if suffix else stem)
        driver = stem[: suffix.start()] if suffix else stem
        name = "nvidia-" + suffix.group(1) if suffix else "nvidia"
        error = damage(host.path(host.realpath(path)))
        if not error and listed is not None and path not in listed:
            error = "modules.dep does not list it, so modprobe does not find it"
        row = {
            "name": name,
            "path": path,
            "version": information.get("version"),
            "license": information.get("license"),
            "error": error,
        }
        # depmod prefers no link that leads nowhere.
        order = (driver != chosen, name, path not in (listed or []), error == ABSENT, at)
        modules.append((order, row))
    return [row for _, row in sorted(modules, key=lambda entry: entry[0])]


def listed_modules(host, top):
    """The driver's modules that depmod lists; None where its list is not there or is empty.

    Beside DKMS's module there may be the distribution's own: depmod lists the one it chose.
    """
    try:
        text = host.text_or_none(top + "modules.dep") or ""
    except OSError:
        text = ""
    paths = [os.path.join(top, name) for name in re.findall(r"^([^:\n]+):", text, re.MULTILINE)]
    return (
        [path for path in paths if DRIVER_MODULE.match(os.path.basename(path))] if paths else None
    )


def loaded_by_name(host):
    """The module that `modprobe nvidia` loads: nvidia-current, where Debian configures it."""
    for _, text in modprobe_files(host):
        for command, module, rest in commands(text):
            named = first_match(r"(nvidia-[\w-]+)", rest)
            if named and module == "nvidia" and command in ("install", "alias"):
                return named
    return "nvidia"


def module_information(host, path, stem):
    """`version` and `license` of a module file; nothing where they cannot be read.

    Unpacking the driver itself, `stem`, takes a second. So of packed modules only its information
    is returned, read from the small module beside it, which is of the same build.
    """
    try:
        if path.endswith(".ko"):
            return elf_modinfo(host.path(host.realpath(path)))
    except (OSError, ValueError, struct.error):
        return {}
    if not stem or not host.real:
        return {}
    small = path.replace(stem + ".ko", stem + "-modeset.ko")
    status, out, _ = run_command(
        [find_tool("modinfo"), small if host.exists(small) else path], host.inner_s / 4
    )
    information = [line.partition(":") for line in out.splitlines()] if status == 0 else []
    return {key.strip(): value.strip() for key, mark, value in information if mark}
