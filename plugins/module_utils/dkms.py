# Apache-2.0, see LICENSE
"""DKMS: why a build failed, what a killed or damaged one leaves, and free disk space."""

from __future__ import annotations

import contextlib
import glob
import os
import re

from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.filesystems import free_space
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.module_files import damage
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import remove_tree

TREE = "/var/lib/dkms"

LINES = 4
# Lines of a build's log that name the cause of its failure.
_CAUSE = re.compile(r"error|No space left|cannot|failed|not found|No such file", re.IGNORECASE)
# A log's first line: "DKMS make.log for nvidia-580.126.20 for kernel 6.8.0-52-generic (x86_64)".
_KERNEL = re.compile(r"^DKMS make\.log for \S+ for kernel (\S+)")


def end_of_log(text):
    """Return the relevant last lines of the log that a message of DKMS names; else no text."""
    for path in re.findall(r"(/var/lib/dkms/\S+?/make\.log)", text):
        with contextlib.suppress(OSError), open(path, errors="replace") as stream:
            lines = [line.strip() for line in stream if line.strip()]
            causes = [line for line in lines if _CAUSE.search(line)] or lines
            kernel = _KERNEL.search(lines[0]) if lines else None
            where = "{} (kernel {})".format(path, kernel.group(1)) if kernel else path
            return "{} says: {}".format(where, " / ".join(causes[-LINES:]))
    full = [line.strip() for line in text.splitlines() if "No space left on device" in line]
    return full[-1] if full else ""


def remove_half_added(tree=TREE):
    """Remove the driver's versions that DKMS has a directory for and no source.

    `dkms add` that was killed leaves such a one. DKMS then neither adds the version nor removes
    it, and each installation of its package fails.
    """
    for path in glob.glob(os.path.join(tree, "nvidia*", "[0-9]*")):
        if not os.path.islink(path) and set(os.listdir(path)) <= {"build"}:
            remove_tree(path)


def has_whole_build(module, version, kernel, tree=TREE):
    """Return whether DKMS keeps modules that it built for a kernel, none of them damaged."""
    place = built_place(module, version, kernel, tree)
    files = glob.glob(os.path.join(glob.escape(place), "*/module/*.ko*"))
    return bool(files) and not any(damage(path) for path in files)


def forget_build(module, version, kernel, tree=TREE):
    """Remove what DKMS keeps of its build for a kernel, and the link that marks it as installed.

    No command of DKMS does this in every release. Before 3.0.7 `dkms build --force` keeps a build
    that is there. Ubuntu 20.04 (2.8.1) has no `dkms unbuild`. `dkms remove` forgets the whole
    version with the last kernel, so a run that is killed there leaves nothing to build from. And
    where a file of the build is missing, 2.8 refuses both.
    """
    for link in glob.glob(
        os.path.join(glob.escape(os.path.join(tree, module)), "kernel-%s-*" % glob.escape(kernel))
    ):
        if os.path.islink(link) and os.readlink(link).split("/")[-3:-1] == [version, kernel]:
            os.unlink(link)
    remove_tree(built_place(module, version, kernel, tree))


def built_place(module, version, kernel, tree):
    """The directory of DKMS with what it built for a kernel."""
    return os.path.join(tree, module, version, kernel)


def nearest(path):
    """Return a directory, or its nearest parent that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def free_mib(path):
    """Return the free MiB at a directory, or at its nearest parent that exists."""
    return free_space(nearest(path))[0]
