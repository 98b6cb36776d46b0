"""NVIDIA's kernel modules on disk."""

import glob
import os
import re
import struct

from .elf import elf_modinfo
from .modprobe import modprobe_files
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
    found = []
    for location in MODULE_DIRECTORIES:
        for top in host.glob("/lib/modules/%s/%s" % (glob.escape(kernel), location)):
            for directory, _, files in os.walk(host.path(top)):
                found += [
                    host.name(os.path.join(directory, f))
                    for f in sorted(files)
                    if DRIVER_MODULE.match(f)
                ]
    chosen, modules, loaded = loaded_by_name(host), [], ""
    if len({os.path.basename(path) for path in found}) < len(found):
        # Beside DKMS's there is the distribution's own build; depmod lists the one it chose.
        loaded = host.text_or_none("/lib/modules/%s/modules.dep" % kernel) or ""
    for at, path in enumerate(found):
        stem = DRIVER_MODULE.match(os.path.basename(path)).group(1)
        suffix = BESIDE_MODULE.search(stem)
        information = module_information(host, path, "" if suffix else stem)
        driver = stem[: suffix.start()] if suffix else stem
        name = "nvidia-" + suffix.group(1) if suffix else "nvidia"
        listed = "\n%s:" % path.split(kernel + "/", 1)[1] in "\n" + loaded
        modules.append(
            (
                driver != chosen,
                name,
                not listed,
                at,
                {
                    "name": name,
                    "path": path,
                    "version": information.get("version"),
                    "license": information.get("license"),
                },
            )
        )
    return [entry[-1] for entry in sorted(modules, key=lambda entry: entry[:4])]


def loaded_by_name(host):
    """The module that `modprobe nvidia` loads: nvidia-current, where Debian configures it."""
    for _, text in modprobe_files(host):
        named = first_match(r"^\s*(?:install\s+nvidia\s.*?|alias\s+nvidia\s+)(nvidia-[\w-]+)", text)
        if named:
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
