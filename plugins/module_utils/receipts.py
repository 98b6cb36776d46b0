# Apache-2.0, see LICENSE
"""Journal and receipts: how an installation on a host survives being killed at any moment.

An installation is bracketed. ``begin`` writes a journal entry before the first change; ``finish``
writes the receipt (what was installed, file by file) and then takes the entry away. Whatever is
found later is therefore one of:

========  =======  ==========================================================
receipt   journal  meaning
========  =======  ==========================================================
no        no       nothing, or a tree that somebody else made (foreign)
any       yes      killed half-way: torn down if it began fresh, done again
yes       no       installed; compare the receipt's manifest with the files
========  =======  ==========================================================

One lock for the host serialises installations. It is inherited by the installers that a module
starts, so an installer that outlived its killed module keeps the next run waiting until it ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time

SCHEMA = 1
STATE_DIR = "/var/lib/gpufleet"


class StateError(Exception):
    """What is wrong on the host, where, and what to do about it."""


def utc_now():
    """The time as the documents write it, e.g. ``2026-11-20T12:00:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def digest_of(path, algorithm="sha256"):
    """Hexadecimal checksum of a file's content, by an algorithm that ``hashlib`` knows."""
    digest = hashlib.new(algorithm)
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def write_atomically(path, text, mode=0o644):
    """Write ``text`` under a partial name, flush it to disk, rename it to ``path``."""
    make_folder(os.path.dirname(path))
    handle, partial = tempfile.mkstemp(prefix=".partial-", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(partial, mode)
        os.rename(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def remove_tree(path):
    """Remove whatever stands at a path: file, link, pipe or tree; nothing there is fine."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def make_folder(path):
    """Make a directory, and those above it that are missing, readable by everybody.

    Whatever the login's umask is: the verification may read it as another user.
    """
    if not os.path.isdir(path):
        make_folder(os.path.dirname(path))
        # Somebody else may make it at the same moment: another download, say.
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
            os.chmod(path, 0o755)


def walk(root):
    """Relative paths of every file and link below ``root``, sorted; links are not followed."""
    found = []
    for folder, folders, files in os.walk(root):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        found.extend(os.path.relpath(os.path.join(folder, name), root) for name in files + links)
    return sorted(found)


class Installation:
    """One receipt and its journal entry: ``kind`` and ``ident`` name it, ``path`` is its tree."""

    def __init__(self, kind, ident, path, version, state_dir=STATE_DIR):
        self.kind, self.ident, self.path, self.version = kind, ident, path, version
        name = "{}-{}.json".format(kind, ident)
        self.state_dir = state_dir
        self.receipt_file = os.path.join(state_dir, "receipts", name)
        self.journal_file = os.path.join(state_dir, "journal", name)
        self.receipt = self._read(self.receipt_file)
        self.journal = self._read(self.journal_file)

    @staticmethod
    def _read(path):
        try:
            with open(path) as stream:
                return json.load(stream)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        except ValueError as error:
            raise StateError(
                "{} cannot be read ({}). Move it away; the next run then treats what it described "
                "as a tree of unknown origin.".format(path, error)
            ) from error

    @property
    def half_done(self):
        """Whether a run was killed between ``begin`` and ``finish``."""
        return self.journal is not None

    def begin(self, fresh, **more):
        """Enter the installation in the journal, keeping what a killed run entered before.

        ``fresh``: nothing stood at the path before. That a first, killed run began fresh stays
        true for every run that finishes its job.
        """
        entry = dict(more, fresh=fresh, started=utc_now())
        entry.update(self.journal or {})
        self._enter(dict(entry, state="installing"))

    def _enter(self, entry):
        """Write the journal entry."""
        self.journal = dict(
            entry,
            schema=SCHEMA,
            kind=self.kind,
            id=self.ident,
            path=self.path,
            version=self.version,
        )
        write_atomically(self.journal_file, json.dumps(self.journal, indent=1, sort_keys=True))

    def finish(self, source, manifest, **more):
        """Write the receipt, then close the journal entry, if there is one."""
        receipt = dict(more)
        receipt.update(
            schema=SCHEMA,
            kind=self.kind,
            id=self.ident,
            path=self.path,
            version=self.version,
            installed=utc_now(),
            source=source,
            manifest=manifest,
        )
        write_atomically(self.receipt_file, json.dumps(receipt, indent=1, sort_keys=True))
        remove_tree(self.journal_file)
        self.receipt, self.journal = receipt, None

    def begin_removal(self):
        """Enter the removal in the journal; the receipt stays until everything it lists is gone.

        What a killed first installation left stays fresh: everything there is its own.
        """
        entry = dict(self.journal or {"started": utc_now()})
        fresh = bool(entry.get("fresh")) and not self.receipt
        self._enter(dict(entry, state="removing", fresh=fresh))

    def finish_removal(self):
        """Take the receipt away, then close the journal entry."""
        for path in (self.receipt_file, self.journal_file):
            remove_tree(path)
        self.receipt = self.journal = None

    def other_receipts(self):
        """The other receipts on this host."""
        return self._beside(self.receipt_file)

    def other_journals(self):
        """The other entries of the journal."""
        return self._beside(self.journal_file)

    def _beside(self, own):
        folder = os.path.dirname(own)
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        files = [os.path.join(folder, name) for name in names if name.endswith(".json")]
        return [self._read(file) for file in files if file != own]

    def disown(self, paths):
        """Remove paths from the other receipts: what is there is this installation's now."""
        for other in self.other_receipts():
            kept = [
                entry
                for entry in other["manifest"]
                if os.path.join(other["path"], entry["path"]) not in paths
            ]
            if len(kept) < len(other["manifest"]):
                name = "{kind}-{id}.json".format(**other)
                write_atomically(
                    os.path.join(os.path.dirname(self.receipt_file), name),
                    json.dumps(dict(other, manifest=kept), indent=1, sort_keys=True),
                )

    def others_manifest(self):
        """Absolute paths that other receipts on this host list (cuDNN inside a toolkit's tree)."""
        return {
            os.path.join(other["path"], entry["path"])
            for other in self.other_receipts()
            for entry in other["manifest"]
        }


@contextlib.contextmanager
def host_lock(state_dir=STATE_DIR, patience_s=1800):
    """Hold the host's installation lock; yields its descriptor, to be handed to child processes.

    Raises ``StateError`` when another installation holds it for longer than ``patience_s`` seconds.
    """
    make_folder(state_dir)
    descriptor = os.open(os.path.join(state_dir, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + patience_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise StateError(
                        "Another installation has held {}/lock for {} s. See who with "
                        "'fuser -v {}/lock' and run again when it has ended.".format(
                            state_dir, patience_s, state_dir
                        )
                    ) from None
                # flock has no time-out of its own: try again shortly.
                time.sleep(0.2)
        os.set_inheritable(descriptor, True)
        yield descriptor
    finally:
        os.close(descriptor)
