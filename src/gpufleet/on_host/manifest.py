"""Manifests of installed files, and packages' own records, compared with what is on disk."""

import base64
import csv
import errno
import glob
import hashlib
import io
import os
import re
import stat

from .text import is_number, open_regular, read_bounded

BLOCK = 1 << 16
ZEROS = bytes(BLOCK)


def sha256_of(path):
    """The checksum of a regular file; of one that grows meanwhile, of a part of it."""
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        for block in blocks_of(stream.fileno()):
            digest.update(block)
    return digest.hexdigest()


def blocks_of(descriptor):
    """The contents of a file. Holes are not read: the kernel would keep memory full of zeros."""
    info = os.fstat(descriptor)
    at, size = 0, info.st_size
    # Blocks are of 512 bytes. A file that has all of its blocks has no holes to ask for.
    written = range(0, 0 if info.st_blocks * 512 < size else size)
    while at < size:
        if at >= written.stop:
            written = _next_written(descriptor, at, size)
        if at < written.start:
            block = ZEROS[: written.start - at]
        else:
            block = os.pread(descriptor, min(BLOCK, written.stop - at), at)
            if not block:
                return
        yield block
        at += len(block)


def _next_written(descriptor, at, size):
    """The next offsets that are no hole; none up to `size` where there are only holes."""
    try:
        start = os.lseek(descriptor, at, os.SEEK_DATA)
        stop = os.lseek(descriptor, start, os.SEEK_HOLE)
    except OSError as error:
        # Not every file system knows its holes.
        return range(size, size) if error.errno == errno.ENXIO else range(at, size)
    return range(start, stop) if at <= start < stop else range(at, size)


def mode_of(info):
    return "%04o" % stat.S_IMODE(info.st_mode)


def is_library(path):
    return ".so." in os.path.basename(path) or path.endswith(".so")


def is_record(path):
    """Return whether a file lists the files of a Python package, with their checksums."""
    return path.endswith(".dist-info/RECORD")


def manifest_of(root, paths):
    """Entries for files and links below `root`; directories are walked, linked parents resolved."""
    from concurrent.futures import ThreadPoolExecutor  # only where something is installed

    top = os.path.realpath(root)
    locations = {}
    for path in paths:
        full = os.path.join(top, path)
        if os.path.isdir(full) and not os.path.islink(full):
            found = [
                os.path.join(d, f)
                for d, subs, files in os.walk(full)
                for f in files + [s for s in subs if os.path.islink(os.path.join(d, s))]
            ]
        else:
            found = [full]
        for name in found:
            location = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
            relative = os.path.relpath(location, top)
            if relative.startswith(".."):
                raise ValueError("%s leads out of %s" % (path, root))
            locations[relative] = location
    names = sorted(locations)
    # Checksums are computed outside of the interpreter's lock: side by side.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        return list(pool.map(_entry, names, map(locations.get, names)))


def _entry(relative, location):
    info = os.lstat(location)
    if stat.S_ISLNK(info.st_mode):
        return {"path": relative, "type": "link", "target": os.readlink(location)}
    return {
        "path": relative,
        "type": "file",
        "size": info.st_size,
        "mtime": int(info.st_mtime),
        "mode": mode_of(info),
        "sha256": sha256_of(location) if is_library(location) or is_record(location) else None,
    }


def compare_manifest(root, manifest, deep=False):
    """The files that differ from the manifest: [{"path", "what"}]; contents only when `deep`.

    The contents of packages' records are always compared: other files are judged by them. `link`
    is true of a link that can be created from the manifest alone.
    """
    changed = []
    for entry in manifest:
        path = os.path.join(root, entry["path"])
        what = _difference(path, entry, deep or is_record(path))
        if what:
            row = {"path": entry["path"], "what": what}
            changed.append(dict(row, link=True) if _is_restorable(path, entry, what) else row)
    return changed


def _is_restorable(path, entry, what):
    """Return whether a link differs that nothing else replaces, in the installation's directory."""
    folder = os.path.dirname(path)
    return (
        entry["type"] == "link"
        and what in ("missing", "target")
        and isinstance(entry.get("target"), str)
        and os.path.isdir(folder)
        and not os.path.islink(folder)
    )


def _difference(path, entry, deep):
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    if stat.S_ISLNK(info.st_mode) != (entry["type"] == "link"):
        return "type"
    if entry["type"] == "link":
        return None if os.readlink(path) == entry["target"] else "target"
    if not stat.S_ISREG(info.st_mode):
        return "type"
    for what, actual in (
        ("size", info.st_size),
        ("mode", mode_of(info)),
        ("mtime", int(info.st_mtime)),
    ):
        if entry.get(what) is not None and entry[what] != actual:
            return what
    if deep and entry.get("sha256") and sha256_of(path) != entry["sha256"]:
        return "sha256"
    return None


def records_of(venv, packages):
    """The record of each installed package below `venv`, whether the file exists or not.

    Only of `packages` ({name: version}): what people put beside them is theirs.
    """
    pattern = os.path.join(glob.escape(venv), "lib", "python3*", "site-packages", "*.dist-info")
    return [
        os.path.join(directory, "RECORD")
        for directory in sorted(glob.glob(pattern))
        if normal_name(os.path.basename(directory)[: -len(".dist-info")].rpartition("-")[0])
        in packages
    ]


def recorded_files(venv, packages):
    """Path, digest and size of the files in the packages' own records, below `venv`.

    A record vouches for nothing outside of its environment.
    """
    files = []
    for record in records_of(venv, packages):
        site = os.path.relpath(os.path.dirname(os.path.dirname(record)), venv)
        rows = [
            (os.path.normpath(os.path.join(site, path)), digest, int(size))
            for path, digest, size in read_record(record)
        ]
        files += [row for row in rows if not row[0].startswith(("/", "../"))]
    return files


def compare_records(venv, files, deep=False, infos=None, since=float("inf")):
    """The files that differ from `recorded_files`: [{"path", "what"}].

    Contents are compared when `deep`, and those of files that were written after `since`. `infos`
    takes each file's state by its path: 15,000 files are read once.
    """
    changed = []
    for row in files:
        what = _record_difference(venv, row, infos, 0 if deep else since)
        if what:
            changed.append({"path": row[0], "what": what})
    return changed


def normal_name(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def read_record(path, sized=True):
    try:
        return [
            row
            for row in csv.reader(io.StringIO(read_bounded(path)))
            if len(row) == 3 and (is_number(row[2]) or not sized)
        ]
    except (OSError, csv.Error):
        # A package without a record proves nothing about itself; other checks find it missing.
        return []


def _record_difference(venv, row, infos, since):
    name, digest, size = row
    path = venv + "/" + name
    try:
        info = os.stat(path)
    except OSError:
        return "missing"
    if infos is not None:
        infos[path] = info
    if info.st_size != size:
        return "size"
    expected = hex_digest(digest) if info.st_mtime > since else None
    if not expected:
        return None
    # A link could lead to a secret, which whoever wrote the record would have compared to a guess.
    if not stat.S_ISREG(info.st_mode) or not os.path.realpath(path).startswith(
        os.path.realpath(venv) + "/"
    ):
        return "type"
    return "sha256" if sha256_of(path) != expected else None


def hex_digest(digest):
    """A record's `sha256=...` as a manifest has it; None of another kind."""
    algorithm, _, value = digest.partition("=")
    if algorithm != "sha256" or not value:
        return None
    try:
        return base64.urlsafe_b64decode(value + "==").hex()
    except ValueError:
        return value
