"""CUDA libraries in a stack's own wheels: which stack has the newest, and who may change them."""
import glob
import os
import re

from .receipts import receipts_of_kind
from .sections.receipts import writable_by_others
from .venvs import packages_of

LIBRARIES = "/lib/python3*/site-packages/nvidia/*/lib/*.so*"


def newest_wheels(host):
    """(stack's path, its receipt, its libraries) of the newest cuBLAS among our stacks, or None."""
    found = []
    for receipt in receipts_of_kind(host, "stack"):
        names = host.glob(glob.escape(receipt["path"]) + LIBRARIES)
        if not any(os.path.basename(name).startswith("libcublas.so") for name in names):
            continue
        packages = packages_of(host, receipt["path"])
        versions = [[int(number) for number in re.findall(r"\d+", version)]
                    for name, version in packages.items() if name.startswith("nvidia-cublas")]
        found.append((max(versions, default=[]), receipt["path"], receipt, names))
    if not found:
        return None
    _, path, receipt, names = max(found, key=lambda entry: entry[:2])
    return path, receipt, names


def refusal(host, path, receipt, names):
    """Why these libraries are not loaded, as root would: another account can change them."""
    top = host.realpath(path)
    outside = [name for name in names if not host.realpath(name).startswith(top + "/")]
    if outside:
        return "%s leads out of %s: it is not loaded" % (outside[0], path)
    relative = [name[len(path) + 1:] for name in names]
    for entry in writable_by_others(host, receipt, relative, (), {}):
        return "%s: %s: its libraries are not loaded" % (entry["path"], entry["what"])
    return None
