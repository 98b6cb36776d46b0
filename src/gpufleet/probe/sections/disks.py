"""Section `disks`: free space and mount options of the directories that are written to."""
import os
import re

from ..manifest import mode_of
from ..text import first_match

# Where every account may write, and programs of one account meet.
SHARED_LOCATIONS = ("/dev/shm", "/tmp")


def section_disks(host):
    data = {"shared": [shared_directory(host, name) for name in SHARED_LOCATIONS],
            "memory_mib": int(first_match(r"^MemTotal:\s+(\d+) kB", host.text_or_none(
                "/proc/meminfo")) or 0) // 1024 or None,
            "free_mib": {}, "free_files": {}, "filesystem": {}, "noexec": [], "readonly": []}
    wanted = [host[key] for key in ("tmpdir", "prefix", "stack_root", "state_dir")]
    for name in ["/", "/tmp", *wanted]:
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


def shared_directory(host, name):
    """What is at the path, and its file system; nothing is written there."""
    path = host.path(host.realpath(name))
    found = {"path": name, "exists": os.path.isdir(path), "mode": None, "owner": None,
             "mounted": None, "size_mib": None, "free_mib": None, "free_files": None,
             "readonly": None}
    # The last of those that are mounted there is on top.
    for line in (host.text_or_none("/proc/self/mountinfo") or "").splitlines():
        if re.match(r"(?:\S+ ){4}%s " % re.escape(host.realpath(name)), line):
            found["mounted"] = first_match(r" - (\S+)", line)
    if found["exists"]:
        info, space = os.stat(path), os.statvfs(path)
        found.update(
            mode=mode_of(info), owner=info.st_uid, readonly=bool(space.f_flag & os.ST_RDONLY),
            size_mib=space.f_blocks * space.f_frsize / (1 << 20),
            free_mib=space.f_bavail * space.f_frsize / (1 << 20),
            free_files=space.f_favail if space.f_files else None)
        found.update((key, round(found[key], 1)) for key in ("size_mib", "free_mib"))
    return found
