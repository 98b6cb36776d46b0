"""File systems that are read-only: by design, or since the kernel met an error."""

from __future__ import annotations

from tests.support.check_faults import faults_on, no_gpus
from tests.support.healthy_host import Document, data
from tests.support.host_parts import event

fault, harmless = faults_on(no_gpus)
REMOUNT = "EXT4-fs (nvme0n1p2): Remounting filesystem read-only"
ABORTED = "EXT4-fs error (device nvme0n1p2): ext4_journal_check_start:83: Detected aborted journal"


def separate_root(snapshot: Document) -> Document:
    """Let / be a file system of its own, which is read-only."""
    disks: Document = data(snapshot, "disks")
    disks["filesystem"]["/"] = "2049"
    disks["readonly"] = ["/", "/usr/local", "/opt/gpufleet/stacks"]
    return disks


@fault(
    "host.disk",
    cause="/, /usr/local, /opt/gpufleet/stacks cannot be written: the file system is read-only, and"
    " the kernel log has an error",
    remedy="dmesg -T",
)
def a_root_that_was_remounted(plan: Document, snapshot: Document) -> None:
    separate_root(snapshot)
    event(snapshot, "io-error", text=REMOUNT)


@fault("host.disk", cause="/, /usr/local, /opt/gpufleet/stacks cannot be", remedy="smartctl -x")
def a_root_with_an_aborted_journal(plan: Document, snapshot: Document) -> None:
    """The probe keeps the last message of a kind, which may be another one than the remount."""
    separate_root(snapshot)
    event(snapshot, "io-error", text=ABORTED)


@fault(
    "host.disk",
    verdict="INCONCLUSIVE",
    cause="/data cannot be written: the file system is read-only",
    remedy="mount it again",
)
def a_file_system_of_others_that_was_remounted(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["mounts"].append(
        {"path": "/data", "type": "ext4", "options": ["relatime", "ro"]}
    )
    event(snapshot, "io-error", text=REMOUNT)


@harmless
def shares_that_are_read_only_by_design(plan: Document, snapshot: Document) -> None:
    """A memory stick was remounted."""
    data(snapshot, "machine")["mounts"].append(
        {"path": "/cm/shared", "type": "nfs4", "options": ["ro"]}
    )
    event(snapshot, "io-error", text="EXT4-fs (sdb1): Remounting filesystem read-only")


@fault(
    "host.disk",
    verdict="INCONCLUSIVE",
    cause="/, /usr/local, /opt/gpufleet/stacks cannot be written",
    remedy="dmesg -T",
)
def a_root_that_is_read_only_beside_an_error_of_some_disk(
    plan: Document, snapshot: Document
) -> None:
    separate_root(snapshot)
    event(snapshot, "io-error", text="I/O error, dev sdb, sector 12 op 0x0:(READ)")


@fault(
    "host.disk",
    verdict="INCONCLUSIVE",
    cause="A file system of this host cannot be written",
    remedy="mount it again",
)
def mounts_that_were_not_read(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["mounts"] = None
    event(snapshot, "io-error", text=REMOUNT)


@harmless
def one_that_was_mounted_again(plan: Document, snapshot: Document) -> None:
    event(snapshot, "io-error", text=REMOUNT)


@harmless
def a_root_that_is_read_only_by_design(plan: Document, snapshot: Document) -> None:
    separate_root(snapshot)


@harmless
def an_image_as_root(plan: Document, snapshot: Document) -> None:
    """composefs has no free space; a memory stick with an error is no fault of it."""
    disks = data(snapshot, "disks")
    disks["filesystem"]["/"], disks["readonly"] = "39", ["/"]
    disks["free_mib"]["/"] = disks["free_files"]["/"] = 0
    event(snapshot, "io-error", text="I/O error, dev sdb, sector 12 op 0x0:(READ)")


@harmless
def a_container_whose_root_is_read_only(plan: Document, snapshot: Document) -> None:
    """The kernel log is the machine's, and so are its disks."""
    separate_root(snapshot)
    data(snapshot, "kernel")["container"] = "docker"
    event(snapshot, "io-error", text=ABORTED)
