# Apache-2.0, see LICENSE
"""Unpack cuDNN's archive: as it is installed, or already while its toolkit is.

NVIDIA's installer and xz use one processor each. What was unpacked beforehand stands in the
directory of the artifacts, which gpufleet clears at the end of a run.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import stat
import tarfile
import threading

from ansible_collections.gpufleet.gpu.plugins.module_utils.module import (
    check_artifact,
    source_of,
)
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.manifest import BLOCK
from ansible_collections.gpufleet.gpu.plugins.module_utils.owned import refuse_foreign
from ansible_collections.gpufleet.gpu.plugins.module_utils.receipts import (
    UNPACKED,
    StateError,
    boot_id,
    remove_tree,
    same_filesystem,
    write_atomically,
)

# Written last: which archive it is, and in which boot. What was not flushed to disk before the host
# lost power may be empty.
WHOLE = ".whole.json"


def safe_members(archive, wanted):
    """The archive's members below the ``wanted`` directories; raises on one that would escape."""
    for member in archive:
        name = os.path.normpath(member.name)
        if os.path.isabs(name) or name.startswith(".."):
            raise StateError("The archive holds {}, outside of its own tree.".format(member.name))
        if not any(name.startswith(folder.rstrip("/") + "/") for folder in wanted):
            continue
        if member.issym():
            target = os.path.normpath(os.path.join(os.path.dirname(name), member.linkname))
            if os.path.isabs(member.linkname) or target.startswith(".."):
                raise StateError(
                    "The archive's link {} leads out of it, to {}.".format(name, member.linkname)
                )
        elif not (member.isfile() or member.isdir()):
            raise StateError("The archive holds {}, which is no plain file.".format(member.name))
        yield member


class Stoppable(io.FileIO):
    """A file of which each read fails once an event is set."""

    def __init__(self, path, stop):
        super().__init__(path)
        self.stop = stop

    def read(self, size=-1):
        if self.stop.is_set():
            raise OSError(errno.ECANCELED, "the installation has ended")
        return super().read(size)


def unpack(path, wanted, place, stop=None):
    """Unpack the ``wanted`` directories of an archive to a new directory, root's alone.

    ``stop``: an event that ends it early.
    """
    remove_tree(place)
    # Fails where somebody has made it again: nobody else's directory is used.
    os.mkdir(place, 0o700)
    try:
        with contextlib.ExitStack() as opened:
            stream = opened.enter_context(Stoppable(path, stop or threading.Event()))
            archive = opened.enter_context(tarfile.open(fileobj=stream, copybufsize=BLOCK))
            for member in safe_members(archive, wanted):
                # Owner, special bits and time stay out: what is ours is root's and plain.
                member.uid = member.gid = 0
                member.mode = 0o755 if member.isdir() else 0o644
                archive.extract(member, place, set_attrs=False)
    except (tarfile.TarError, EOFError) as error:
        raise StateError(
            "{} cannot be unpacked: {}. Remove it from the cache and run again.".format(path, error)
        ) from error
    for folder in wanted:
        if not os.path.isdir(os.path.join(place, folder)):
            raise StateError("The archive has no directory {}.".format(folder))


@contextlib.contextmanager
def meanwhile(toolkit, runfile, artifacts):
    """Unpack cuDNN's archives in a thread, while the toolkit is installed; waits for its end.

    ``artifacts``: each ``{file, checksum, include_dir, lib_dir}``, in the runfile's directory. What
    goes wrong is left to the installation of cuDNN, which tries it again and reports it.
    """
    stop, folder = threading.Event(), os.path.dirname(runfile)

    def work():
        for artifact in artifacts:
            path = os.path.join(folder, artifact["file"])
            try:
                if not same_filesystem(folder, toolkit) or not has_room(folder, runfile, path):
                    continue
                # Another account could make root write elsewhere.
                refuse_foreign([folder])
                if unpacked(path, artifact):
                    # For another toolkit, or by a run that was killed.
                    continue
                check_artifact(path, artifact["checksum"])
                record = whole(path, artifact)
                unpack(path, wanted(artifact), path + UNPACKED, stop)
                write_atomically(os.path.join(path + UNPACKED, WHOLE), json.dumps(record))
            except (StateError, OSError):
                with contextlib.suppress(OSError):
                    remove_tree(path + UNPACKED)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    except BaseException:
        stop.set()
        raise
    finally:
        thread.join()


def wanted(artifact):
    """The directories of an archive that are installed."""
    return [artifact["include_dir"], artifact["lib_dir"]]


def whole(path, artifact):
    """The record of an archive that is unpacked."""
    source = source_of(path, artifact["checksum"])
    return {"source": source, "wanted": wanted(artifact), "boot_id": boot_id()}


def has_room(folder, runfile, archive):
    """Return whether the toolkit, its temporary files, the former toolkit and cuDNN fit."""
    status = os.statvfs(folder)
    # Temporary files take up to 3.75 times the runfile (rules.yml), each tree some twice of it.
    need = 8 * os.path.getsize(runfile) + 4 * os.path.getsize(archive)
    return status.f_bavail * status.f_frsize > need


def unpacked(archive, artifact):
    """Return where an archive was unpacked beforehand, or None."""
    place = archive + UNPACKED
    try:
        status = os.lstat(place)
        # Into a directory of root's alone nobody else puts anything.
        if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
            return None
        if status.st_uid != os.geteuid():
            return None
        with open(os.path.join(place, WHOLE)) as stream:
            record = json.load(stream)
    except (OSError, ValueError):
        return None
    return place if record == whole(archive, artifact) else None
