# Apache-2.0, see LICENSE
"""Symbolic links of installations: how one is made, and which differ from the receipt."""

from __future__ import annotations

import os

from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    StateError,
    remove_tree,
)


def make_link(target, path):
    """Make a symbolic link in one step, replacing what is in its place."""
    partial = path + ".gpufleet-partial"
    remove_tree(partial)
    os.symlink(target, partial)
    os.rename(partial, path)


def differing(installation):
    """The receipt's links that are missing or have another target, as the manifest lists them.

    Raises ``StateError`` where a file, a directory or a linked directory is in the way.
    """
    found = []
    root = os.path.realpath(installation.path)
    for entry in installation.receipt["manifest"]:
        if entry["type"] != "link":
            continue
        path = os.path.join(root, entry["path"])
        folder = os.path.dirname(path)
        blocked = os.path.lexists(path) and not os.path.islink(path)
        # The manifest's paths have no symbolic link on the way.
        if blocked or not os.path.isdir(folder) or os.path.realpath(folder) != folder:
            raise StateError(
                "{} cannot be restored as a link: {}.".format(
                    path,
                    "something else is in its place"
                    if blocked
                    else "{} is not the directory that was installed".format(folder),
                )
            )
        if not os.path.islink(path) or os.readlink(path) != entry["target"]:
            found.append(entry)
    return found
