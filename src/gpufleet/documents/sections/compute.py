"""The section of a snapshot about what each toolkit computes by itself, without a framework."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from gpufleet.documents.types import Hung, Path, Text

from .stacks import RUN_STATE, State


class ComputeDriver(TypedDict):
    """The driver as CUDA shows it."""

    cuinit: Annotated[int | None, "the status of `cuInit`, 0 for success"]
    cuinit_s: NotRequired[Annotated[float | None, "how long it took"]]
    version: Annotated[Text | None, "the newest CUDA that it supports"]
    error: str | None
    hung: NotRequired[Hung]


class LoadedLink(TypedDict):
    """A PCIe link, read by NVML while the GPU computes."""

    generation: int | None
    width: int | None
    generation_max: int | None
    width_max: int | None


class HostCopies(TypedDict):
    """Copies between a GPU and page-locked memory of the host."""

    to_device_gib_s: float | None
    from_device_gib_s: float | None


class ComputeDevice(TypedDict):
    """A GPU as CUDA shows it."""

    index: int
    uuid: Text | None
    address: Annotated[Text | None, "the PCI address"]
    name: Text | None
    compute_capability: Text | None
    memory_mib: int | None
    free_mib: int | None
    sm_count: int | None
    clock_mhz: int | None
    memory_clock_mhz: int | None
    memory_bus_bits: int | None
    l2_kib: int | None
    warp_size: int | None
    link: NotRequired[Annotated[LoadedLink | None, "its PCIe link under load"]]
    copies: NotRequired[Annotated[HostCopies | None, "the fastest of several copies"]]


class Busy(TypedDict):
    """Others hold so much of the GPU's memory that nothing was tried."""

    free_mib: int
    wanted_mib: int


class GpuResult(TypedDict):
    """The result of the computation on one GPU."""

    gpu: Annotated[int, "its index"]
    wrong: Annotated[int | None, "wrong rows, numbers or blocks; null where nothing was checked"]
    error: str | None
    hung: NotRequired[Hung]
    busy: Busy | None


class CublasResult(GpuResult):
    """A matrix product by cuBLAS."""

    n: Annotated[int | None, "the matrices' size"]
    first_s: float | None
    steady_s: float | None
    tflops: float | None
    checked: NotRequired[Annotated[int, "how many products were checked, each element of them"]]
    requested: NotRequired[Annotated[int, "how many products had to be checked at least"]]


class FormatResult(GpuResult):
    """Products in a number format, each element of each compared with the right one."""

    format: Annotated[Text, "such as bf16"]
    checked: Annotated[int, "how many products"]
    requested: NotRequired[Annotated[int, "how many had to be checked at least"]]
    not_applicable: Annotated[
        str | None, "why the GPU or this cuBLAS has no such products; null where both have"
    ]


class ConsensusResult(GpuResult):
    """Sums of random products in a number format, on which GPUs of one architecture agree."""

    format: Annotated[Text, "such as bf16"]
    seed: Annotated[int | None, "what the operands follow from: the day in UTC, since 1970"]
    sums: Annotated[list[Text], "after 1, 2, 4, 8 ... rounds, as 16 hexadecimal digits"]
    not_applicable: Annotated[
        str | None, "why the GPU or this NVRTC has no such products; null where both have"
    ]


class NvrtcRun(TypedDict):
    """Machine code that NVRTC compiled for one GPU, or PTX where the toolkit does not know it."""

    gpu: int
    arch: Text | None
    wrong: int | None
    error: str | None
    hung: NotRequired[Hung]


class Nvrtc(TypedDict):
    """A compilation that needs no GPU, and runs on each GPU."""

    version: Text | None
    arch: Annotated[Text | None, "such as sm_52"]
    ptx: bool
    error: str | None
    hung: NotRequired[Hung]
    ran: list[NvrtcRun]


class CudnnResult(GpuResult):
    """A convolution by cuDNN."""

    soname: Text | None
    version: Text | None


class BandwidthResult(GpuResult):
    """Memory bandwidth, bytes read and written; and whether memory keeps what is written."""

    gib_s: float | None
    filled_mib: NotRequired[
        Annotated[
            int | None,
            "how much of its free memory had two patterns written and compared; null: none",
        ]
    ]
    unfilled: NotRequired[
        Annotated[
            Literal["integrated", "programs", "in-use", "display", "virtual"] | None,
            "why none had: it is the host's memory; other programs compute on the GPU; NVML lists"
            " none, but more memory is in use than the workload's own; programs that draw need it;"
            " it is a virtual GPU whose programs NVML does not list",
        ]
    ]


