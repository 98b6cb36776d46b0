"""Sections of a snapshot about the machine and its operating system."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from gpufleet.documents.types import NON_EMPTY, UNCHECKED, Path, Text


class Interpreter(TypedDict):
    """A Python interpreter."""

    path: Path
    version: Annotated[str | None, "such as 3.11.2"]


class IdentifiedDrive(TypedDict):
    """An NVMe drive of the machine, as its vendor identifies it."""

    name: Annotated[Text, "such as nvme0"]
    address: Annotated[Text | None, "the PCI address"]
    model: Text | None
    serial: Text | None
    firmware: Text | None


class IdentifiedModule(TypedDict):
    """A memory module, by the machine's SMBIOS table; null: not written."""

    slot: Annotated[Text | None, "such as DIMM_A1"]
    bank: Text | None
    mib: int | None
    part: Annotated[Text | None, "the part's number"]
    maker: Text | None
    serial: Text | None


class Hardware(TypedDict):
    """The machine's identification for its vendor; null: not written, or not read."""

    vendor: Text | None
    product: Text | None
    serial: Annotated[Text | None, "the serial number of the system, which root alone can read"]
    serial_board: Text | None
    firmware: Annotated[Text | None, "the version of the BIOS"]
    modules: NotRequired[
        Annotated[
            list[IdentifiedModule] | None,
            "memory modules; null: root alone can read them, or the machine has no such table",
        ]
    ]
    drives: list[IdentifiedDrive]


class Os(TypedDict):
    """The operating system."""

    id: Annotated[Text | None, "the distribution, such as debian"]
    version_id: Annotated[Text | None, "its version, such as 12"]
    codename: Annotated[str | None, "its code name, such as bookworm"]
    arch: Annotated[Text, "the machine's architecture, such as x86_64"]
    glibc: Annotated[Text | None, "glibc's version, such as 2.36"]
    cpu_features: NotRequired[
        Annotated[
            list[Text] | None,
            "of the processor's features that wheels of frameworks need, those that it has; null"
            " where it lists none",
        ]
    ]
    hostname: Annotated[str, "the name that the host has for itself"]
    pythons: Annotated[list[Interpreter], "the Python interpreters, the system's own first"]
    hardware: NotRequired[Hardware]


class KernelModule(TypedDict):
    """One of NVIDIA's kernel modules."""

    name: Annotated[Text, "without the distribution's suffix: nvidia, not nvidia-current"]
    path: Path
    version: Annotated[Text | None, "of compressed modules only `nvidia` has one"]
    license: Annotated[Text | None, "as modinfo shows it; open modules have another one"]
    error: NotRequired[
        Annotated[
            Text | None,
            "why the kernel cannot load it: its file is not whole, or modprobe does not find it",
        ]
    ]


class InstalledKernel(TypedDict):
    """A kernel that is installed."""

    version: Text
    image: Annotated[bool, "its image is in /boot"]
    headers: Annotated[bool, "what a module is built with is installed"]
    modules: Annotated[
        list[KernelModule], "NVIDIA's modules for it, the one that would be loaded first"
    ]
    initramfs: Annotated[Path | None, "its initial RAM file system"]
    initramfs_nouveau: Annotated[
        bool | None,
        "the initramfs has nouveau and nothing that blacklists it; read in mode `full`, and where"
        " the initramfs is older than the blacklist",
    ]


class SecureBoot(TypedDict):
    """Secure Boot, and what the kernel refuses; all is null in a container."""

    enabled: bool | None
    refuses: NotRequired[
        Annotated[
            bool | None,
            "the running kernel refuses unsigned modules; null where it does not tell",
        ]
    ]
    key: NotRequired[
        Annotated[Path | None, "the certificate of the key with which DKMS signs, if there is one"]
    ]
    enrolled: Annotated[bool | None, "the firmware accepts the key with which DKMS signs"]
    pending: NotRequired[
        Annotated[bool | None, "its enrolment was asked for, and is to be confirmed at the console"]
    ]


class CpuFrequency(TypedDict):
    """The settings of a CPU's frequency; null where they could not be read."""

    cpu: int
    governor: Annotated[Text | None, "such as performance"]
    driver: Annotated[Text | None, "the scaling driver, such as intel_pstate"]


