"""Sections of a snapshot about frameworks: stacks, and containers."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from gpufleet.documents.types import UNCHECKED, Hung, Path, Text
from gpufleet.frameworks import UNNAMED, FrameworkId

from .cuda import ClosedPath, ExposedFile

State = Literal["ok", "failed", "hung"]
RUN_STATE = "`ok`: ran to its end; `failed`: `error` is the reason; `hung`: gave no answer"


class FrameworkBuild(TypedDict):
    """The framework's report on its own build."""

    cuda: str | int | float | None
    cudnn: str | int | float | None
    cuda_build: Annotated[bool, "it was built with CUDA"]
    compute_capabilities: NotRequired[list[Text] | None]


class FailedLibrary(TypedDict):
    """A library that could not be loaded."""

    library: Text
    error: str | None


class Loader(TypedDict):
    """The CUDA libraries that the framework opened while it ran."""

    ran: bool
    opened: list[Text]
    failed: list[FailedLibrary]


class Product(TypedDict):
    """A matrix product on one device."""

    requested: Annotated[Text, "the device that was requested, such as /GPU:0"]
    device: Annotated[str | None, "the device that computed it"]
    n: Annotated[int | None, "the matrices' size"]
    wrong: Annotated[int | None, "wrong rows; null where nothing was checked"]
    first_s: Annotated[float | None, "time of the first product"]
    steady_s: Annotated[float | None, "time of a later product"]
    tflops: float | None
    error: str | None
    precision: NotRequired[Annotated[Text, "without it: float32"]]
    not_applicable: NotRequired[
        Annotated[str | None, "why the framework has no product of this precision on this device"]
    ]


class TowerSum(TypedDict):
    """A sum of products over all devices."""

    devices: list[Text]
    wrong: int | None
    error: str | None


class Convolution(TypedDict):
    """A convolution on one device."""

    requested: Text
    device: Annotated[str | None, "the device that computed it"]
    wrong: Annotated[int | None, "wrong numbers; null where nothing was checked"]
    error: str | None


class Exchange(TypedDict):
    """Arrays from numpy to the framework and back."""

    version: Annotated[Text, "of numpy"]
    error: str | None


class Workers(TypedDict):
    """A data set, loaded by worker processes through /dev/shm."""

    workers: int
    wrong: Annotated[int | None, "wrong batches"]
    error: str | None


class Compiled(TypedDict):
    """A function, compiled by `torch.compile`."""

    device: str | None
    wrong: Annotated[int | None, "wrong numbers"]
    lacks: Annotated[str | None, "what the host does not have, so that nothing was compiled"]
    error: str | None
    hung: NotRequired[Hung]
    seconds: float | None


class Hello(TypedDict):
    """The value of a constant, and the device that it was on."""

    value: str | None
    device: str | None


class LocalDevice(TypedDict):
    """A device as the framework lists it."""

    name: Text
    type: Text
    memory_mib: int | None
    description: str | None


class SmallChecks(TypedDict):
    """Small checks of the framework."""

    hello: Hello | None
    local_devices: list[LocalDevice] | None
    gpu_device_name: str | None
    placement: Annotated[list[Text] | None, "where the log of device placement shows a product"]
    built_with_cuda: bool | None
    errors: Annotated[dict[str, str], "by check: why it failed"]


