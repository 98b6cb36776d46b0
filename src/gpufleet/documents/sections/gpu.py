"""Sections of a snapshot about the GPUs and their driver."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from gpufleet.documents.receipt import RestartMarker
from gpufleet.documents.types import Path, Text

_Class = TypedDict("_Class", {"class": Annotated[Text, "the PCI class"]})


class PciPort(TypedDict):
    """The PCI port that a GPU is plugged into; texts as the kernel's files have them."""

    address: Annotated[Text, "such as 0000:00:01.0"]
    vendor: Annotated[Text | None, "the PCI vendor id: hypervisors present ports of their own"]
    current_link_width: Text | None
    current_link_speed: Annotated[Text | None, "such as 16.0 GT/s PCIe"]
    max_link_width: Text | None
    max_link_speed: Text | None


class PciDevice(_Class):
    """A GPU on the PCI bus (NVIDIA display and 3D classes)."""

    address: Annotated[Text, "such as 0000:01:00.0"]
    vendor: Text
    device: Annotated[str, "the device id"]
    driver: Annotated[Text | None, "the kernel driver that holds it"]
    port: NotRequired[
        Annotated[
            PciPort | None, "null: the bus shows no port above it, as in many virtual machines"
        ]
    ]


class Mig(TypedDict):
    """The MIG layout of one GPU."""

    gpu: Annotated[int, "its index"]
    mode: Annotated[Literal["on", "off"] | None, "null: the GPU has no MIG"]
    pending: NotRequired[
        Annotated[Literal["on", "off"] | None, "the mode that the next reset of the GPU applies"]
    ]
    instances: Annotated[list[Text], "the profiles of its instances, such as 3g.40gb"]


class NodeAccess(TypedDict):
    """A device node that CUDA opens."""

    path: Path
    mode: Annotated[Text | None, "such as 0666"]
    uid: int | None
    gid: int | None
    major: Annotated[int | None, "the device's major number"]
    tried: Annotated[bool, "opened as the service user; only root can try that"]
    kind: NotRequired[
        Annotated[
            Literal["permission", "no-account"] | None, "of `error`; null: none, or another one"
        ]
    ]
    error: Annotated[str | None, "why the service user cannot open it"]


class MpsProcess(TypedDict):
    """A process of NVIDIA's MPS, through which CUDA programs of one account share GPUs."""

    pid: int
    user: Text
    command: Annotated[Text, "`nvidia-cuda-mps-control` or `nvidia-cuda-mps-server`"]


class Gpus(TypedDict):
    """The GPUs as the kernel shows them; in a container those that it was given."""

    pci: list[PciDevice]
    nvswitches: Annotated[list[Text], "the PCI addresses of NVSwitches"]
    hypervisor: NotRequired[
        Annotated[bool | None, "the processor reports that this is a virtual machine"]
    ]
    platform: NotRequired[
        Annotated[
            Literal["wsl", "jetson"] | None,
            "a kind of machine whose GPUs are on no PCI bus, which is not supported",
        ]
    ]
    mig: Annotated[
        list[Mig] | None, "null where no loaded driver could be asked, or no layout is declared"
    ]
    nodes: Annotated[list[Path], "device nodes, such as /dev/nvidia0"]
    node_access: list[NodeAccess]
    mps: NotRequired[Annotated[list[MpsProcess], "of any account"]]


class DkmsModule(TypedDict):
    """A module as DKMS knows it."""

    module: Text
    version: Text
    kernel: Text | None
    state: Literal["added", "built", "installed"]


class BlockedModule(TypedDict):
    """A module of the driver that is never loaded."""

    module: Annotated[Text, "`nvidia` or `nvidia_uvm`"]
    by: Annotated[
        Path, "the file whose `install` command loads nothing instead, or the kernel's command line"
    ]


class Nouveau(TypedDict):
    """The nouveau kernel driver."""

    loaded: bool
    blacklisted: bool


class Unit(TypedDict):
    """A systemd unit; all values are null where there is none."""

    unit: Text | None
    enabled: bool | None
    active: bool | None
    masked: NotRequired[Annotated[bool, "nothing can start it, until it is unmasked"]]
    command: NotRequired[Annotated[Text | None, "what systemd starts, with its options"]]


class MigBoot(Unit):
    """The systemd unit that creates the declared MIG instances at boot."""

    layout: Annotated[
        dict[str, list[Text]] | None, "the profiles of each GPU, by index; null without the unit"
    ]


class FabricManager(Unit):
    """The fabric manager's systemd unit."""

    version: Text | None


