"""Toolkit trees, the libraries in them, and whether other users can read them."""
import os
import stat

from .manifest import mode_of
from .receipts import receipts_of_kind
from .text import natural


def toolkit_trees(host):
    """Trees under the prefix and at the paths of receipts; links to a tree are not trees."""
    trees = [name for name in host.glob(host["prefix"] + "/cuda-[0-9]*")
             if os.path.isdir(host.path(name)) and not os.path.islink(host.path(name))]
    for receipt in receipts_of_kind(host, "toolkit"):
        if receipt["path"] not in trees and os.path.isdir(host.path(receipt["path"])):
            trees.append(receipt["path"])
    return sorted(trees, key=natural)


def library_directory(host, tree):
    for name in (tree + "/lib64", *host.glob(tree + "/targets/*/lib"), tree + "/lib"):
        if host.exists(name):
            return name
    return None


def libraries(host, directory, stem):
    return sorted(host.glob(host.realpath(directory) + "/lib%s*.so*" % stem), key=natural) \
        if directory else []


def unreadable_by_others(host, names):
    """[{"path", "mode"}] of what keeps other users than its owner from reading these files."""
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
            needed = (0o005 if depth == len(steps) else 0o001) if stat.S_ISDIR(info.st_mode) \
                else 0o004
            if info.st_mode & needed != needed:
                closed.append({"path": path, "mode": mode_of(info)})
                break
    return list({entry["path"]: entry for entry in closed}.values())
