"""The plan: what one host must have. Resolved from the inventory's variables, executed by roles.

A plan with problems is never acted on. What depends on the host is null until it was probed.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from gpufleet.frameworks import DEFAULT, UNNAMED, FrameworkId

from .pairs import PlannedMeeting
from .types import Path, Text


class ExpectedLink(TypedDict):
    """The least PCIe link of each GPU or adapter."""

    generation: int | None
    width: int | None


class PlannedPorts(TypedDict):
    """Declared network ports of one role; null: not declared, compared among each other."""

    ports: Annotated[list[Text], "names or patterns of RDMA devices or network interfaces"]
    role: Literal["compute", "storage", "management", "unused"]
    count: Annotated[int | None, "how many ports there must be; null: at least one by each name"]
    rate: Annotated[float | None, "the least rate of each port in Gb/s"]
    link_layer: Literal["InfiniBand", "Ethernet"] | None
    firmware: Text | None
    board: Annotated[Text | None, "the boards' id (PSID)"]
    gid_index: Annotated[int | None, "the entry of the GID table that programs use"]
    gid_type: Annotated[Literal["v1", "v2"] | None, "of RoCE"]
    lossless_priority: NotRequired[
        Annotated[int | None, "the priority of RoCE that has flow control and ECN"]
    ]
    pcie: NotRequired[ExpectedLink | None]


class ExpectedFabric(TypedDict):
    """Where the host's GPUs must be in an NVLink fabric; null: not declared."""

    rack: Annotated[Text | None, "its name; all hosts that declare it share one NVLink domain"]
    clique: Annotated[int | None, "in a rack that is partitioned"]


class ExpectedImex(TypedDict):
    """How IMEX must run; null: not declared."""

    nodes: Annotated[list[Text] | None, "the addresses of the rack's trays"]
    per_job: Annotated[bool, "a job's prolog writes the nodes and starts the service"]
    channels: Annotated[int | None, "the least number of channels"]


class RackPlace(TypedDict):
    """A place in an NVLink fabric, and how many hosts of a rack are there."""

    domain: Annotated[Text, "the UUID of the NVLink domain"]
    clique: Annotated[Text | None, "null: of hosts that declare theirs"]
    hosts: int


class ComparedSum(TypedDict):
    """A sum of random products, and how many GPUs of the hosts verified together have it.

    Only where they differ: see the section `compute` of a snapshot.
    """

    format: Annotated[Text, "such as bf16"]
    capability: Annotated[Text, "the GPUs' compute capability"]
    seed: int
    rounds: Annotated[int, "after which they differ"]
    sum: Annotated[Text, "16 hexadecimal digits"]
    gpus: int
    hosts: NotRequired[Annotated[int, "that have such a GPU"]]


class Expectation(TypedDict):
    """The GPUs that must be there; null: not declared, not judged."""

    count: Annotated[int | None, "0: the host is declared to have no GPU"]
    model: Text | None
    memory_mib: int | None
    uuids: Annotated[list[Text] | None, "of all GPUs, as `nvidia-smi -L` shows them"]
    power_limit_w: int | None
    ecc: Literal["on", "off"] | None
    compute_mode: Annotated[Text | None, "`default` or `exclusive_process`"]
    pcie: ExpectedLink | None
    nvlinks: NotRequired[Annotated[int | None, "the least number of active NVLinks of each GPU"]]
    fabric: NotRequired[ExpectedFabric | None]
    imex: NotRequired[ExpectedImex | None]
    memory_mode: NotRequired[
        Annotated[Text | None, "`driver` or `numa`: what manages memory that CPU and GPU share"]
    ]
    tflops: Annotated[float | None, "the least float32 throughput of each GPU"]
    tflops_because: Annotated[Text | None, "`gpu_expect.tflops`, or the model's floor"]
    bus_bandwidth_gb_s: NotRequired[
        Annotated[float | None, "the least bus bandwidth of a fabric test between hosts in GB/s"]
    ]
    governor: NotRequired[
        Annotated[Text | None, "the frequency governor of each CPU, such as `performance`"]
    ]
    modules: NotRequired[
        Annotated[list[Text] | None, "kernel modules of GPUDirect that must be loaded"]
    ]
    network: NotRequired[
        Annotated[
            list[PlannedPorts] | None,
            "the network ports, by role; empty: the host is declared to have none; null: roles are"
            " derived",
        ]
    ]
    found: NotRequired[
        Annotated[bool, "the count is that of the probe, not a declaration (`verify --local`)"]
    ]


