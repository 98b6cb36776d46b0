"""Section `linker`: which CUDA and cuDNN libraries the dynamic linker finds."""

import glob
import os

from ..constants import CUDA_FILE
from ..elf import soname_of
from ..linker_cache import DRIVER, linker_cache, linker_lines
from ..trees import library_directory, toolkit_trees


def section_linker(host):
    lines = list(linker_lines(host))
    in_order = [directory for _, directory in lines if directory]
    files = {name: [] for name, _ in lines}
    for name, directory in lines:
        files[name] += [directory] if directory else []
    named = {host.realpath(directory) for directory in in_order}
    directories = [library_directory(host, tree) for tree in toolkit_trees(host)]
    cache, cache_error = [], None
    try:
        cache = linker_cache(host.root)
    except ValueError:
        cache_error = "/etc/ld.so.cache is damaged, or of an unknown format"
    drivers = {row["path"]: row["realpath"] for row in cache if row["soname"] == DRIVER}
    for directory in in_order:
        # ldconfig makes the link of a SONAME where only libcuda.so is.
        for path in host.glob(glob.escape(directory) + "/libcuda.so*"):
            if soname_of(host, path) == DRIVER:
                drivers.setdefault(directory + "/" + DRIVER, host.realpath(path))
    return {
        "files": [{"path": name, "directories": found} for name, found in files.items()],
        "cache": [row for row in cache if row["soname"] != DRIVER],
        "drivers": [
            {"soname": DRIVER, "path": path, "realpath": real} for path, real in drivers.items()
        ],
        "cache_error": cache_error,
        "offered": offered_by_linker(host, in_order),
        "providers": providers(host, in_order),
        "unregistered": [d for d in directories if d and host.realpath(d) not in named],
    }


# Where the linker looks by itself, and what it prefers below each directory.
LINKER_LOCATIONS = (
    "/lib",
    "/usr/lib",
    "/lib64",
    "/usr/lib64",
    "/lib/*-linux-gnu",
    "/usr/lib/*-linux-gnu",
)
LINKER_SUBDIRECTORIES = ("", "/glibc-hwcaps/*", "/tls", "/haswell", "/x86_64", "/haswell/x86_64")


def providers(host, in_order):
    """The CUDA and cuDNN files (soname, path, realpath) that the linker may ever take."""
    directories_ = in_order + [
        name for location in LINKER_LOCATIONS for name in host.glob(location)
    ]
    found = {}
    for directory in dict.fromkeys(host.realpath(location) for location in directories_):
        for below in [
            d for more in LINKER_SUBDIRECTORIES for d in host.glob(glob.escape(directory) + more)
        ]:
            try:
                names = sorted(os.listdir(host.path(below)))
            except OSError:
                continue
            for name in [n for n in names if CUDA_FILE.match(n)]:
                path = below + "/" + name
                found.setdefault(host.realpath(path), path)
    rows = [
        {"soname": soname_of(host, real), "path": path, "realpath": real}
        for real, path in found.items()
    ]
    return [row for row in rows if row["soname"]]


def offered_by_linker(host, in_order):
    """Where ldconfig would find each CUDA and cuDNN library, were it run now: the first one."""
    first = {}
    for directory in in_order:
        for name in host.glob(glob.escape(directory) + "/lib*.so*"):
            if CUDA_FILE.match(os.path.basename(name)):
                soname = soname_of(host, name)
                if soname:
                    first.setdefault(
                        soname, {"soname": soname, "path": name, "realpath": host.realpath(name)}
                    )
    return list(first.values())
