# Apache-2.0, see LICENSE
"""Say why a file cannot be changed, and what a person does about it.

The kernel answers ``Operation not permitted`` to root for an immutable file, and names neither the
attribute nor the mount that keeps a program from writing. Reads the host, changes nothing.
"""

from __future__ import annotations

import errno
import os
import shlex

from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.constants import (
    ATTRIBUTE_LETTERS,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.filesystems import (
    MOUNTINFO,
    attribute_of,
    existing,
    free_space,
    is_full,
    mount_of,
    parse_mounts,
)

AGAIN = "; then run gpufleet provision again"


def fail(module, error, *places, **values):
    """End a module with an error, and with the reason where a file could not be changed.

    ``places``: what it writes besides the paths among its parameters. ``values``: what it returns
    besides the message.
    """
    module.fail_json(msg=explained(error, [*places, *_paths_in(module.params)]), **values)


def _paths_in(value):
    """The absolute paths among a module's parameters."""
    if isinstance(value, str):
        return [value] if value.startswith("/") else []
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [path for each in inner for path in _paths_in(each)]


def kept_from_removal(tree):
    """Return why a directory cannot be removed whole, with what to do; None where nothing is known.

    Removing what is mounted in it would empty what belongs to others.
    """
    real = os.path.realpath(tree)
    for mount in _mounts():
        if (mount["path"] + "/").startswith(real + "/"):
            return _mounted(mount)
    for folder, folders, files in os.walk(tree):
        for path in (folder, *(os.path.join(folder, name) for name in folders + files)):
            attribute = attribute_of(path)
            if attribute:
                return _attributed(path, attribute, tree)
    return None


def _attributed(path, attribute, tree=None):
    """The reason of an attribute, which is cleared in the whole ``tree`` if there is one."""
    return "{} has the attribute {} (lsattr {}): on the host: chattr {}-{} {}{}".format(
        path,
        attribute,
        "-R" if tree else "-d",
        "-R " if tree else "",
        ATTRIBUTE_LETTERS[attribute],
        shlex.quote(tree or path),
        AGAIN,
    )


def _mounted(mount):
    return "{} is mounted at {}: on the host: umount {}{}".format(
        mount["source"], mount["path"], shlex.quote(mount["path"]), AGAIN
    )


def explained(error, places=()):
    """Return the error's text, with what keeps its file from being changed and what to do.

    ``places``: where the program writes, for errors that name no file.
    """
    if not isinstance(error, OSError) or error.errno is None:
        # A program of others failed, in its own words.
        reason = _full(places) or _attribute(places)
        return "{}: {}".format(error, reason) if reason else str(error)
    named = [
        path
        for name in (error.filename, error.filename2)
        if isinstance(name, (str, bytes))
        for path in _paths(os.fsdecode(name), places)
    ]
    reason = REASONS.get(error.errno, _nothing)(named or list(places))
    return "{}: {}".format(error, reason) if reason else str(error)


def _paths(name, places):
    """The path of a name; one without a directory, as ``shutil.rmtree`` has it, is searched."""
    if os.path.isabs(name):
        return [name]
    return [
        os.path.join(folder, name)
        for place in places
        for folder, folders, files in os.walk(place)
        if name in files or name in folders
    ]


def _nothing(paths):
    return None


def _attribute(paths):
    """An attribute of a file, or of the directory whose entry it is."""
    for path in paths:
        for name in dict.fromkeys((path, existing(os.path.dirname(path)))):
            attribute = attribute_of(name)
            if attribute:
                return _attributed(name, attribute)
    return None


def _readonly(paths):
    for mount in _mounts_of(paths):
        if mount["readonly"]:
            return (
                "{source} is mounted read-only at {path}: on the host: unmount it if it does not"
                " belong there (umount {quoted}), or mount -o remount,rw {quoted}; after disk"
                " errors (dmesg -T) repair the file system first{again}"
            ).format(quoted=shlex.quote(mount["path"]), again=AGAIN, **mount)
    return None


def _full(paths):
    for mount in _mounts_of(paths):
        if is_full(mount["path"]):
            free_mib, free_files = free_space(mount["path"])
            files = "" if free_files is None else " and {} files".format(free_files)
            return (
                "the file system at {path} is full ({mib} MiB{files} are free): on the host: find"
                " what fills it (du -xh --max-depth=2 {quoted} | sort -h | tail), and free"
                " space{again}"
            ).format(
                path=mount["path"],
                mib=free_mib,
                files=files,
                quoted=shlex.quote(mount["path"]),
                again=AGAIN,
            )
    return None


def _quota(paths):
    return "a quota is used up: on the host: see quota -v and repquota -a{}".format(AGAIN)


def _busy(paths):
    mounts = {mount["path"]: mount for mount in _mounts()}
    for path in paths:
        mount = mounts.get(os.path.realpath(path))
        if mount:
            return _mounted(mount)
    return None


def _damaged(paths):
    return "the disk reports errors: on the host: see dmesg -T and smartctl -a"


def _mounts():
    try:
        with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as stream:
            return parse_mounts(stream.read())
    except OSError:
        return []


def _mounts_of(paths):
    """The mounts that these paths are on, each once."""
    mounts = _mounts()
    found = [mount_of(os.path.realpath(existing(path)), mounts) for path in paths]
    return [mount for at, mount in enumerate(found) if mount and mount not in found[:at]]


REASONS = {
    errno.EPERM: _attribute,
    errno.EACCES: _attribute,
    errno.EROFS: _readonly,
    errno.ENOSPC: _full,
    errno.EDQUOT: _quota,
    errno.EBUSY: _busy,
    errno.EIO: _damaged,
}
