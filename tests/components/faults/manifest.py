"""A host that differs from the manifest of its group, in one thing at a time."""

from __future__ import annotations

from typing import Any

from gpufleet.components.base.machine import manifest_of
from tests.components.faults.nvme import a_drive_with_a_slow_link
from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data


def with_manifest(plan: Document, snapshot: Document) -> None:
    """The healthy host, whose group's manifest has all that the host has."""
    data(snapshot, "kernel")["frequency"] = [
        {"cpu": cpu, "governor": "performance", "driver": "amd-pstate"} for cpu in range(2)
    ]
    sections: Any = {name: section["data"] for name, section in snapshot["sections"].items()}
    plan["manifest"] = {name: [value] for name, value in manifest_of(sections).values.items()}


def with_machine_manifest(plan: Document, snapshot: Document) -> None:
    """The healthy host with a manifest of the names that only the section `machine` has."""
    with_manifest(plan, snapshot)
    for name in ("memory.total", "cpu.governor", "kernel.release", "network.interfaces"):
        del plan["manifest"][name]
    del data(snapshot, "kernel")["frequency"]


fault, harmless = faults_on(with_manifest)


@fault(
    "host.manifest",
    cause="memory.modules is 1 x 512GiB 4800 MT/s Example EX128X72R; the group has 2 x 512GiB",
    remedy="seat or replace the module; if it is right, permit it too in gpu_manifest",
)
def a_module_is_missing(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["memory"][1].update(mib=0, mt_s=None, part=None, maker=None)


@fault(
    "host.manifest",
    cause="1 x 512GiB 4400 MT/s Example EX128X72R, 1 x 512GiB 4800 MT/s",
    remedy="BIOS settings",
)
def a_module_is_slower(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["memory"][0]["mt_s"] = 4400


@fault("host.manifest", cause="memory.total is 942 GiB; the group has 1006", remedy="event log")
def the_firmware_has_taken_a_module_out(plan: Document, snapshot: Document) -> None:
    data(snapshot, "disks")["memory_mib"] -= 65536


@harmless
def a_kernel_keeps_a_little_more_memory(plan: Document, snapshot: Document) -> None:
    data(snapshot, "disks")["memory_mib"] -= 4096
    data(snapshot, "machine")["numa"][0]["mib"] -= 2048


@fault(
    "host.manifest",
    cause="bios is Example BIOS 2.1 (03/05/2025); the group has Example BIOS 2.4 (03/05/2025)",
    remedy="install the group's version of the BIOS",
)
def another_bios(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["firmware"]["bios_version"] = "2.1"


@harmless
def another_bios_that_is_permitted(plan: Document, snapshot: Document) -> None:
    another_bios(plan, snapshot)
    plan["manifest"]["bios"].append("Example BIOS 2.1 (03/05/2025)")


@fault("host.manifest", cause="cpu.microcode is 0xa101144; the group has", remedy="microcode")
def another_microcode(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["cpus"]["microcode"] = {"0xa101144": 384}


@fault("host.manifest", cause="cpu.topology is sockets 2, cores 192, threads 192", remedy="SMT")
def without_smt(plan: Document, snapshot: Document) -> None:
    for key in ("models", "microcode"):
        cpus = data(snapshot, "machine")["cpus"][key]
        cpus.update(dict.fromkeys(cpus, 192))


@fault(
    "host.manifest",
    cause="kernel.command_line is ro quiet; the group has ro quiet iommu=pt",
    remedy="in the boot loader",
)
def another_command_line(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["command_line"] = "ro quiet"


@fault(
    "host.manifest",
    cause="command_line differs: here a.b=0; in place of it the group has a.b=1",
    remedy="in the boot loader",
)
def one_part_of_a_long_command_line(plan: Document, snapshot: Document) -> None:
    common = " ".join(f"module{number}.parameter=1" for number in range(30))
    plan["manifest"]["kernel.command_line"] = [f"{common} a.b=1"]
    data(snapshot, "machine")["command_line"] = f"{common} a.b=0"


@fault("host.manifest", cause="mount /scratch is none; the group has nfs4", remedy="/etc/fstab")
def a_file_system_is_not_mounted(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["mounts"].pop()


@fault("host.manifest", cause="nvme.drives is 1 x EXAMPLE PM9", remedy="a drive that was lost")
def a_drive_is_lost(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["drives"].pop()


@fault(
    "host.manifest",
    cause="pci.links is 1 x NVMe 8 GT/s x4, 1 x NVMe 16 GT/s x4, 1 x network 2.5 GT/s x1; the group",
    remedy="seat the drive",
)
def a_drive_has_a_slow_link(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["pci"]["links"][1]["speed"] = "8 GT/s"


@fault("host.manifest", cause="pci.functions is 2 x 0x010802", remedy="what is missing")
def an_adapter_is_missing(plan: Document, snapshot: Document) -> None:
    del data(snapshot, "machine")["pci"]["kinds"]["0x020000 0x8086:0x10d3"]


@harmless
def the_drives_have_other_names(plan: Document, snapshot: Document) -> None:
    drives = data(snapshot, "machine")["drives"]
    drives[0]["firmware"], drives[1]["firmware"] = "A", "B"
    plan["manifest"]["nvme.drives"] = [
        ", ".join(f"1 x EXAMPLE PM9 3.84TB 3841 GB firmware {name}" for name in "AB")
    ]
    drives.reverse()
    for number, drive in enumerate(drives):
        drive["name"] = f"nvme{number}"


@fault("host.manifest", cause="nvme.media_errors is 3; the group has 0", remedy="increase")
def a_drive_could_not_recover_data(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["drives"][0]["health"]["media_errors"] = 3


@fault("host.manifest", cause="clock.synchronised is no", remedy="start the service")
def a_clock_that_nothing_sets(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["clock"].update(unsynchronised=True, max_error_us=16_000_000)


@harmless
def a_clock_that_chrony_sets_without_the_kernels_flag(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["clock"].update(unsynchronised=True, max_error_us=90_000)


@fault(
    "host.manifest",
    verdict="INCONCLUSIVE",
    cause="memory.modules cannot be compared with the group's: this account cannot read it",
    remedy="as root",
)
def modules_that_only_root_reads(plan: Document, snapshot: Document) -> None:
    data(snapshot, "machine")["memory"] = None
    data(snapshot, "machine")["unread"]["memory"] = "this account cannot read it"


@fault(
    "host.manifest",
    verdict="INCONCLUSIVE",
    cause="cpu.governor cannot be compared with the group's: it was not read of each CPU",
    remedy="find why it cannot be read",
)
def governors_that_were_not_read(plan: Document, snapshot: Document) -> None:
    data(snapshot, "kernel")["frequency"] = None


@fault("host.manifest", cause="pci.links is", remedy="permit it too in gpu_manifest")
def a_slow_link_that_host_nvme_leaves_to_the_manifest(plan: Document, snapshot: Document) -> None:
    a_drive_with_a_slow_link(plan, snapshot)
