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

from .text import open_regular, read_bounded

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
            block = ZEROS[:written.start - at]
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


def manifest_of(root, paths):
    """Entries for files and links below `root`; directories are walked, linked parents resolved."""
    from concurrent.futures import ThreadPoolExecutor  # only where something is installed

    top = os.path.realpath(root)
    locations = {}
    for path in paths:
        full = os.path.join(top, path)
        if os.path.isdir(full) and not os.path.islink(full):
            found = [os.path.join(d, f) for d, subs, files in os.walk(full)
                     for f in files + [s for s in subs if os.path.islink(os.path.join(d, s))]]
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
    return {"path": relative, "type": "file", "size": info.st_size, "mtime": int(info.st_mtime),
            "mode": mode_of(info),
            "sha256": sha256_of(location) if is_library(location) else None}


def compare_manifest(root, manifest, deep=False):
    """The files that differ from the manifest: [{"path", "what"}]; contents only when `deep`."""
    changed = []
    for entry in manifest:
        path = os.path.join(root, entry["path"])
        what = _difference(path, entry, deep)
        if what:
            changed.append({"path": entry["path"], "what": what})
    return changed


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
    for what, actual in (("size", info.st_size), ("mode", mode_of(info)),
                        ("mtime", int(info.st_mtime))):
        if entry.get(what) is not None and entry[what] != actual:
            return what
    if deep and entry.get("sha256") and sha256_of(path) != entry["sha256"]:
        return "sha256"
    return None


def recorded_files(venv, packages):
    """[(path, digest, size)] of what the installed packages' own records list, below `venv`.

    Only of `packages` ({name: version}): what people put beside them is theirs. A record vouches
    for nothing outside of its environment.
    """
    files = []
    pattern = os.path.join(glob.escape(venv), "lib", "python3*", "site-packages", "*.dist-info")
    for directory in sorted(glob.glob(pattern)):
        name = os.path.basename(directory)[:-len(".dist-info")].rpartition("-")[0]
        if normal_name(name) not in packages:
            continue
        site = os.path.dirname(directory)
        site = os.path.relpath(site, venv)
        rows = [(os.path.normpath(os.path.join(site, path)), digest, int(size))
                for path, digest, size in read_record(os.path.join(directory, "RECORD"))]
        files += [row for row in rows if not row[0].startswith(("/", "../"))]
    return files


def compare_records(venv, files, deep=False, infos=None):
    """The files that differ from `recorded_files`: [{"path", "what"}]; contents only when `deep`.

    `infos` takes each file's state by its path: 15,000 files are read once.
    """
    changed = []
    for path, digest, size in files:
        what = _record_difference(venv, path, digest if deep else "", size, infos)
        if what:
            changed.append({"path": path, "what": what})
    return changed


def normal_name(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def read_record(path, sized=True):
    try:
        return [row for row in csv.reader(io.StringIO(read_bounded(path)))
                if len(row) == 3 and (row[2].isdecimal() or not sized)]
    except (OSError, csv.Error):
        # A package without a record proves nothing about itself; other checks find it missing.
        return []


def _record_difference(venv, name, digest, size, infos):
    path = venv + "/" + name
    try:
        info = os.stat(path)
    except OSError:
        return "missing"
    if infos is not None:
        infos[path] = info
    if info.st_size != size:
        return "size"
    expected = hex_digest(digest)
    if not expected:
        return None
    # A link could lead to a secret, which whoever wrote the record would have compared to a guess.
    if not stat.S_ISREG(info.st_mode) or not os.path.realpath(path).startswith(
            os.path.realpath(venv) + "/"):
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