class Kernel(TypedDict):
    """The kernel that runs and those that are installed."""

    running: Annotated[Text, "as `uname -r` shows it"]
    boot_id: Annotated[Text | None, "identifies this boot"]
    uptime_s: int | None
    container: Annotated[
        Text | None,
        "what `systemd-detect-virt --container` prints; in a container the running kernel is not"
        " the host's own; `image`: in a system that is being built and has not booted",
    ]
    provisioned_as_image: NotRequired[
        Annotated[Text | None, "when it was provisioned as an image, before its first boot"]
    ]
    next_boot: Annotated[Text | None, "the kernel of the next boot"]
    next_boot_source: Annotated[Text | None, "the file or program that determines it"]
    installed: list[InstalledKernel]
    secure_boot: SecureBoot
    frequency: NotRequired[
        Annotated[
            list[CpuFrequency] | None,
            "of each CPU whose frequency the kernel sets; empty in most virtual machines; null"
            " where no CPU is listed",
        ]
    ]


class SharedDirectory(TypedDict):
    """A directory in which every account may write; its other values are null without it."""

    path: Annotated[Path, "/dev/shm or /tmp"]
    exists: Annotated[bool, "it is a directory"]
    mode: Annotated[Text | None, "such as 1777"]
    owner: Annotated[int | None, "the number of its account"]
    mounted: Annotated[Text | None, "the type of the file system that is mounted there, if any"]
    size_mib: float | None
    free_mib: float | None
    free_files: Annotated[int | None, "null where the file system creates them as needed"]
    readonly: bool | None


class CommonFile(TypedDict):
    """A file that programs of every account use."""

    path: Path
    kind: NotRequired[
        Annotated[
            Literal["mode", "missing", "no-device"] | None,
            "of `error`; `missing`: it is not there, or in a directory that it may not enter",
        ]
    ]
    error: Annotated[str | None, "why an ordinary account cannot use it"]


class Disks(TypedDict):
    """File systems at `/`, `/tmp`, the toolkits' and stacks' directories and the state directory.

    Keys are the directories; one that does not exist is measured at its nearest existing parent.
    """

    free_mib: Annotated[dict[str, int], "free space"]
    free_files: Annotated[
        dict[str, int | None], "free inodes; null where the file system creates them as needed"
    ]
    filesystem: Annotated[dict[str, Text], "the device id of each file system"]
    noexec: Annotated[list[Path], "directories that are mounted noexec"]
    readonly: Annotated[list[Path], "directories that are mounted read-only"]
    shared: NotRequired[list[SharedDirectory]]
    common: NotRequired[
        Annotated[list[CommonFile] | None, "null where no ordinary account could try"]
    ]
    memory_mib: NotRequired[Annotated[int | None, "the memory of the host"]]


class Package(TypedDict):
    """A package of the driver."""

    name: Text
    version: Text | None
    status: Annotated[Text, "`installed`, or dpkg's state such as `half-configured`"]
    held: Annotated[bool, "the package manager does not upgrade it"]


class BrokenPackage(TypedDict):
    """A package that is not cleanly installed."""

    name: Text
    status: Text


class VersionLocking(TypedDict):
    """The state of dnf's version locks."""

    plugin: Annotated[bool, "its plugin for version locks is installed"]
    switched_off: Annotated[list[Text], "the settings with which it ignores them"]


class Pin(TypedDict):
    """An entry of apt's preferences, in the order in which apt reads them."""

    path: Path
    packages: list[Text]
    pin: str
    priority: int | None


class UnattendedUpgrades(TypedDict):
    """The unattended-upgrades package."""

    installed: bool
    excluded: Annotated[
        bool | None, "it leaves the driver's packages alone; null where apt does not tell"
    ]


class PackageSource(TypedDict):
    """A package repository of NVIDIA's or Docker's."""

    path: Path
    uris: list[Text]
    suites: list[Text]
    signed_by: Annotated[Text | None, "the key file that apt checks signatures with"]
    format: Annotated[Text, "`deb822`, `list` or `repo`"]
    source_only: NotRequired[Annotated[bool, "it has sources, and no packages to install"]]


