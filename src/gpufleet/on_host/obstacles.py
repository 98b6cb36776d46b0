"""Obstacles that keep gpufleet from a repair of its files, where there is one to be made."""

from .filesystems import attribute_of, existing, mount_of, mounts_of

LINKER_FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf.d")
# A file that only gpufleet writes, and records.
LINKER_FILE = "/etc/ld.so.conf.d/gpufleet-*.conf"
MOST = 100


def obstacles(host, receipts):
    """Attributes, read-only mounts and mounts over the records, as rows (path, what, source).

    Only where gpufleet writes: its records, directories, and the files that differ from theirs. A
    tree that its owner has locked is no fault as long as nothing has to be changed in it.
    """
    state = host["state_dir"]
    # Files that differ come first: a repair writes these.
    places = [
        name
        for receipt in receipts
        for entry in receipt["changed"]
        for name in _with_parents(receipt["path"], entry["path"])
    ]
    places += [receipt["path"] for receipt in receipts]
    places += [state, state + "/receipts", state + "/journal", host["prefix"], host["stack_root"]]
    places += LINKER_FILES
    # Files share directories, and links lead to one place: each is looked up once.
    paths = dict.fromkeys(
        host.realpath(host.name(existing(host.path(name)))) for name in dict.fromkeys(places)
    )
    mounts = mounts_of(host)
    found = [
        {"path": path, "what": attribute, "source": None}
        for path in paths
        for attribute in [attribute_of(host.path(path))]
        if attribute
    ]
    readonly = []
    for path in paths:
        mount = mount_of(path, mounts)
        if mount and mount["readonly"] and mount not in readonly:
            readonly.append(mount)
    found += [_row(mount, "read-only") for mount in readonly]
    # An administrator may have a file system for the records, which then are on it, or is new.
    if not receipts and (host.glob(host["stack_root"] + "/*") or host.glob(LINKER_FILE)):
        found += [
            _row(mount, "mounted") for mount in mounts if mount["path"] == host.realpath(state)
        ]
    return found[:MOST]


def _row(mount, what):
    return {"path": mount["path"], "what": what, "source": mount["source"]}


def _with_parents(root, path):
    """A file of an installation, and its directories in it, the innermost first."""
    while path:
        yield root + "/" + path
        path = path.rpartition("/")[0]
