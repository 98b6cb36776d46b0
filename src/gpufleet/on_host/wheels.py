"""CUDA libraries in a stack's own wheels: which stack has the newest."""

import glob
import os
import re

from .receipts import receipts_of_kind
from .venvs import packages_of

LIBRARIES = "/lib/python3*/site-packages/nvidia/*/lib/*.so*"


def newest_wheels(host):
    """The path of our stack with the newest cuBLAS, or None."""
    found = []
    for receipt in receipts_of_kind(host, "stack"):
        names = host.glob(glob.escape(receipt["path"]) + LIBRARIES)
        if not any(os.path.basename(name).startswith("libcublas.so") for name in names):
            continue
        packages = packages_of(host, receipt["path"])
        versions = [
            [int(number) for number in re.findall(r"\d+", version)]
            for name, version in packages.items()
            if name.startswith("nvidia-cublas")
        ]
        found.append((max(versions, default=[]), receipt["path"]))
    return max(found)[1] if found else None
