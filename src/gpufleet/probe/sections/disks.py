"""Section `disks`: free space and mount options of the directories that are written to."""
import os


def section_disks(host):
    data = {"free_mib": {}, "free_files": {}, "filesystem": {}, "noexec": [], "readonly": []}
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