class Packages(TypedDict):
    """The package manager's data on the driver."""

    manager: Literal["dpkg", "rpm"] | None
    driver: Annotated[list[Package], "the driver's packages"]
    network: NotRequired[
        Annotated[dict[str, Text | None], "the version of each package of network drivers"]
    ]
    broken: Annotated[list[BrokenPackage], "all packages that are not cleanly installed"]
    locking: NotRequired[Annotated[VersionLocking | None, "null where rpm is not the manager"]]
    pins: Annotated[list[Pin], "apt's preferences that name the driver's packages"]
    unattended: UnattendedUpgrades
    sources: list[PackageSource]
    stopped: NotRequired[
        Annotated[
            list[Text] | None,
            "what stops every command of apt or dnf, in its own words; null where it is not known",
        ]
    ]


class Event(TypedDict):
    """A message of the kernel log: the last one of its kind, code and GPU.

    Messages of one code that ask for different things stay apart: SXids and PCIe errors by
    severity; Xids 45, 64, 74, 144 to 150 and 154 by what their texts say.
    """

    kind: Annotated[
        Text,
        "`xid`, `sxid`, `key-rejected`, `api-mismatch`, `init-failed`,"
        " `needs-older-branch`, `needs-open-module`, `needs-proprietary-module`,"
        " `no-memory-region`, `open-module-unready`, `unsupported-card`, `module-refused`,"
        " `module-unchecked`, `memory-encryption`, `pcie-error`, `link-down`, `power-state`,"
        " `link-training`, `driver-error`, `driver-oops`, `oops`,"
        " `driver-lockup`, `lockup`, `stall`, `corrected-error`, `iommu-fault`, `port-down`,"
        " `machine-check`, `previous-boot`, `hung-task`, `io-error` or"
        " `out-of-memory`",
    ]
    code: Annotated[
        int | None, "the Xid's or SXid's number; of `needs-older-branch` the card's last branch"
    ]
    address: Annotated[Text | None, "the PCI address"]
    pid: int | None
    process: Annotated[Text | None, "the process, or the kernel module that was refused"]
    uptime_s: Annotated[float | None, "when it was last logged, after the boot"]
    count: Annotated[int, "how often"]
    text: Annotated[str, "the line"]
    below: NotRequired[
        Annotated[
            list[Text],
            "of a PCIe error or a lost link: the NVIDIA devices that are reached through the"
            " address, if it is a port",
            UNCHECKED,
        ]
    ]
    loaded: NotRequired[
        Annotated[bool | None, "of a module that the kernel refused: it is loaded now"]
    ]


class KernelLog(TypedDict):
    """Faults in the kernel log.

    Those of a driver that was loaded again since, and of a card that was reset, are left out.
    """

    source: Annotated[
        Text | None,
        "`journal`, `dmesg`, `file:PATH`; null where nothing is read: in mode `facts`, and in a"
        " container without a GPU",
    ]
    error: Annotated[str | None, "why it could not be read"]
    since_boot: Annotated[bool, "it is limited to this boot"]
    complete: Annotated[bool, "it reaches back to the boot"]
    events: list[Event]


class Login(TypedDict):
    """Variables that steer CUDA; null where unset."""

    LD_LIBRARY_PATH: str | None
    LD_PRELOAD: str | None
    CUDA_VISIBLE_DEVICES: str | None
    CUDA_HOME: str | None
    PYTHONPATH: str | None
    PYTHONHOME: str | None


class Variables(TypedDict):
    """Variables that affect CUDA, as one file or session sets them."""

    where: Annotated[Text, "a login, systemd, or the file that sets them"]
    variables: Annotated[dict[str, str | None], NON_EMPTY]
    job: NotRequired[Annotated[bool, "they hold for one service or cron job alone"]]


class Environment(TypedDict):
    """Environment variables that change which libraries a process loads."""

    login: Annotated[Login, "of a fresh login shell"]
    others: Annotated[
        list[Variables],
        "of the connecting user's login, of systemd, of /etc/ld.so.preload, and of each file of"
        " PAM, systemd units and cron that sets any",
        NON_EMPTY,
    ]
    mentions: NotRequired[
        Annotated[dict[str, list[Text]], "by variable: the profiles that name it"]
    ]
    unread: NotRequired[Annotated[list[Text], "files that the probe's user may not read"]]
    refused: NotRequired[
        Annotated[Text | None, "why the login of root was not run; its files were read instead"]
    ]
    offers: Annotated[
        dict[str, list[Text]], "by directory that they name: its CUDA and cuDNN libraries"
    ]
