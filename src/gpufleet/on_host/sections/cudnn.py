"""Section `cudnn`: headers, libraries and links of cuDNN in each toolkit."""

import ctypes
import os
import stat

from ..elf import elf_dynamic
from ..manifest import mode_of
from ..processes import in_child, open_library, scratch_file
from ..receipts import receipts_of_kind
from ..text import first_match, natural
from ..trees import (
    libraries,
    library_directory,
    toolkit_trees,
    unreadable_by_others,
    with_unfit_libraries,
)
from ..trust import CACHE, RefusedError, account_for


def section_cudnn(host):
    trees = toolkit_trees(host)
    for receipt in receipts_of_kind(host, "cudnn"):
        if receipt["path"] not in trees and os.path.isdir(host.path(receipt["path"])):
            trees.append(receipt["path"])
    return {
        "trees": [
            found
            for found in (cudnn_in_tree(host, tree) for tree in trees)
            if found["headers"] or found["libraries"] or found["links"]
        ]
    }


def cudnn_in_tree(host, tree):
    found = {
        "toolkit": tree,
        "headers": [],
        "libraries": [],
        "links": [],
        "loaded": [],
        "closed": [],
    }
    for name in ("cudnn_version.h", "cudnn.h"):
        path = tree + "/include/" + name
        text = host.text_or_none(path)
        numbers = [
            first_match(r"^#define\s+CUDNN_%s\s+(\d+)" % part, text)
            for part in ("MAJOR", "MINOR", "PATCHLEVEL")
        ]
        # Since 8.0 cudnn.h has no numbers of its own; a cudnn_version.h without them is damaged.
        if text is not None and (all(numbers) or name == "cudnn_version.h"):
            found["headers"].append(
                {
                    "path": path,
                    "mode": mode_of(os.stat(host.path(path))),
                    "version": ".".join(numbers) if all(numbers) else None,
                }
            )
    directory = library_directory(host, tree)
    shims, by_soname = set(), {}
    for name in libraries(host, directory, "cudnn"):
        path = host.path(name)
        if os.path.islink(path):
            found["links"].append(
                {"path": name, "target": os.readlink(path), "exists": host.exists(name)}
            )
            number = first_match(r"/libcudnn\.so\.(\d+)$", name)
        else:
            info = os.lstat(path)
            soname = error = None
            try:
                if not stat.S_ISREG(info.st_mode):
                    raise ValueError("it is not a regular file")
                headers = elf_dynamic(path)
                soname, error = headers["soname"], headers["unfit"]
            except (ValueError, OSError) as problem:
                error = str(problem)
            found["libraries"].append(
                {
                    "path": name,
                    "soname": soname,
                    "size_bytes": info.st_size,
                    "mode": mode_of(info),
                    "error": error,
                }
            )
            by_soname.setdefault(soname, name)
            number = first_match(r"^libcudnn\.so\.(\d+)$", soname or "") or first_match(
                r"/libcudnn\.so\.(\d+)", name
            )
        if number:
            shims.add("libcudnn.so." + number)
    found["closed"] = unreadable_by_others(
        host, [entry["path"] for entry in found["libraries"] + found["headers"]]
    )
    for soname in sorted(shims, key=natural):
        path = host.realpath(directory) + "/" + soname
        # A missing link is one finding, the version of the file that it should point to another.
        if not host.exists(path):
            path = by_soname.get(soname, path)
        stderr = scratch_file()
        try:
            # It loads others beside it.
            account = account_for([host.path(path), host.path(directory), CACHE], as_owner=True)
            state, version, error = in_child(
                load_cudnn, (host.path(path), stderr), host.inner_s / 4, account
            )
        except RefusedError as refused:
            state, version, error = "error", None, str(refused)
        stderr.seek(0)
        message = stderr.read().decode("utf-8", "replace").strip()
        stderr.close()
        # A cuDNN that lacks another library prints its name, and aborts.
        if error and message:
            error += " (%s)" % message[-300:]
        error = with_unfit_libraries(host, error, (tree,))
        found["loaded"].append(
            {
                "soname": soname,
                "path": path,
                "version": version,
                "error": error,
                "hung": state == "hung",
            }
        )
    return found


def load_cudnn(path, stderr):
    os.dup2(stderr.fileno(), 2)
    library = open_library(path, os.RTLD_NOW)
    library.cudnnGetVersion.restype = ctypes.c_size_t
    number = library.cudnnGetVersion()
    # 8.9.7 is 8907, 9.1.0 is 90100.
    major = 1000 if number < 10000 else 10000
    return "%d.%d.%d" % (number // major, number % major // 100, number % 100)