_Peers = TypedDict(
    "_Peers", {"from": Annotated[int, "a GPU's index"], "to": Annotated[int, "another GPU's index"]}
)


class PeerResult(_Peers):
    """A copy from one GPU to another."""

    access: Annotated[bool | None, "one can address the other's memory"]
    gib_s: float | None
    wrong: int | None
    error: str | None
    hung: NotRequired[Hung]


class Sample(TypedDict):
    """One moment under load; a value that a sensor does not report is null."""

    at_s: Annotated[float, "after the start"]
    tflops: float | None
    temperature_c: int | None
    clock_sm_mhz: int | None
    power_w: float | None
    throttle: list[Text] | None
    wrong: NotRequired[Annotated[int, "how many products were wrong up to this moment"]]


class SustainedResult(GpuResult):
    """Minutes of load on one GPU."""

    n: int | None
    seconds: float | None
    requested_s: NotRequired[Annotated[float, "how long the load had to be"]]
    settled_s: Annotated[
        float | None,
        "time to cool down; null where the GPU stayed hot, or its temperature was not read",
    ]
    samples: list[Sample]
    checked: NotRequired[
        Annotated[
            int, "how many products were checked, each element of them; `wrong` counts products"
        ]
    ]


class DiskLoad(TypedDict):
    """A file that was written and read back in rounds, while all GPUs were loaded."""

    directory: Path
    mib: Annotated[int | None, "the size of the file"]
    rounds: int
    wrong: Annotated[int, "how many blocks of 4 MiB changed between writing and reading"]
    write_mib_s: float | None
    read_mib_s: float | None
    error: str | None


_Ends = TypedDict(
    "_Ends",
    {
        "from": Annotated[int | None, "a GPU's index; null: the host's memory"],
        "to": Annotated[int | None, "as `from`"],
    },
)


class LinkLoad(_Ends):
    """A direction in which blocks were copied, while all GPUs and links were loaded."""

    access: Annotated[
        bool | None,
        "one GPU can address the other's memory, else nothing is copied; null: with the host",
    ]
    gib: Annotated[float, "how much was copied"]
    gib_s: Annotated[float | None, "beside all other load"]
    checked: Annotated[int, "how many blocks were compared: the last one of each round"]
    wrong: Annotated[int, "how many of them changed on the way"]
    error: str | None


class ComputeRun(TypedDict):
    """The output of the workload with one toolkit's libraries; each part has its own process.

    Each list has an entry for each declared GPU, also for one that the driver does not show. Where
    no GPU is declared none is touched, and only `nvrtc` is judged.
    """

    toolkit: Annotated[Path, "the toolkit's path, or that of a stack with CUDA wheels"]
    state: Annotated[State, RUN_STATE]
    error: str | None
    driver: ComputeDriver | None
    devices: list[ComputeDevice]
    cublas: list[CublasResult]
    formats: NotRequired[
        Annotated[list[FormatResult], "products in other number formats than float32"]
    ]
    nvrtc: Nvrtc | None
    cudnn: list[CudnnResult]
    consensus: NotRequired[
        Annotated[
            list[ConsensusResult] | None,
            "of the newest toolkit; else null. `wrong` is 1 where a repetition has another sum",
        ]
    ]
    host_copies: NotRequired[
        Annotated[
            list[GpuResult] | None,
            "numbers that were copied to a GPU and back, of the newest toolkit; else null. Speed"
            " and"
            " link stand with the device",
        ]
    ]
    bandwidth: Annotated[
        list[BandwidthResult] | None, "with `--deep`, of the newest toolkit; else null"
    ]
    peer: Annotated[list[PeerResult] | None, "as `bandwidth`"]
    sustained: Annotated[list[SustainedResult] | None, "as `bandwidth`"]
    disk: NotRequired[Annotated[DiskLoad | None, "in a burn-in; else null"]]
    fabric: NotRequired[Annotated[list[LinkLoad] | None, "in a burn-in; else null"]]
    mapped: Annotated[list[Text], "real paths of the CUDA libraries in the process"]
    seconds: float | None


class Compute(TypedDict):
    """The computations with each toolkit by itself."""

    deep: Annotated[bool, "`--deep` was given"]
    runs: Annotated[list[ComputeRun], "oldest toolkit first; empty in mode `facts`"]
