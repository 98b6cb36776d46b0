"""The section of a snapshot about what a machine consists of and how it is set."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from gpufleet.documents.types import Path, Text

PciLink = TypedDict(
    "PciLink",
    {
        "address": Text,
        "class": Annotated[Text, "such as 0x010802 for an NVMe drive"],
        "speed": Annotated[Text, "such as 16.0 GT/s PCIe"],
        "width": Annotated[Text | None, "the lanes"],
    },
)


class PciFunctions(TypedDict):
    """The PCI bus, without virtual functions."""

    kinds: Annotated[dict[str, int], "functions by `CLASS VENDOR:DEVICE`"]
    links: Annotated[
        list[PciLink], "of storage, networks, NVSwitches and accelerators, GPUs excepted"
    ]


class MemorySlot(TypedDict):
    """A slot for a memory module, by the machine's SMBIOS table; null: the table does not say."""

    slot: Annotated[Text | None, "such as DIMM_A1"]
    bank: Text | None
    mib: Annotated[int | None, "0: it is empty"]
    mt_s: Annotated[int | None, "the configured speed in MT/s"]
    part: Annotated[Text | None, "the part's number"]
    maker: Text | None


class Processors(TypedDict):
    """The CPUs that run."""

    models: Annotated[dict[str, int], "the threads of each model"]
    microcode: Annotated[dict[str, int], "the threads of each version; empty where it has none"]
    packages: Annotated[int | None, "sockets"]
    cores: int | None


class NumaNode(TypedDict):
    """A NUMA node that has CPUs or memory."""

    node: int
    cpus: Annotated[Text | None, "such as 0-31,64-95; null: none, or not read"]
    mib: Annotated[int | None, "its memory"]


class DriveHealth(TypedDict):
    """The health log that an NVMe drive keeps (NVM Express Base Specification, log page 02h)."""

    critical_warning: Annotated[int, "a bit for each warning; 0: none"]
    spare_percent: Annotated[int, "what is left of the spare capacity"]
    spare_threshold_percent: Annotated[int, "below it the drive warns"]
    used_percent: Annotated[int, "of the endurance that the maker rates; may exceed 100"]
    units_read: Annotated[int, "in units of 1000 blocks of 512 bytes; 0 may mean not reported"]
    units_written: int
    reads: Annotated[int, "commands"]
    writes: Annotated[int, "commands"]
    power_cycles: int
    power_on_hours: int
    media_errors: Annotated[int, "how often it could not recover data"]


class Drive(TypedDict):
    """An NVMe drive on the PCI bus."""

    name: Annotated[Text, "such as nvme0"]
    address: Annotated[Text | None, "the PCI address"]
    model: Text | None
    firmware: Text | None
    state: Annotated[Text | None, "as the kernel has it, such as live"]
    gb: Annotated[int, "the size of its namespaces, 0 where it has none"]
    health: Annotated[DriveHealth | None, "null: not read"]
    error: Annotated[str | None, "why it was not read"]
    refused: Annotated[int | None, "the status with which the drive refused its health log"]


class DriverGpu(TypedDict):
    """A GPU as the loaded driver lists it; null: not read."""

    model: Text | None
    vbios: Annotated[Text | None, "null also where the driver has not started the GPU"]


class Mount(TypedDict):
    """A mounted file system of a disk or a server."""

    path: Path
    type: Text
    options: Annotated[list[Text], "those that change what jobs see, such as ro or noexec"]


class Clock(TypedDict):
    """The kernel's clock."""

    unsynchronised: Annotated[bool | None, "the kernel's flag STA_UNSYNC; null: not read"]
    max_error_us: Annotated[int | None, "the greatest error"]
    services: Annotated[list[Text], "the programs that run and set the clock"]


class Inherited(TypedDict):
    """Limits of a service, which its jobs or logins inherit, as SOFT:HARD; null: not read."""

    nofile: Text | None
    memlock: Annotated[Text | None, "in bytes"]


class SshLogin(TypedDict):
    """The ssh login that the probe came by; null: not read."""

    account: Annotated[int | None, "the number of its account, before sudo"]
    memlock: Annotated[Text | None, "its limit of locked memory as SOFT:HARD, in bytes"]


class Limits(TypedDict):
    """Lines of the files that limit processes."""

    logins: Annotated[list[Text], "of /etc/security/limits.conf and limits.d"]
    services: Annotated[list[Text], "the defaults of all services, of systemd"]


class Machine(TypedDict):
    """The parts and settings of a machine, without the values that identify this machine alone."""

    firmware: Annotated[
        dict[str, Text | None], "files of /sys/class/dmi/id, such as bios_version; null: none"
    ]
    pci: PciFunctions
    bmc: Annotated[
        list[Text | None] | None, "the firmware of each management controller; null: not read"
    ]
    memory: Annotated[list[MemorySlot] | None, "empty without an SMBIOS table; null: not read"]
    cpus: Processors
    numa: list[NumaNode]
    drives: list[Drive]
    gpus: Annotated[list[DriverGpu], "empty where no driver is loaded"]
    command_line: Annotated[
        Text | None, "the kernel's, without this host's own disks and addresses; null: not read"
    ]
    mounts: Annotated[list[Mount] | None, "null: not read"]
    clock: Clock
    limits: Annotated[Limits | None, "null: not read"]
    inherited: Annotated[dict[str, Inherited], "by service, such as sshd or slurmd"]
    login: NotRequired[
        Annotated[SshLogin | None, "null: it came by none, as in pull mode and by Slurm"]
    ]
    unread: Annotated[dict[str, str], "by key that is null: why"]