class Imex(Unit):
    """The service that shares GPU memory between the trays of a rack."""

    nodes: Annotated[list[Text] | None, "of nodes_config.cfg; null without that file"]
    channels: Annotated[int, "those in /dev/nvidia-caps-imex-channels"]


class CoherentMemory(TypedDict):
    """How memory that CPU and GPU share is managed."""

    mode: Annotated[
        Text | None, "CoherentGPUMemoryMode of the loaded driver; null where it tells none"
    ]
    nodes: Annotated[list[int], "NUMA nodes with memory and without a CPU"]


class Holder(TypedDict):
    """A process that has device nodes open."""

    pid: int
    user: Text
    command: str
    nodes: list[Path]
    unit: NotRequired[Annotated[Text | None, "the unit of the host's systemd that it belongs to"]]


class Driver(TypedDict):
    """The NVIDIA driver, loaded and on disk."""

    loaded: Annotated[Text | None, "the loaded module's version"]
    library: Annotated[Text | None, "libcuda's version, from its file name"]
    library_path: NotRequired[
        Annotated[Path | None, "the libcuda.so.1 that programs open; null where none opens"]
    ]
    cuda_version: Annotated[
        Text | None, "the newest CUDA that the driver supports (`cuDriverGetVersion`)"
    ]
    cuinit: Annotated[int | None, "the status of `cuInit`, 0 for success"]
    capabilities: NotRequired[
        Annotated[list[Text] | None, "the compute capability of each GPU that CUDA shows"]
    ]
    modules: Annotated[list[Text], "loaded modules named nvidia* or nouveau"]
    on_disk: Annotated[Text | None, "the module's version for the running kernel"]
    dkms: list[DkmsModule]
    blocked: NotRequired[list[BlockedModule]]
    nouveau: Nouveau
    of_container: NotRequired[Annotated[bool, "its programs are a container's, not the host's"]]
    persistence: Annotated[Unit, "the persistence daemon"]
    fabric: Annotated[FabricManager, "the fabric manager"]
    nvlsm: NotRequired[Annotated[SubnetManager, "the NVLink subnet manager"]]
    imex: NotRequired[Annotated[Imex, "IMEX, of racks with GB200 or GB300"]]
    coherent_memory: NotRequired[CoherentMemory]
    mig_boot: NotRequired[Annotated[MigBoot, "the unit that creates MIG instances at boot"]]
    holders: Annotated[list[Holder] | None, "null for everybody but root"]
    reboot_pending: Annotated[RestartMarker | None, "the marker of a pending restart"]


class Remap(TypedDict):
    """Remapped memory rows of a GPU."""

    pending: bool | None
    failure: bool | None
    correctable: int | None
    uncorrectable: int | None


class PcieLink(TypedDict):
    """The PCIe link of a GPU."""

    generation: int | None
    generation_max: int | None
    width: int | None
    width_max: int | None


class GpuProcess(TypedDict):
    """A process on a GPU."""

    pid: int
    name: str | None
    memory_mib: int | None


class SmiDevice(TypedDict):
    """A GPU as nvidia-smi shows it; a value that the GPU did not report is null, never 0."""

    index: int
    address: Annotated[Text, "the PCI address"]
    uuid: Annotated[Text | None, "such as GPU-..."]
    name: Annotated[Text | None, "such as NVIDIA H100 80GB HBM3"]
    memory_total_mib: int | None
    memory_used_mib: int | None
    memory_free_mib: int | None
    compute_capability: Annotated[Text | None, "such as 9.0"]
    persistence: Annotated[bool | None, "persistence mode"]
    compute_mode: Annotated[Text | None, "such as default or exclusive_process"]
    ecc: bool | None
    ecc_pending: Annotated[bool | None, "the mode after the next reset"]
    ecc_uncorrected_volatile: Annotated[int | None, "errors since the driver was loaded"]
    ecc_uncorrected_aggregate: Annotated[int | None, "errors in the GPU's lifetime"]
    retired_pending: Annotated[bool | None, "memory pages are retired with the next reset"]
    remap: Remap | None
    power_limit_w: float | None
    power_default_w: float | None
    power_max_w: float | None
    power_w: Annotated[float | None, "the power that it draws"]
    temperature_c: int | None
    temperature_slowdown_c: Annotated[int | None, "where its clocks are lowered"]
    throttle: Annotated[
        list[Text] | None,
        "why its clocks are lower than they could be: `idle`, `application-clocks`,"
        " `sw-power-cap`, `hw-slowdown`, `hw-thermal`, `hw-power-brake`, `sync-boost`,"
        " `sw-thermal`, `display-clocks`",
    ]
    clock_sm_mhz: int | None
    clock_sm_max_mhz: int | None
    pcie: PcieLink
    utilization_percent: int | None
    processes: list[GpuProcess]
    raw_unknown: Annotated[
        list[Text],
        "fields (such as pcie.width) that the GPU reports as not available, or that this driver"
        " does not print",
    ]
    unanswered: Annotated[
        list[Text],
        "those of them that it failed to answer, such as `temperature_c: [Unknown Error]`",
    ]
    elements: NotRequired[
        Annotated[
            dict[str, str],
            "the text of each element that nvidia-smi printed for it, such as"
            " `fabric/state: Completed`; a second one of a name ends in `[1]`",
        ]
    ]
    broken: NotRequired[
        Annotated[str | None, "why its part of the document could be read in part only"]
    ]


