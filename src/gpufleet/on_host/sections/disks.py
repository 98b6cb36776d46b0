"""Section `disks`: free space and mount options of the directories that are written to."""

import os
import stat

from ..filesystems import mounts_of
from ..manifest import mode_of
from ..processes import become, in_child
from ..text import first_match
from ..trust import ORDINARY

# Where every account may write, and programs of one account meet.
SHARED_LOCATIONS = ("/dev/shm", "/tmp")
# Where artifacts are unpacked and installers keep what they need.
ARTIFACTS = "/var/cache/gpufleet"
# Files that programs of every account open.
COMMON_LOCATIONS = {
    "/dev/null": os.R_OK | os.W_OK,
    "/dev/zero": os.R_OK | os.W_OK,
    "/dev/urandom": os.R_OK,
    "/etc/ld.so.cache": os.R_OK,
    "/etc/passwd": os.R_OK,
    "/etc/group": os.R_OK,
    "/etc/nsswitch.conf": os.R_OK,
    "/etc/hosts": os.R_OK,
    "/etc/resolv.conf": os.R_OK,
}


def section_disks(host):
    data = {
        "shared": [shared_directory(host, name) for name in SHARED_LOCATIONS],
        "memory_mib": int(
            first_match(r"^MemTotal:\s+(\d+) kB", host.text_or_none("/proc/meminfo")) or 0
        )
        // 1024
        or None,
        "common": common_files(host),
        "free_mib": {},
        "free_files": {},
        "filesystem": {},
        "noexec": [],
        "readonly": [],
    }
    wanted = [host[key] for key in ("tmpdir", "prefix", "stack_root", "state_dir")]
    for name in ["/", "/tmp", "/var/tmp", *wanted, ARTIFACTS]:
        if name in data["free_mib"]:
            continue
        directory = name
        while not os.path.isdir(host.path(directory)) and directory != "/":
            directory = os.path.dirname(directory)
        space = os.statvfs(host.path(directory))
        data["free_mib"][name] = space.f_bavail * space.f_frsize // (1 << 20)
        # Some file systems create inodes on demand, and report 0 of 0.
        data["free_files"][name] = space.f_favail if space.f_files else None
        data["filesystem"][name] = str(os.stat(host.path(directory)).st_dev)
        for key, flag in (("noexec", getattr(os, "ST_NOEXEC", 8)), ("readonly", os.ST_RDONLY)):
            if space.f_flag & flag:
                data[key].append(name)
    return data


def common_files(host):
    """The common files (path, kind, error), with ordinary accounts' obstacles; None: not tried."""
    # Nobody misses a file that is not there at all, except a device.
    names = [
        name
        for name in COMMON_LOCATIONS
        if host.exists(name) or (host.real and name.startswith("/dev/"))
    ]
    _, errors, _ = in_child(without_access, (host, names), host.inner_s / 8)
    return None if errors is None else [{"path": name, **errors[name]} for name in names]


def without_access(host, names):
    """The "kind" and "error" of files that an ordinary account cannot use. Opens nothing."""
    if os.geteuid() == 0:
        if not host.real:
            os.chroot(host.root)
        become(ORDINARY)
        paths = {name: name for name in names}
    else:
        paths = {name: host.path(name) for name in names}
    found = {}
    for name, path in paths.items():
        device = name.startswith("/dev/") and host.real
        kind, error = None, None
        if not os.access(path, COMMON_LOCATIONS[name]):
            if os.path.exists(path):
                kind, error = "mode", "it has mode %s" % mode_of(os.stat(path))
            else:
                kind, error = "missing", "it does not exist, or lies where they may not go"
        elif device and not stat.S_ISCHR(os.stat(path).st_mode):
            kind, error = "no-device", "it is no device"
        found[name] = {"kind": kind, "error": error}
    return found


def shared_directory(host, name):
    """The file at the path, and its file system; nothing is written there."""
    path = host.path(host.realpath(name))
    found = {
        "path": name,
        "exists": os.path.isdir(path),
        "mode": None,
        "owner": None,
        "mounted": None,
        "size_mib": None,
        "free_mib": None,
        "free_files": None,
        "readonly": None,
    }
    # The last of those that are mounted there is on top.
    for mount in mounts_of(host):
        if mount["path"] == host.realpath(name):
            found["mounted"] = mount["type"]
    if found["exists"]:
        info, space = os.stat(path), os.statvfs(path)
        found.update(
            mode=mode_of(info),
            owner=info.st_uid,
            readonly=bool(space.f_flag & os.ST_RDONLY),
            size_mib=space.f_blocks * space.f_frsize / (1 << 20),
            free_mib=space.f_bavail * space.f_frsize / (1 << 20),
            free_files=space.f_favail if space.f_files else None,
        )
        found.update((key, round(found[key], 1)) for key in ("size_mib", "free_mib"))
    return found
