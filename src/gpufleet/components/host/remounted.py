"""File systems that the kernel has made read-only after an error.

One that is read-only by design, as the root of an image, has no error in the kernel log.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from gpufleet.components.base.registry import Finding, shortened
from gpufleet.components.base.sections import Sections
from gpufleet.documents.sections.machine import Mount
from gpufleet.documents.text import quoted
from gpufleet.documents.verdict import Verdict

# The kernel's message of a remount, and the beginnings of file systems' messages: a disk's error
# alone may be that of a memory stick.
REMOUNTED = "Remounting filesystem read-only"
FILE_SYSTEM = re.compile(r"(EXT[234]-fs|XFS|BTRFS|F2FS-fs|JFS)\b")
# Options that the kernel adds to a file system that it ended (ext4, XFS, F2FS).
ENDED = {"emergency_ro", "shutdown"}
# The types that the kernel remounts: a share is read-only for its own reasons.
LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs"}


def remounted(observed: Sections, known: Collection[str]) -> Iterator[Finding]:
    """Read-only file systems beside an error of a disk; `known` ones are reported already.

    Only those that gpufleet needs fail: of the others nothing says which one the message means.
    """
    every = observed.read_elsewhere()
    yield from _ended(every["machine"]["mounts"] if "machine" in every else None)
    if "kernel_log" not in every or ("kernel" in every and every["kernel"].get("container")):
        return
    errors = [event for event in every["kernel_log"]["events"] if event["kind"] == "io-error"]
    if not errors:
        return
    text = errors[-1]["text"]
    disks = observed.data["disks"]
    mounts = every["machine"]["mounts"] if "machine" in every else None
    verdict = Verdict.FAIL if FILE_SYSTEM.search(text) else Verdict.INCONCLUSIVE
    # An image has no space left by design, and an error of a disk says nothing of it.
    paths = [path for path in disks["readonly"] if disks["free_mib"][path] or REMOUNTED in text]
    if not paths and REMOUNTED in text:
        verdict = Verdict.INCONCLUSIVE
        paths = ["A file system of this host"] if mounts is None else _read_only(mounts)
    lost = [path for path in paths if path not in known]
    if lost:
        yield Finding(
            f"{shortened(lost)} cannot be written: the file system is read-only,"
            " and the kernel log has an error of a disk or file system",
            "on the host: see the kernel log (dmesg -T); back up what is on the disk, replace it if"
            " it fails (smartctl -x), repair the file system and mount it again",
            text,
            verdict=verdict,
        )


def _ended(mounts: Sequence[Mount] | None) -> Iterator[Finding]:
    """File systems that the kernel has ended after an error, though they may be called `rw`."""
    ended = [
        f"{quoted(row['path'])} ({option})"
        for row in mounts or []
        for option in row["options"]
        if option in ENDED
    ]
    if ended:
        yield Finding(
            f"The kernel has stopped writing to {shortened(ended)} after an error",
            "on the host: see the kernel log (dmesg -T); back up what is on the disk, replace it if"
            " it fails (smartctl -x), repair the file system and mount it again",
            verdict=Verdict.INCONCLUSIVE,
        )


def _read_only(mounts: Sequence[Mount]) -> list[str]:
    """Any of them may be meant. One that was mounted again since is writable."""
    return [
        quoted(row["path"]) for row in mounts if "ro" in row["options"] and row["type"] in LOCAL
    ]
