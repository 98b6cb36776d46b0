"""Toolkit trees, the libraries in them, and whether other users can read them."""

import glob
import os
import re
import stat

from .constants import CUDA_FILE
from .elf import unfit
from .manifest import mode_of
from .receipts import receipts_of_kind
from .text import natural
from .trust import code_writers


def toolkit_trees(host):
    """Trees under the prefix and at the paths of receipts; links to a tree are not trees."""
    trees = [
        name
        for name in host.glob(host["prefix"] + "/cuda-[0-9]*")
        if os.path.isdir(host.path(name)) and not os.path.islink(host.path(name))
    ]
    for receipt in receipts_of_kind(host, "toolkit"):
        if receipt["path"] not in trees and os.path.isdir(host.path(receipt["path"])):
            trees.append(receipt["path"])
    return sorted(trees, key=natural)


def library_directories(host, tree):
    """The library directories of a toolkit, or of a stack's wheels."""
    names = (
        tree + "/lib64",
        *host.glob(glob.escape(tree) + "/targets/*/lib"),
        tree + "/lib",
        *host.glob(glob.escape(tree) + "/lib/python3*/site-packages/nvidia/*/lib"),
    )
    return [name for name in names if host.exists(name)]


def library_directory(host, tree):
    return next(iter(library_directories(host, tree)), None)


def libraries(host, directory, stem):
    return (
        sorted(host.glob(host.realpath(directory) + "/lib%s*.so*" % stem), key=natural)
        if directory
        else []
    )


MISSING = re.compile(
    r"([\w./+-]+\.so[\w.]*): (?:cannot open shared object file[^\n;'\"]*"
    r"|version `GLIBC[^\n;]*|wrong ELF class[^\n;]*)"
)


def with_unfit_libraries(host, document, trees):
    """A document, its loaders' messages put right: a loader passes over a library that is there
    and is for another machine, and reports that there is none."""
    if isinstance(document, dict):
        return {key: with_unfit_libraries(host, value, trees) for key, value in document.items()}
    if isinstance(document, list):
        return [with_unfit_libraries(host, value, trees) for value in document]
    if not isinstance(document, str) or ".so" not in document:
        return document

    def reason(match):
        name = match.group(1)
        names = (
            [name]
            if name.startswith("/")
            else [
                host.path(location) + "/" + name
                for tree in trees
                if tree
                for location in library_directories(host, tree)
            ]
        )
        found = [(path, unfit(path)) for path in names]
        return next(
            ("%s: %s" % (host.name(path), why) for path, why in found if why), match.group()
        )

    return MISSING.sub(reason, document)


def unfit_libraries(host, names):
    """The libraries (path, error) that this host cannot load."""
    found = [
        (name, unfit(host.path(name)))
        for name in names
        if CUDA_FILE.match(os.path.basename(name)) and not os.path.islink(host.path(name))
    ]
    return [{"path": name, "error": why} for name, why in found if why]


def foreign_parts(host, tree, received):
    """The parts of a tree without receipt (path, what) that others than root can change."""
    if received:
        return []
    return behind_links(
        host,
        tree,
        [
            {"path": tree, "what": host.name(reason)}
            for reason in code_writers(host.path(tree)).values()
        ],
    )


def behind_links(host, root, exposed):
    """The parts of the installation at `root` that others can change; each link there once.

    What a link leads to may be a user's own, in a home: its owner is nothing to change.
    """
    real, on_the_way, found = host.realpath(root), first_link(host, root + "/"), {}
    for entry in exposed:
        path, link = entry["path"], first_link(host, entry["path"])
        above = (root + "/").startswith(path.rstrip("/") + "/") and path != root
        if (
            on_the_way
            and not above
            and (
                path == root
                or (path + "/").startswith(real + "/")
                or (real + "/").startswith(path + "/")
            )
        ):
            link = on_the_way
        if link:
            target = host.realpath(link)
            what = entry["what"] if path in entry["what"] else path + " " + entry["what"]
            found.setdefault(
                link, {"path": link, "link": target, "what": "a link to %s: %s" % (target, what)}
            )
        else:
            found.setdefault(path, entry)
    return list(found.values())


def first_link(host, name):
    """The first directory on the way to a path that is a link; None without one."""
    steps = name.split("/")
    return next(
        (
            step
            for step in ("/".join(steps[:depth]) for depth in range(2, len(steps)))
            if os.path.islink(host.path(step))
        ),
        None,
    )


def unreadable_by_others(host, names):
    """The paths (path, mode) that keep others than the owner from reading these files."""
    closed, checked = [], set()
    for name in names:
        steps = host.realpath(name).split("/")
        for depth in range(2, len(steps) + 1):
            path = "/".join(steps[:depth])
            if (path, depth == len(steps)) in checked:
                continue
            checked.add((path, depth == len(steps)))
            try:
                info = os.stat(host.path(path))
            except OSError:
                break
            # To pass through a directory is enough on the way; the last one is listed.
            needed = (
                (0o005 if depth == len(steps) else 0o001) if stat.S_ISDIR(info.st_mode) else 0o004
            )
            if info.st_mode & needed != needed:
                closed.append({"path": path, "mode": mode_of(info)})
                break
    return list({entry["path"]: entry for entry in closed}.values())
