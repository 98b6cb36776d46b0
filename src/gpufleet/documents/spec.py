"""The spec: what a host's gpu_* variables declare (docs/reference/variables.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpufleet.frameworks import FRAMEWORKS, FrameworkId

from .problems import Problem

# The short forms of one more stack, each with its framework.
SHORT_FORMS = {each.variable: each.id for each in FRAMEWORKS.values() if each.variable}
KEYS = (
    *SHORT_FORMS,
    "gpu_stacks",
    "gpu_toolkits",
    "gpu_cuda_default",
    "gpu_cuda_adopt",
    "gpu_prune",
    "gpu_driver",
    "gpu_driver_reboot",
    "gpu_mig",
    "gpu_arch",
    "gpu_network",
    "gpu_containers",
    "gpu_expect",
    "gpu_manifest",
    "gpu_gpus",
    "gpu_pair_address",
    "gpu_nccl_dir",
    "gpu_node_name",
    "gpu_scheduler_host",
    "gpu_srun_options",
    "gpu_service_user",
    "gpu_prefix",
    "gpu_stack_root",
    "gpu_stack_environment",
    "gpu_profile",
    "gpu_jupyter_kernels",
    "gpu_tmpdir",
    "gpu_python_install",
    "gpu_artifacts",
    "gpu_artifacts_source",
    "gpu_wheelhouse",
    "gpu_allow_md5",
    "gpu_accept_nvidia_eula",
)
MODULES = ("open", "proprietary")  # the two kinds of the driver's kernel modules
ALL_GPUS = "all"  # in gpu_mig: every GPU of the host
PREINSTALLED = "preinstalled"  # the source of a driver that gpufleet does not install
PIP = "pip"  # `cuda: pip` in a stack: CUDA from pip wheels, no toolkit
LOCAL = "local"  # `cuda: local` in a stack: CUDA from an installed toolkit


# Facts that roles set while they run, and options of a run: no part of a declaration.
_NO_DECLARATION = ("gpu_plan", "gpu_changes", "gpu_plan_requires", "gpu_plan_done")


def declares(name: str) -> bool:
    """Return whether a variable is part of a host's declaration."""
    return (name.startswith("gpu_") or name in SHORT_FORMS) and name not in _NO_DECLARATION


@dataclass(frozen=True)
class StackSpec:
    """One entry of gpu_stacks; `where` is its location in the variables."""

    where: str
    framework: FrameworkId
    release: str
    name: str
    cuda: str | None = None
    cudnn: str | None = None
    python: str | None = None  # a version, or the absolute path of an interpreter
    environment: dict[str, str] = field(default_factory=dict)
    index: str | None = None  # the address of an extra package index

    @property
    def interpreter(self) -> str | None:
        """The interpreter's path, where `python` names one."""
        return self.python if self.python and self.python.startswith("/") else None

    @property
    def python_version(self) -> str | None:
        """The declared Python as X.Y: of `3.11.2`, or of `/opt/python/3.6/bin/python3.6`."""
        parts = (self.python or "").rpartition("/python")[2].split(".")
        return ".".join(parts[:2]) if self.python else None


@dataclass(frozen=True)
class ToolkitSpec:
    """One entry of gpu_toolkits, with its cuDNN, the default first."""

    where: str
    cuda: str
    cudnn: tuple[str, ...] = ()


@dataclass(frozen=True)
class DriverSpec:
    """gpu_driver: `version` is exact, and then `branch` is its branch; None: gpufleet decides."""

    branch: str | None = None
    version: str | None = None
    source: str = "distro"
    module: str | None = None
    persistence: bool = True

    @property
    def managed(self) -> bool:
        """True if gpufleet installs the driver; a preinstalled one is only checked."""
        return self.source != PREINSTALLED

    @property
    def requested(self) -> str | None:
        """The branch or the exact version, as declared."""
        return self.version or self.branch


@dataclass(frozen=True)
class ContainersSpec:
    """gpu_containers; None: the engine's default, or the newest."""

    engine: str = "docker"
    source: str = "distro"
    toolkit: str | None = None
    image: str | None = None
    data_root: str | None = None
    accept_cves: tuple[str, ...] = ()  # known vulnerabilities of the toolkit


@dataclass(frozen=True)
class RepositorySpec:
    """A package repository of the site: addresses without a login, and its key's fingerprints."""

    uri: str
    key: str
    fingerprints: tuple[str, ...]
    suite: str = "./"
    components: str | None = None


@dataclass(frozen=True)
class NetworkSpec:
    """gpu_network; None and False: not managed."""

    driver: str | None = None
    repository: RepositorySpec | None = None
    peermem: bool = False
    max_read_request: int | None = None  # in bytes
    acs_off: bool = False


@dataclass
class Spec:
    """Everything that a host's variables declare. Directories are absolute."""

    stacks: list[StackSpec] = field(default_factory=list)
    toolkits: list[ToolkitSpec] = field(default_factory=list)
    cuda_default: str | None = None
    adopt: bool = False
    prune: bool = False
    driver: DriverSpec | None = None  # None: not managed
    driver_reboot: str = "auto"
    mig: dict[str, list[str]] | None = None  # profiles by GPU index, or of "all"
    network: NetworkSpec | None = None
    containers: ContainersSpec | None = None
    expect: dict[str, Any] = field(default_factory=dict)  # spec.expectation
    manifest: dict[str, list[str]] = field(default_factory=dict)  # the permitted values by name
    gpus: list[str] = field(default_factory=list)
    arch: str | None = None  # as uname -m prints it; None: the probed one
    service_user: str | None = None
    prefix: str = "/usr/local"
    stack_root: str = "/opt/gpufleet/stacks"
    tmpdir: str = "/tmp"
    python_install: bool = False  # whether uv may install interpreters that the host lacks
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)
    allow_md5: bool = False
    eula_accepted: bool = False
    environment: dict[str, str] = field(default_factory=dict)  # of all stacks
    profile: bool = False
    jupyter_kernels: bool = False

    @property
    def without_gpu(self) -> bool:
        """True if the host is declared to have no GPU."""
        return self.expect.get("count") == 0


@dataclass(frozen=True)
class Declaration:
    """A host's declaration by its variables: the spec, and the problems of parts left out of it.

    Nothing changes a declaration: it is parsed once, and everything that concerns the host reads
    the same one.
    """

    spec: Spec
    problems: tuple[Problem, ...] = ()