class PlannedOs(TypedDict):
    """The host's distribution."""

    id: Text | None
    version_id: Text | None
    codename: str | None
    family: Annotated[Text | None, "debian or redhat; null: not supported for drivers"]


class PlannedSubnetManager(TypedDict):
    """The parts of the NVLink subnet manager, without which the fabric manager cannot start."""

    packages: Annotated[list[Text], "empty: the declared source does not have it"]
    modules: Annotated[list[Text], "kernel modules, loaded at boot"]


class PlannedDriver(TypedDict):
    """The driver. With `managed` false it is only checked."""

    minimum: Annotated[Text | None, "the least version that toolkits and stacks need"]
    because: Annotated[Text | None, "what needs it"]
    branch: Annotated[Text | None, "such as 535"]
    version: Annotated[Text | None, "an exact version: declared, or of a runfile"]
    source: Annotated[
        Literal["distro", "nvidia_repo", "runfile", "preinstalled"] | None,
        "null: the driver is not managed",
    ]
    managed: Annotated[bool, "gpufleet installs it"]
    module: Literal["open", "proprietary"] | None
    module_because: Text | None
    persistence: Annotated[bool, "the persistence daemon runs"]
    fabric_manager: Annotated[bool, "the GPUs are behind an NVSwitch"]
    subnet_manager: NotRequired[
        Annotated[
            PlannedSubnetManager | None,
            "null: no GPU is behind an NVSwitch that is an InfiniBand device (HGX B200 and B300)",
        ]
    ]
    mig: Annotated[
        dict[str, list[Text]] | None,
        "MIG profiles by GPU index, or of `all`; empty: MIG off; null: not declared",
    ]
    reboot: Annotated[Literal["auto", "never", "always"], "when the host may be rebooted"]


class PlannedRepository(TypedDict):
    """A package repository of the site."""

    uri: Text
    key: Annotated[Text, "the address of its signing key"]
    fingerprints: Annotated[list[Text], "of the key"]
    suite: Annotated[Text, "of apt"]
    components: Annotated[Text | None, "of apt"]


class PlannedNetwork(TypedDict):
    """The setup of the network adapters by `gpu_network`."""

    driver: Annotated[Literal["inbox", "doca"] | None, "null: not managed"]
    packages: Annotated[list[Text], "empty: nothing is installed"]
    repository: Annotated[PlannedRepository | None, "null: the packages are the distribution's"]
    modules: Annotated[list[Text], "kernel modules, loaded at boot in this order"]
    max_read_request: Annotated[int | None, "of each adapter, in bytes; null: not set"]
    acs_off: Annotated[bool, "access control of the PCI ports above is switched off"]
    adapters: Annotated[
        list[Text] | None,
        "the PCI addresses of the adapters with role compute; null: the host was not probed",
    ]


class PlannedContainers(TypedDict):
    """The container engine and NVIDIA's container toolkit."""

    engine: Literal["docker", "podman"]
    source: Literal["distro", "docker_repo"]
    toolkit: Annotated[
        Text | None,
        "the container toolkit's version; null: the newest where none is installed, else that one",
    ]
    accept_cves: NotRequired[Annotated[list[Text], "known vulnerabilities that are accepted"]]
    image: Annotated[Text | None, "an image with a framework to test in"]
    data_root: Annotated[Text | None, "where Docker keeps its data; null: its default"]
    gpus: Annotated[int | None, "how many GPUs are declared"]


class DriverLibrary(TypedDict):
    """The driver's library, for stacks that are linked against it on a host without a GPU."""

    soname: Annotated[Text, "libcuda.so.1"]
    because: Annotated[list[Text], "the stacks"]


class Artifact(TypedDict):
    """A file to download."""

    file: Text | None
    url: Text | None
    sha256: Text | None
    md5: Text | None
    checksum: Annotated[Text | None, "ALGORITHM:HEX, what the file is checked against"]
    size_bytes: int | None
    login_required: Annotated[bool, "NVIDIA gives it to registered users only"]


class CudnnArtifact(Artifact):
    """cuDNN's archive."""

    include_dir: Annotated[Text, "the headers' directory in the archive"]
    lib_dir: Annotated[Text, "the libraries' directory in the archive"]


class Patch(Artifact):
    """A patch of a toolkit."""

    version: Annotated[Text, "such as 8.0.61.2"]
    installer: Annotated[Text | None, "how it is installed"]


