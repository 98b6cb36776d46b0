# Apache-2.0, see LICENSE
"""The steps of a repair, and the replacement of a tree by a fresh one.

A repair goes as far as a failing check demands: ``contents`` compares every file with what the
receipt and the packages record, and restores what differs; ``reinstall`` installs over the tree
whatever it contains; ``recreate`` moves the tree aside and installs as on a fresh host.

Moves and removes only the given trees. What people put into one is never removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time

from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    make_folder,
    refuse_kept,
    remove_tree,
    walk,
)

CONTENTS, REINSTALL, RECREATE = STEPS = ("contents", "reinstall", "recreate")

# The option of the modules that install.
OPTION = {"type": "str", "choices": list(STEPS)}


class Recreation:
    """A tree that is replaced; a run that is killed at any moment is finished by the next one.

    The tree is renamed, the fresh one is installed, what people had in the old one is kept, and
    only then the old one goes. While the old one exists, the new one is not complete.
    """

    def __init__(self, path):
        parent, name = os.path.split(path.rstrip("/"))
        self.path = path
        self.old = os.path.join(parent, ".gpufleet-old-" + name)
        self.gone = os.path.join(parent, ".gpufleet-gone-" + name)

    @property
    def started(self):
        """True if a tree was moved aside and its successor is not complete."""
        return os.path.lexists(self.old)

    def start(self):
        """Move the tree aside, or remove what a killed run installed in its place."""
        remove_tree(self.gone)
        if self.started:
            remove_tree(self.path)
        elif os.path.lexists(self.path):
            # Known now, and not when the fresh tree is there: the remedy names the place that is.
            refuse_kept(self.path)
            os.rename(self.path, self.old)

    def left(self, ours):
        """Relative paths of the old tree that are neither in ``ours`` nor in the new tree."""
        if os.path.islink(self.old) or not os.path.isdir(self.old):
            return []
        return [
            name
            for name in walk(self.old)
            if name not in ours and not os.path.lexists(os.path.join(self.path, name))
        ]

    def put_back(self, names):
        """Make these files of the old tree part of the new one; returns those without a place."""
        homeless = []
        for name in names:
            source, target = os.path.join(self.old, name), os.path.join(self.path, name)
            try:
                make_folder(os.path.dirname(target))
                # The old tree stays complete until it is removed as a whole.
                try:
                    os.link(source, target, follow_symlinks=False)
                except OSError:
                    shutil.copy2(source, target, follow_symlinks=False)
            except (NotADirectoryError, FileNotFoundError):
                homeless.append(name)
        return homeless

    def finish(self):
        """Remove the old tree; by one rename it is no longer the old one."""
        if self.started:
            os.rename(self.old, self.gone)
        remove_tree(self.gone)

    def undo(self):
        """Put the old tree back in its place, before it is removed by its receipt."""
        remove_tree(self.gone)
        if self.started:
            remove_tree(self.path)
            os.rename(self.old, self.path)


def set_aside(installation, root, names):
    """Move files that gpufleet did not install out of a tree; returns where they are then."""
    if not names:
        return None
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    place = os.path.join(
        installation.state_dir,
        "set-aside",
        "{}-{}-{}".format(installation.kind, installation.ident, stamp),
    )
    for name in names:
        target = os.path.join(place, name)
        make_folder(os.path.dirname(target))
        remove_tree(target)
        shutil.move(os.path.join(root, name), target)
        folder = os.path.dirname(os.path.join(root, name))
        # A directory that is empty now goes too: Python takes it for a package.
        with contextlib.suppress(OSError):
            while len(folder) > len(root) > 1:
                os.rmdir(folder)
                folder = os.path.dirname(folder)
    return place


def clear_places(installation, manifest):
    """Set aside what is in the place of a file: a directory, or a file where its directory was."""
    wrong = set()
    for entry in manifest:
        path = os.path.join(installation.path, entry["path"])
        parent = os.path.dirname(path)
        while len(parent) > len(installation.path) and not os.path.lexists(parent):
            parent = os.path.dirname(parent)
        if len(parent) > len(installation.path) and not os.path.isdir(parent):
            wrong.add(os.path.relpath(parent, installation.path))
        elif os.path.isdir(path) and not os.path.islink(path):
            wrong.add(entry["path"])
    return set_aside(installation, installation.path, sorted(wrong))