class Framework(TypedDict):
    """The output of the workload, run by `env -i VENV/bin/python`."""

    framework: NotRequired[Annotated[FrameworkId | None, f"which one ran; {UNNAMED}"]]
    state: Annotated[State, RUN_STATE]
    error: str | None
    version: Text | None
    build: FrameworkBuild | None
    loader: Loader | None
    devices: list[Text]
    matmul: list[Product]
    tower_sum: TowerSum | None
    mapped: Annotated[
        list[Text],
        "real paths in /proc/self/maps, after import and products, with CUDA's or cuDNN's names",
    ]
    strangers: Annotated[
        list[Text],
        "other code in the process that is neither the environment's, nor its Python's, nor the"
        " system's",
    ]
    small: SmallChecks | None
    capabilities: Annotated[
        list[Text], "the compute capability of each GPU as the framework names it"
    ]
    said: Annotated[
        list[Text], "log lines with the reason why a GPU is left out or its code compiled again"
    ]
    no_gpu: NotRequired[Annotated[str | None, "why it uses no GPU, as the framework says itself"]]
    versions: NotRequired[
        Annotated[dict[str, str | None], "what its libraries answer for themselves"]
    ]
    numpy: NotRequired[Exchange]
    convolution: NotRequired[list[Convolution]]
    routines: NotRequired[
        Annotated[
            dict[str, str | None],
            "`fft` and `solve`, on the first device: null, or why there is no right result",
        ]
    ]
    workers: NotRequired[Workers]
    compile: NotRequired[Annotated[Compiled | None, "null: the release cannot compile one"]]
    seconds: NotRequired[Annotated[dict[str, float | None], "`import` and `total`", UNCHECKED]]
    jit_cache: NotRequired[
        Annotated[Path, "where the driver keeps the code that it compiled for this stack"]
    ]
    compiled: NotRequired[
        Annotated[bool, "the driver had to compile its code for a GPU, and had not before"]
    ]


class StackStart(TypedDict):
    """How the stack's interpreter starts."""

    python: Annotated[Text | None, "its version"]
    prefix: Text | None
    strange: Annotated[list[Text], "directories that it searches before its own"]
    error: str | None
    hung: NotRequired[Hung]
    sets: NotRequired[
        Annotated[
            dict[str, str],
            "variables that steer libraries, modules or GPUs, and that it sets itself",
        ]
    ]
    customized: NotRequired[
        Annotated[list[Text], "the sitecustomize and usercustomize that it ran"]
    ]


class StackBinding(TypedDict):
    """The result of opening each library that the stack is bound to, with all its symbols."""

    error: str | None
    hung: NotRequired[Hung]
    ordinary: NotRequired[Annotated[str | None, "the same for an ordinary account"]]


class InstalledStack(TypedDict):
    """A stack on the host."""

    name: Text
    venv: Path
    python: Annotated[Text | None, "the interpreter's version"]
    packages: Annotated[dict[str, Text], "version by name"]
    bound_to: Annotated[Path | None, "the directory of the libraries that it is bound to"]
    runs: NotRequired[
        Annotated[FrameworkId, "the framework that it is for: as declared, else by its packages"]
    ]
    start: StackStart | None
    hooks: Annotated[list[Text], "files that run at every start and that belong to no package"]
    binding: Annotated[StackBinding | None, "null in mode `facts`"]
    receipt: Annotated[bool, "gpufleet has a receipt for it"]
    framework: Annotated[Framework | None, "null in mode `facts`"]
    realpath: Path
    closed: list[ClosedPath]
    exposed: NotRequired[Annotated[list[ExposedFile], "who can change it, where it has no receipt"]]


class Stacks(TypedDict):
    """The stacks on the host."""

    stacks: list[InstalledStack]
    occupied: Annotated[list[Path], "everything at a stack's path"]


class Engine(TypedDict):
    """The declared container engine, as it describes itself."""

    name: Text
    path: Path
    version: Text | None
    runtimes: list[Text]
    live_restore: bool | None
    cgroup_driver: Text | None
    storage: Text | None
    security: NotRequired[
        Annotated[
            list[Text],
            "what it confines containers with, such as `selinux`, `apparmor`, `userns`, `rootless`",
        ]
    ]
    error: str | None


class Daemon(TypedDict):
    """/etc/docker/daemon.json."""

    path: Path
    exists: bool
    error: str | None
    runtimes: Annotated[dict[str, Text | None], "program by name"]
    live_restore: bool | None
    cdi: bool | None
    data_root: Text | None


class ContainerToolkit(TypedDict):
    """The NVIDIA container toolkit."""

    version: Text | None
    held: bool
    candidate: NotRequired[
        Annotated[Text | None, "the newest version that the repositories offer; null: not read"]
    ]