_For = TypedDict("_For", {"for": Annotated[Text, "such as toolkit 11.8"]})


class NeededArtifact(Artifact, _For):
    """A file to download, and what for."""


class PlannedToolkit(TypedDict):
    """A CUDA toolkit."""

    version: Annotated[Text, "such as 11.8.0"]
    short: Annotated[Text, "such as 11.8"]
    path: Annotated[Path, "such as /usr/local/cuda-11.8"]
    default: Annotated[bool, "/usr/local/cuda points to it"]
    registered: Annotated[bool, "its libraries are in the linker cache"]
    generation: Annotated[Text | None, "of its installer: `perl` or `cuda-installer`"]
    gcc_max: Annotated[int | None, "the newest major version of GCC that nvcc accepts"]
    sonames: Annotated[list[Text], "of its libraries"]
    artifact: Annotated[Artifact | None, "the runfile"]
    patches: Annotated[list[Patch], "in the order in which they are applied"]
    installed_mib: Annotated[int | None, "the space that it needs"]
    because: Annotated[list[Text], "what needs it"]
    sources: Annotated[list[Text], "where the facts come from"]
    found: NotRequired[Annotated[bool, "taken from the host by `verify --local`"]]


class PlannedCudnn(TypedDict):
    """cuDNN in one toolkit."""

    id: NotRequired[Annotated[Text, "such as 11.8-8"]]
    version: Annotated[Text, "such as 8.6.0.163"]
    short: Annotated[Text, "such as 8.6.0"]
    major: int
    soname: Annotated[Text, "such as libcudnn.so.8"]
    toolkit: Annotated[Text, "such as 11.8"]
    toolkit_path: Path
    default: Annotated[bool, "headers and unversioned links belong to it"]
    artifact: CudnnArtifact | None
    installed_mib: int | None
    because: list[Text]
    sources: list[Text]
    found: NotRequired[Annotated[bool, "taken from the host by `verify --local`"]]


CudaSource = Literal["toolkit", "pip", "bundled"]


class BuildVersions(TypedDict):
    """The versions that the framework was built with."""

    cuda: Text | None
    cudnn_major: int | None


class ComputeCapability(TypedDict):
    """GPU architectures that the framework has code for."""

    min: Text
    native: Annotated[list[Text], "machine code"]
    ptx: Annotated[list[Text], "compiled when it starts"]


class PlannedStack(TypedDict):
    """A framework in a virtual environment, bound to its own CUDA."""

    name: Annotated[Text, f"such as {DEFAULT.stack}"]
    framework: NotRequired[Annotated[FrameworkId, UNNAMED]]
    distribution: Annotated[Text, "the Python package"]
    version: Text
    python: Annotated[Text | None, "such as 3.11"]
    interpreter: Annotated[
        Path | None,
        "null until the host was probed, unless declared as a path, or where uv installs it",
    ]
    python_source: Annotated[Text | None, "`host`, `path` or `uv`"]
    venv: Path
    cuda: Annotated[Text, "such as 11.8"]
    cuda_source: Annotated[
        CudaSource,
        "a local toolkit, nvidia-* wheels in the environment, or the framework's own wheel,"
        " whose libraries it loads itself",
    ]
    toolkit_path: Path | None
    cudnn: Text | None
    sonames: Annotated[list[Text], "libraries that it loads, without libcuda.so.1"]
    sonames_optional: list[Text]
    requirements: Annotated[list[Text], "what the lock is made from"]
    index: NotRequired[
        Annotated[Text | None, "an extra package index for the requirements; null: none"]
    ]
    lock: Annotated[Text, "the lock's file name beside the inventory"]
    lock_sha256: Annotated[Text | None, "the lock's digest; null: there is no lock"]
    installer: Annotated[Literal["uv", "pip"], "`pip` for interpreters that uv does not support"]
    build: BuildVersions
    compute_capability: ComputeCapability
    driver_min: Annotated[Text, "the least driver that it needs"]
    environment: Annotated[dict[str, str], "variables that its activation sets"]
    activation: Annotated[Path, "what its `bin/activate` reads if it exists"]
    installed_mib: int | None
    sources: list[Text]


class Clash(TypedDict):
    """Two toolkits with libraries of the same soname; the loser is not registered."""

    winner: Text
    loser: Text
    sonames: list[Text]


class PlannedLinker(TypedDict):
    """The linker's configuration."""

    file: Annotated[Path, "in /etc/ld.so.conf.d"]
    directories: Annotated[list[Path], "in the order of the search"]
    clashes: list[Clash]


