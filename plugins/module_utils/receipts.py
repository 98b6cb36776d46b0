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

A record that cannot be read is none: of a receipt, what it described is installed again (the
installation is ``damaged``); a journal entry still says that something was under way. Neither
blocks another installation, nor its own repair.

One lock for the host serialises installations. It is inherited by the installers that a module
starts, so an installer that outlived its killed module keeps the next run waiting until it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time

from ansible_collections.gpufleet.gpu.plugins.module_utils.file_errors import kept_from_removal
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.addresses import public_addresses
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.manifest import blocks_of
from ansible_collections.gpufleet.gpu.plugins.module_utils.on_host.receipts import why_unusable

SCHEMA = 1
STATE_DIR = "/var/lib/gpufleet"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
# The ending of a directory into which an artifact beside it was unpacked beforehand.
UNPACKED = ".unpacked"


class StateError(Exception):
    """A fault of the host: the fault, its place, and its remedy.

    It often quotes another program, which prints the addresses that it was given: it repeats no
    secret of an address.
    """

    def __init__(self, message="", *rest):
        super().__init__(public_addresses(str(message)), *rest)


def utc_now():
    """The time as the documents write it, e.g. ``2026-11-20T12:00:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def digest_of(path, algorithm="sha256"):
    """Hexadecimal checksum of a file's content, by an algorithm that ``hashlib`` knows."""
    digest = hashlib.new(algorithm)
    with open(path, "rb") as stream:
        for block in blocks_of(stream.fileno()):
            digest.update(block)
    return digest.hexdigest()


