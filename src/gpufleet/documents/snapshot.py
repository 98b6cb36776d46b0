"""The snapshot: what the probe reads on one host, in sections.

Each section has a state and a deadline of its own. `data` is null unless the state is `ok`; a value
that could not be read is null, never a guess. A section that is not of its type is judged by no
check: `host.probe` names the location, and checks that read it are INCONCLUSIVE.
Keys that are not described here pass.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, NotRequired, TypedDict, TypeVar

from .pairs import Meeting
from .sections.compute import Compute
from .sections.cuda import Cudnn, Linker, Receipts, Toolkits
from .sections.gpu import Driver, Gpus, Smi
from .sections.host import Disks, Environment, Kernel, KernelLog, Os, Packages
from .sections.machine import Machine
from .sections.network import Network
from .sections.stacks import Containers, Stacks
from .types import Text, Time

Data = TypeVar("Data")

# The schema of the snapshots that the checks read; the probe, which imports no other package, has
# the same number (a test compares them).
SNAPSHOT_SCHEMA = 1


AFTER = "the same once more, after everything that computes; only where a driver was loaded"


class Section(TypedDict, Generic[Data]):
    """One section of a snapshot."""

    state: Annotated[
        Text,
        "`ok`; `hung`: abandoned at its deadline; `error`; `denied`: it needs more rights;"
        " `damaged`: it is not of its type",
    ]
    seconds: Annotated[float | None, "how long it took"]
    error: Annotated[Text | None, "why there is no data"]
    data: NotRequired[Data | None]


class Sections(TypedDict, total=False):
    """The sections by name."""

    os: Section[Os]
    kernel: Section[Kernel]
    disks: Section[Disks]
    gpus: Section[Gpus]
    driver: Section[Driver]
    network: Section[Network]
    machine: Section[Machine]
    packages: Section[Packages]
    receipts: Section[Receipts]
    toolkits: Section[Toolkits]
    cudnn: Section[Cudnn]
    linker: Section[Linker]
    environment: Section[Environment]
    stacks: Section[Stacks]
    containers: Section[Containers]
    smi: Section[Smi]
    kernel_log: Section[KernelLog]
    compute: Section[Compute]
    smi_after: Annotated[Section[Smi], AFTER]
    kernel_log_after: Annotated[Section[KernelLog], AFTER]


class SectionData(TypedDict, total=False):
    """The data of the sections that were read, by name."""

    os: Os
    kernel: Kernel
    disks: Disks
    gpus: Gpus
    driver: Driver
    network: Network
    machine: Machine
    packages: Packages
    receipts: Receipts
    toolkits: Toolkits
    cudnn: Cudnn
    linker: Linker
    environment: Environment
    stacks: Stacks
    containers: Containers
    smi: Smi
    kernel_log: KernelLog
    compute: Compute
    smi_after: Smi
    kernel_log_after: KernelLog


class Unseen(TypedDict):
    """Something that the probe's account may not read, while the rest of the section was read."""

    section: Text
    what: Annotated[str, "a path, mostly"]
    because: str


class Snapshot(TypedDict):
    """The readings of the probe on one host."""

    schema: Annotated[int, "1"]
    host: Text
    mode: NotRequired[Annotated[Literal["full", "facts"], "`facts` runs no workload"]]
    euid: NotRequired[Annotated[int, "the user id that the probe ran as"]]
    started: NotRequired[Time]
    finished: NotRequired[Time]
    clock_offset_s: NotRequired[
        Annotated[
            float,
            "only where the host's clock is wrong: by how much it is at least ahead of the control"
            " machine's; negative: behind. `started` and `finished` are the control machine's then",
        ]
    ]
    unseen: NotRequired[list[Unseen]]
    sections: Sections
    pairs: NotRequired[Annotated[list[Meeting], "of a host that took part in `verify --pair`"]]
