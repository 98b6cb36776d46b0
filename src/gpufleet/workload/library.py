"""Shared libraries called by ctypes, and how a toolkit's are found."""

import ctypes
import glob
import os
import re


class Refused(Exception):  # noqa: N818 (it is an answer)
    """A library call failed: the function, its status and the status's name."""


class Absent(Refused):
    """The library, which may be an older one, has no such function."""


def has_wheels(toolkit):
    """Return whether a path is a stack's virtual environment, with CUDA in its wheels."""
    return os.path.isfile(toolkit + "/pyvenv.cfg")


def library_directories(toolkit):
    """The library directories of a toolkit, or of a stack's wheels."""
    if has_wheels(toolkit):
        return sorted(glob.glob(glob.escape(toolkit) + "/lib/python3*/site-packages/nvidia/*/lib"))
    directories = [
        toolkit + "/lib64",
        *sorted(glob.glob(toolkit + "/targets/*/lib")),
        toolkit + "/lib",
    ]
    return [directory for directory in directories if os.path.isdir(directory)]


def library_names(toolkit, stem):
    """Pairs of a directory and a file name of that library, in the first directory that has it."""
    for directory in library_directories(toolkit):
        found = [name for name in os.listdir(directory) if re.match(r"lib%s\.so\.\d" % stem, name)]
        if found:
            return [(directory, name) for name in found]
    return []


def library_file(toolkit, stem):
    """The file of that toolkit by its SONAME, which is the shortest of its versioned names."""
    found = sorted(library_names(toolkit, stem), reverse=True)
    if not found:
        raise Refused("there is no lib%s.so.* in %s" % (stem, toolkit))
    return os.path.join(*min(found, key=lambda pair: len(pair[1])))


class Library:
    """A library whose functions return 0, or else a number that `describe` may have a name for."""

    KNOWN = ()

    def __init__(self, path):
        self.library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)

    def __call__(self, function, *arguments):
        try:
            status = getattr(self.library, function)(*arguments)
        except AttributeError:
            raise Absent("it has no %s" % function) from None
        if status:
            reason = "%s returned %d %s" % (function, status, self.describe(status))
            raise Refused(reason.rstrip())

    def describe(self, status):
        return dict(self.KNOWN).get(status, "")

    def name_of_status(self, function, status):
        try:
            name = getattr(self.library, function)
        except AttributeError:
            return ""
        name.restype = ctypes.c_char_p
        return (name(status) or b"").decode("utf-8", "replace")