def write_atomically(path, text, mode=0o644):
    """Write ``text`` under a partial name, flush it to disk, rename it to ``path``.

    The name is flushed as well: after a loss of power the journal has what was started.
    """
    make_folder(os.path.dirname(path))
    handle, partial = tempfile.mkstemp(prefix=".partial-", dir=os.path.dirname(path))
    try:
        # Bytes that are no UTF-8 are written as they were read, whatever the locale.
        with os.fdopen(
            handle, "w", encoding="utf-8", errors="surrogateescape", newline=""
        ) as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(partial, mode)
        os.rename(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
    flush_folder(os.path.dirname(path))


def flush_folder(path):
    """Flush a directory's names to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_kept(path):
    """Raise ``StateError`` where something keeps a directory from being removed whole."""
    reason = kept_from_removal(path)
    if reason:
        raise StateError("{} cannot be removed: {}".format(path, reason))


def remove_tree(path):
    """Remove whatever stands at a path: file, link, pipe or tree; nothing there is fine.

    Raises ``StateError`` before anything is removed where a tree cannot be removed whole.
    """
    if os.path.isdir(path) and not os.path.islink(path):
        refuse_kept(path)
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
            flush_folder(os.path.dirname(path))


def same_filesystem(*paths):
    """Return whether paths, also future ones, are on one file system: links cost nothing there."""

    def device(path):
        return os.stat(path).st_dev if os.path.exists(path) else device(os.path.dirname(path))

    return len({device(path) for path in paths}) == 1


def walk(root):
    """Relative paths of every file and link below ``root``, sorted; links are not followed."""
    found = []
    for folder, folders, files in os.walk(root):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        inside = "" if folder == root else os.path.relpath(folder, root)
        found.extend(os.path.join(inside, name) for name in files + links)
    return sorted(found)


def read_record(path):
    """A receipt or journal entry, and why it cannot be used; (None, None) where there is none."""
    if not os.path.lexists(path):
        return None, None
    try:
        if not os.path.isfile(path):
            raise ValueError("it is not a regular file")
        with open(path, encoding="utf-8") as stream:
            document = json.load(stream)
        journal = os.path.basename(os.path.dirname(path)) == "journal"
        # Whatever an entry of the journal lacks, it says that something was under way.
        if not (journal and isinstance(document, dict)):
            why = why_unusable("receipts", document)
            if not why and os.path.basename(path) != "{kind}-{id}.json".format(**document):
                why = "it is of {kind} {id}".format(**document)
        else:
            why = None
            document.setdefault("fresh", False)
    except (OSError, ValueError, RecursionError) as error:
        why = str(error)
    return (None, why) if why else (document, None)


def write_record(path, document):
    """Write a receipt or journal entry, whatever is in its place."""
    for place, right in ((os.path.dirname(path), os.path.isdir), (path, os.path.isfile)):
        if os.path.lexists(place) and not right(place):
            remove_tree(place)
    write_atomically(path, json.dumps(document, indent=1, sort_keys=True))


class Installation:
    """One receipt and its journal entry: ``kind`` and ``ident`` name it, ``path`` is its tree."""

    def __init__(self, kind, ident, path, version, state_dir=STATE_DIR):
        self.kind, self.ident, self.path, self.version = kind, ident, path, version
        name = "{}-{}.json".format(kind, ident)
        self.state_dir = state_dir
        self.receipt_file = os.path.join(state_dir, "receipts", name)
        self.journal_file = os.path.join(state_dir, "journal", name)
        self.receipt, self.damaged = read_record(self.receipt_file)
        self.journal, why = read_record(self.journal_file)
        if why:
            self.journal = {"fresh": False, "state": "installing", "started": utc_now()}

    @property
    def half_done(self):
        """True if a run was killed between ``begin`` and ``finish``."""
        return self.journal is not None

    def begin(self, fresh, **more):
        """Enter the installation in the journal, keeping what a killed run entered before.

        ``fresh``: nothing stood at the path before. That a first, killed run began fresh stays
        true for every run that finishes its job.
        """
        entry = dict(more, fresh=fresh, started=utc_now())
        entry.update(self._kept())
        self._enter(dict(entry, state="installing"))

    def fill(self, lock_sha256, started):
        """Enter that the environment has the packages of a lock, unless the entry changed since.

        ``started``: of the entry by which the installation was started. After a restart of the host
        the entry means nothing: files that were not flushed may be empty.
        """
        found = read_record(self.journal_file)[0] or {}
        if (found.get("state"), found.get("started")) == ("installing", started):
            self._enter(dict(found, filled={"lock_sha256": lock_sha256, "boot_id": boot_id()}))

    def is_filled(self, lock_sha256):
        """Return whether `fill` was the last step on a new environment."""
        entry = self.journal or {}
        filled = {"lock_sha256": lock_sha256, "boot_id": boot_id()}
        known = (entry.get("path"), entry.get("state"), entry.get("fresh"))
        return (
            not self.receipt
            and known == (self.path, "installing", True)
            and entry.get("filled") == filled
        )

    def _kept(self):
        """The keys that later entries keep: none that is only true until a step is done."""
        return {key: value for key, value in (self.journal or {}).items() if key != "filled"}

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
        write_record(self.journal_file, self.journal)

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
        write_record(self.receipt_file, receipt)
        remove_tree(self.journal_file)
        self.receipt, self.journal, self.damaged = receipt, None, None

    def begin_removal(self):
        """Enter the removal in the journal; the receipt stays until everything it lists is gone.

        What a killed first installation left stays fresh: everything there is its own.
        """
        entry = self._kept() or {"started": utc_now()}
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
        documents = [read_record(file)[0] for file in files if file != own]
        return [document for document in documents if document]

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
                write_record(
                    os.path.join(os.path.dirname(self.receipt_file), name),
                    dict(other, manifest=kept),
                )

    def others_manifest(self):
        """Absolute paths that other receipts on this host list (cuDNN inside a toolkit's tree)."""
        return {
            os.path.join(other["path"], entry["path"])
            for other in self.other_receipts()
            for entry in other["manifest"]
        }


def open_lock(path):
    """Open a lock that root alone can open, and so hold; one of an earlier release becomes so."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        os.fchown(descriptor, os.geteuid(), os.getegid())
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def boot_id():
    """Return the id of the host's current boot."""
    with open(BOOT_ID) as stream:
        return stream.read().strip()


# The lock of a process that downloads beside the installations.
DOWNLOADS = "downloads"


def wait_for_downloads(state_dir):
    """Wait for the end of what gpu_stack_download has started."""
    if os.path.exists(os.path.join(state_dir, DOWNLOADS)):
        with host_lock(state_dir, name=DOWNLOADS):
            pass


@contextlib.contextmanager
def host_lock(state_dir=STATE_DIR, patience_s=1800, name="lock"):
    """Hold the host's installation lock; yields its descriptor, to be handed to child processes.

    Raises ``StateError`` when another installation holds it for longer than ``patience_s`` seconds.
    """
    make_folder(state_dir)
    path = os.path.join(state_dir, name)
    descriptor = open_lock(path)
    deadline = time.monotonic() + patience_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise StateError(
                        "Another installation has held {0} for {1} s. See who with "
                        "'fuser -v {0}' and run again when it has ended.".format(path, patience_s)
                    ) from None
                # flock has no time-out of its own: try again shortly.
                time.sleep(0.2)
        os.set_inheritable(descriptor, True)
        yield descriptor
    finally:
        os.close(descriptor)