class ToolkitConfiguration(TypedDict):
    """/etc/nvidia-container-runtime/config.toml, as far as it decides how containers get GPUs."""

    path: Path
    mode: Annotated[Text | None, "of the runtime; null: not set"]
    no_cgroups: Annotated[bool | None, "true: no container is allowed its devices; null: not set"]


class CdiSpecification(TypedDict):
    """One of NVIDIA's CDI specifications."""

    path: Path
    driver_version: Text | None
    devices: list[Text]
    mig_nodes: NotRequired[
        Annotated[list[int], "N of each /dev/nvidia-caps/nvidia-capN that it names"]
    ]
    error: str | None


class RootlessEngine(TypedDict):
    """A container engine of an account, which only this account can ask."""

    engine: Text
    account: Text


class DevChar(TypedDict):
    """Links in /dev/char for NVIDIA's device nodes."""

    missing: Annotated[list[Text], "such as /dev/char/195:0"]


class ContainerNode(TypedDict):
    """A device node in a container."""

    node: Text
    error: Annotated[str | None, "why it cannot be opened"]
    code: NotRequired[Annotated[Text | None, "the error's name, such as EACCES"]]


class ContainerStart(TypedDict):
    """A container that was started in one of the ways in which people start theirs."""

    by: Annotated[Text, "such as docker run --gpus all"]
    state: Annotated[State, RUN_STATE]
    error: str | None
    gpus: list[ContainerNode]


class UnitNode(TypedDict):
    """A device node in a running container."""

    node: Text
    numbers: Annotated[Text, "major and minor, such as 195:0"]


class ContainerUnit(TypedDict):
    """A running container that has GPUs, and the device rules that systemd has for it."""

    unit: Annotated[Text, "such as docker-ID.scope"]
    name: Annotated[Text | None, "the engine's name for it"]
    policy: Annotated[Text | None, "DevicePolicy"]
    allow: Annotated[list[Text], "DeviceAllow: what systemd allows again when it reloads"]
    nodes: list[UnitNode]


class Reload(TypedDict):
    """The same after `systemctl daemon-reload`; of earlier releases, which ran one."""

    error: str | None
    gpus: list[ContainerNode]


class Image(TypedDict):
    """The declared image."""

    name: Text
    present: bool
    framework: Framework | None


class ContainerRun(TypedDict):
    """The observations of a container that the probe itself started."""

    state: Annotated[State, RUN_STATE]
    error: str | None
    gpus: list[ContainerNode]
    reload: Annotated[Reload | None, "null: no probe reloads systemd any longer"]
    unit: NotRequired[
        Annotated[ContainerUnit | None, "null where it has no GPU, or systemd has no unit for it"]
    ]
    starts: NotRequired[
        Annotated[list[ContainerStart], "containers with all GPUs; none where the host has no GPU"]
    ]
    stack: Annotated[Text | None, "the stack that was run in it"]
    framework: Framework | None
    image: Image | None


class Containers(TypedDict):
    """The container engine and NVIDIA's container toolkit."""

    engine: Annotated[Engine | None, "null where it is not installed or none is declared"]
    daemon: Daemon
    toolkit: ContainerToolkit | None
    configuration: NotRequired[
        Annotated[ToolkitConfiguration | None, "the toolkit's; null: there is no file"]
    ]
    cdi: list[CdiSpecification]
    mig_capabilities: NotRequired[
        Annotated[
            dict[str, int] | None,
            "the driver's capabilities for MIG, such as gpu0/mig/gi1/access: 12; null: not known",
        ]
    ]
    dev_char: DevChar
    wrapper: Annotated[Path | None, "where `nvidia-docker` is"]
    run: Annotated[ContainerRun | None, "null in mode `facts`"]
    running: NotRequired[
        Annotated[
            list[ContainerUnit] | None,
            "other people's running containers that have GPUs; null where systemd was not asked",
        ]
    ]
    majors: NotRequired[
        Annotated[
            dict[str, int], "the major numbers of NVIDIA's character devices, by the kernel's name"
        ]
    ]
    rootless: NotRequired[
        Annotated[list[RootlessEngine], "engines of other accounts than root, which nobody asked"]
    ]
