"""File systems that the kernel has made read-only after an error.

One that is read-only by design, as the root of an image, has no error in the kernel log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpufleet.checks.base.registry import Finding, shortened
from gpufleet.checks.base.sections import Sections
from gpufleet.model.text import quoted

# What the kernel logs of the file system itself. An error of a disk alone is no such message.
REMOUNTED = "Remounting filesystem read-only"


def remounted(observed: Sections, known: Collection[str]) -> Iterator[Finding]:
    """Read-only file systems beside an error of a disk; `known` ones are reported already."""
    every = observed.read_elsewhere()
    if "kernel_log" not in every or ("kernel" in every and every["kernel"].get("container")):
        return
    errors = [event for event in every["kernel_log"]["events"] if event["kind"] == "io-error"]
    if not errors:
        return
    text = errors[-1]["text"]
    disks = observed.data["disks"]
    mounts = every["machine"]["mounts"] if "machine" in every else None
    paths = list(disks["readonly"])
    if REMOUNTED in text:
        # Any file system may be meant. One that was mounted again since is writable.
        paths += [quoted(row["path"]) for row in mounts or [] if "ro" in row["options"]]
        paths = paths or ([] if mounts is not None else ["A file system of this host"])
    else:
        # An image has no space left by design, and an error of a disk says nothing of it.
        paths = [path for path in paths if disks["free_mib"][path]]
    lost = [path for path in dict.fromkeys(paths) if path not in known]
    if lost:
        yield Finding(
            f"{shortened(lost)} cannot be written: the file system is read-only,"
            " and the kernel log has an error of a disk or file system",
            "on the host: see the kernel log (dmesg -T); back up what is on the disk, replace it if"
            " it fails (smartctl -x), repair the file system and mount it again",
            text,
        )