class Nvml(TypedDict):
    """The answers of NVML."""

    status: Annotated[
        int | None,
        "of `nvmlInit_v2` and the calls after it; 18: driver and library differ; null: no library",
    ]
    version: Text | None
    count: Annotated[int | None, "the number of GPUs"]
    confidential: NotRequired[
        Annotated[bool, "the GPUs compute confidentially; absent where NVML does not say it"]
    ]
    ready: NotRequired[
        Annotated[
            bool | None,
            "of GPUs that compute confidentially: they accept work, which is set after attestation;"
            " null where NVML does not say it",
        ]
    ]
    multi_gpu_mode: NotRequired[
        Annotated[
            int,
            "how several GPUs compute confidentially: 0 not together, 1 Protected PCIe, 2 encrypted"
            " NVLink; absent where NVML does not say it",
        ]
    ]


class Nvlink(TypedDict):
    """One NVLink of a GPU."""

    link: Annotated[int, "its number"]
    active: Annotated[bool | None, "null: NVML did not report its state"]
    status: Annotated[int, "of `nvmlDeviceGetNvLinkState`"]
    version: Annotated[int | None, "as NVML numbers it: 6 is NVLink 4.0, 7 is NVLink 5.0"]
    remote: Annotated[Literal["gpu", "cpu", "switch"] | None, "what is at its other end"]
    remote_address: Annotated[Text | None, "the PCI address of that"]


class GpuPeer(TypedDict):
    """Peer access between a GPU and another one, as `nvmlDeviceGetP2PStatus` numbers it."""

    index: Annotated[int, "NVML's index of the other one"]
    read: Annotated[int | None, "0: it works; null: NVML does not report it"]
    write: int | None
    nvlink: int | None


class GpuNvlinks(TypedDict):
    """The NVLinks of one GPU, as NVML reports them."""

    index: Annotated[int, "NVML's index"]
    address: Annotated[Text | None, "the PCI address"]
    mig: Annotated[bool | None, "MIG is on: NVML then reports links as inactive"]
    links: Annotated[
        list[Nvlink] | None, "empty: the GPU has no NVLink; null: the library cannot report them"
    ]
    errors: Annotated[
        dict[str, int], "error counters since the driver was loaded, added up over active links"
    ]
    effective_ber: NotRequired[
        Annotated[float | None, "the worst link's rate of bits that are wrong after correction"]
    ]
    peers: NotRequired[Annotated[list[GpuPeer], "of GPUs with NVLink and a higher index"]]


class SubnetManager(TypedDict):
    """The NVLink subnet manager (nvlsm), which HGX B200 and B300 need."""

    program: Annotated[Path | None, "the installed program"]
    running: Annotated[bool | None, "null where processes cannot be listed"]
    modules: NotRequired[Annotated[list[Text], "the loaded ones of mlx5_ib and ib_umad"]]


class Smi(TypedDict):
    """The reports of nvidia-smi and NVML."""

    asked: Annotated[bool, "false in mode `facts`: nothing was run"]
    program: Annotated[Path | None, "nvidia-smi's path"]
    status: Annotated[int | None, "the exit status of `nvidia-smi -q -x`"]
    error: str | None
    remarks: NotRequired[
        Annotated[str | None, "what it printed beside its document, though it ended with 0"]
    ]
    driver_version: Text | None
    cuda_version: Text | None
    nvml: Nvml
    nvlink: NotRequired[Annotated[list[GpuNvlinks] | None, "null where NVML could not be queried"]]
    devices: list[SmiDevice]
    attached: NotRequired[Annotated[int | None, "how many GPUs nvidia-smi says that there are"]]
    dtd: NotRequired[Annotated[int | None, "the version of its document type, 12 for v12"]]
    complete: NotRequired[Annotated[bool, "the document came to its end"]]
    error_string: NotRequired[Annotated[Text | None, "what stands in the place of the GPUs"]]
