"""Files that programs of every account need: /dev/shm and /tmp to meet in, and the system's own."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base.registry import INSPECT, Evidence, Finding, check, required
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.host import Disks, SharedDirectory
from gpufleet.documents.text import quoted, shell
from gpufleet.documents.verdict import Verdict

# The needs of programs that share memory between processes: NCCL's documentation asks for
# --shm-size=1g in place of Docker's 64 MB, which NCCL and data loaders outgrow. systemd gives half
# of the memory, so a quarter is enough where there is little. In a container /dev/shm is its own,
# usually of the engine's 64 MB (Podman: 64,000 kB), which whoever starts it decides.
SHM, SHM_MIB, CONTAINER_SHM_MIB = "/dev/shm", 1024, 60
# As full as that, the next program gets ENOSPC, or SIGBUS.
SHM_FREE_SHARE = 0.02
MOUNT_SHM = "mkdir -p /dev/shm; mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm"
# The command that recreates each device file, with the numbers that udev gives it.
DEVICES = {
    f"/dev/{name}": f"mknod -m 666 /dev/{name} c 1 {minor}"
    for name, minor in (("null", 3), ("zero", 5), ("urandom", 9))
}
# Write and search for all, and nobody removes the files of others.
OPEN_MODE = 0o1777


@check("host.temporary", reads=("disks", "kernel"), repair=INSPECT, severity="major")
def temporary(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Every account can use /dev/shm, /tmp and /dev/null, and /dev/shm is large enough for NCCL."""
    disks, container = observed.data["disks"], observed.data["kernel"]["container"]
    rows = {row["path"]: row for row in disks.get("shared", [])}
    for path in (SHM, "/tmp"):
        row = rows.get(path)
        if row is None:
            yield Finding(
                f"It was not observed whether {path} can be used",
                "./gpufleet verify",
                verdict=Verdict.INCONCLUSIVE,
            )
        elif not row["exists"]:
            if path != SHM or not container:
                yield Finding(
                    f"{path} is not there, or is no directory",
                    "on the host: " + (MOUNT_SHM if path == SHM else "mkdir -m 1777 /tmp"),
                )
        else:
            yield from _usable(row, container)
            yield from (
                _shared_memory(row, disks.get("memory_mib"), container) if path == SHM else []
            )
            yield Evidence(
                f"{path}: {row['mounted'] or 'no mount'}, mode {row['mode']},"
                f" {row['free_mib']} of {row['size_mib']} MiB free"
            )
    yield from _common(disks)


def _common(disks: Disks) -> Iterator[Finding | Evidence]:
    """Files that programs of every account open, tried as an ordinary one."""
    rows = disks.get("common")
    if not rows:
        yield Finding(
            "It was not tried whether an ordinary account can use /dev/null and the linker's cache",
            "./gpufleet verify (as root)",
            verdict=Verdict.INCONCLUSIVE,
        )
    for row in rows or []:
        if row["error"]:
            path = row["path"]
            device = DEVICES.get(path)
            yield Finding(
                f"Accounts other than root cannot use {path}: {row['error']}",
                "on the host: "
                + (
                    shell(
                        f"chmod {'666' if device else 'a+r'}",
                        path,
                        instead=f"let all accounts read {quoted(path)}",
                    )
                    if row.get("kind") == "mode"
                    else f"rm -f {path}; {device}"
                    if device
                    else shell("namei -l", path, instead=f"the mode of each part of {quoted(path)}")
                    + " shows where they may not go; chmod a+rx that directory"
                ),
            )
    if rows:
        yield Evidence(f"{len(rows)} files that every account uses")


def _usable(row: SharedDirectory, container: str | None) -> Iterator[Finding]:
    """Findings where an account cannot write in a directory that is there."""
    path = row["path"]
    mode = int(required(row["mode"], f"the mode of {path}"), 8)
    wrong = []
    if mode & OPEN_MODE != OPEN_MODE:
        wrong.append(f"has mode {row['mode']}, not 1777")
    # In a container root may be another account of the machine.
    if row["owner"] != 0 and not container:
        wrong.append(f"belongs to user {row['owner']}, not to root")
    if wrong:
        yield Finding(
            f"{path} {' and '.join(wrong)}: some accounts cannot use it, or can remove the files"
            " of others",
            f"on the host: chown root:root {path}; chmod 1777 {path}",
        )
    # /tmp is one of host.disk's.
    if path == SHM and required(row["readonly"], "whether it is mounted read-only"):
        yield Finding(f"{path} is mounted read-only", f"on the host: mount -o remount,rw {path}")


def _shared_memory(
    row: SharedDirectory, memory_mib: int | None, container: str | None
) -> Iterator[Finding]:
    """Findings where /dev/shm is not memory, or not large enough."""
    size, free = required(row["size_mib"], "its size"), required(row["free_mib"], "its free space")
    if row["mounted"] != "tmpfs" and not container:
        yield Finding(
            f"{SHM} is not mounted as tmpfs: it is {row['mounted'] or 'a directory of /dev'}",
            f"on the host: {MOUNT_SHM}",
        )
        return
    if memory_mib is None and not container:
        yield Finding(
            f"The host's memory was not read: it is unknown whether {SHM} is large enough",
            "./gpufleet verify",
            verdict=Verdict.INCONCLUSIVE,
        )
        return
    least = CONTAINER_SHM_MIB if container else min(SHM_MIB, (memory_mib or 0) // 4)
    if size < least:
        yield Finding(
            f"{SHM} has {size:g} MiB, at least {least} MiB are needed: NCCL and data loaders share"
            " memory through it",
            f"on the host: mount -o remount,size=1g {SHM}; where that is refused, start the"
            " container with --shm-size=1g"
            if container
            else f"on the host: mount -o remount,size=50% {SHM}; then correct its size in"
            " /etc/fstab,"
            " if it is there",
        )
    elif free < size * SHM_FREE_SHARE or row["free_files"] == 0:
        yield Finding(
            f"{SHM} is full: {free:g} of {size:g} MiB are free",
            f"on the host: see what fills it (ls -lS {SHM}), and remove what no running process has"
            f" open (fuser -v {SHM}/*)",
        )