class PlannedLink(TypedDict):
    """The default toolkit's link."""

    path: Path
    target: Text


_Owner = TypedDict(
    "_Owner",
    {
        "for": Annotated[
            Text | None,
            "the toolkit or stack that it belongs to; null: removed with the last of them",
        ]
    },
)


class EnvironmentFile(_Owner):
    """A small file with its whole text."""

    path: Path
    text: str
    mode: Annotated[Text, "such as 0644"]


class ProblemEntry(TypedDict):
    """Why a declaration is refused."""

    code: Annotated[Text, "one of a fixed list, such as unknown-release"]
    message: str
    where: Annotated[str, f"the location in the variables, such as gpu_stacks[0].{DEFAULT.id}"]
    remedy: str
    file: NotRequired[Annotated[str, "where it is declared: the inventory's file and line"]]


class Plan(TypedDict):
    """The planned state of one host."""

    schema: Annotated[int, "1"]
    host: str
    arch: Annotated[Text, "x86_64"]
    expect: Expectation
    manifest: NotRequired[
        Annotated[
            dict[str, list[Text]] | None,
            "the permitted values of what the host consists of and how it is set; null: not"
            " declared",
        ]
    ]
    service_user: Annotated[Text | None, "the account that must be able to use the GPUs"]
    os: Annotated[PlannedOs | None, "null: the host was not probed"]
    driver: Annotated[PlannedDriver | None, "null: nothing is declared and nothing needs it"]
    network: NotRequired[Annotated[PlannedNetwork | None, "null: not declared"]]
    containers: Annotated[PlannedContainers | None, "null: not declared"]
    driver_library: DriverLibrary | None
    toolkits: list[PlannedToolkit]
    cudnn: list[PlannedCudnn]
    stacks: list[PlannedStack]
    linker: PlannedLinker
    default_link: PlannedLink | None
    adopt: Annotated[bool, "adopt what was installed by hand (gpu_cuda_adopt)"]
    prune: Annotated[bool, "remove what is no longer declared (gpu_prune)"]
    tmpdir: NotRequired[
        Annotated[str, "where installers run: gpu_tmpdir, or /var/tmp where /tmp is noexec"]
    ]
    environment: list[EnvironmentFile]
    artifacts: list[NeededArtifact]
    notes: Annotated[list[str], "what was assumed or could not be judged"]
    problems: list[ProblemEntry]
    rack: NotRequired[
        Annotated[list[RackPlace], "where the hosts of its rack are that were verified with it"]
    ]
    sums: NotRequired[
        Annotated[list[ComparedSum], "where its GPUs differ from those verified with it"]
    ]
    twins: NotRequired[
        Annotated[list[Text], "the hosts with its GPUs: one machine under several names"]
    ]
    claims: NotRequired[
        Annotated[list[Text], "the hosts that report its boot and GPUs, without a proof"]
    ]
    pairs: NotRequired[Annotated[list[PlannedMeeting], "with `verify --pair`"]]


Component = Literal[
    "driver",
    "toolkit",
    "cudnn",
    "driver_library",
    "network",
    "containers",
    "stack",
    "environment",
    "linker",
    "default_link",
]
Action = Literal[
    "install", "upgrade", "repair", "finish", "restart", "adopt", "remove", "refuse", "unread"
]


Step = Literal["links", "contents", "reinstall", "recreate"]


class PlanChange(TypedDict):
    """One thing that a host lacks, of a plan compared with a snapshot."""

    what: Component
    id: Annotated[str, "the receipt's id"]
    action: Annotated[
        Action,
        "`upgrade`: another driver is planned; `finish`: a run was stopped; `restart`: the"
        " installed driver does not run yet; `refuse`: something that gpufleet did not install is"
        " there; `remove`: installed and no longer declared, and `prune` is set; `unread`: what it"
        " has of this could not be read, so that nothing is done",
    ]
    because: str
    step: NotRequired[
        Annotated[
            Step,
            "of a repair: restore only links from the receipt; or, where a failing check demands"
            " it, compare every file with what is recorded of it, install over it, or move it aside"
            " and install as on a fresh host",
        ]
    ]


RestartAction = Literal["none", "reload", "reboot", "wait", "stuck"]


class Restart(TypedDict):
    """The action that makes the installed driver the one that runs."""

    action: RestartAction
    because: str
    remedy: str
