"""What a person wants: the gpu_* variables in order (docs/documents.md, Wishes)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KEYS = (
    "gpu_stacks",
    "gpu_toolkits",
    "gpu_cuda_default",
    "gpu_cuda_adopt",
    "gpu_prune",
    "gpu_driver",
    "gpu_expect",
    "gpu_gpus",
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
PIP = "pip"  # `cuda: pip` in a stack: CUDA from pip wheels, no toolkit


@dataclass(frozen=True)
class StackWish:
    """One entry of gpu_stacks; `where` is its place in the wishes."""

    where: str
    tensorflow: str
    name: str
    cuda: str | None = None
    cudnn: str | None = None
    python: str | None = None  # a version, or the absolute path of an interpreter
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ToolkitWish:
    """One entry of gpu_toolkits, with the cuDNN it asks for, the default first."""

    where: str
    cuda: str
    cudnn: tuple[str, ...] = ()


@dataclass
class Wishes:
    """Everything a person asked for, in order. Directories are absolute and plain."""

    stacks: list[StackWish] = field(default_factory=list)
    toolkits: list[ToolkitWish] = field(default_factory=list)
    cuda_default: str | None = None
    adopt: bool = False
    prune: bool = False
    driver: dict[str, str] | None = None  # branch, source, module; each may be missing
    expect: dict[str, Any] = field(default_factory=dict)  # count, model, memory_mib
    gpus: list[str] = field(default_factory=list)
    prefix: str = "/usr/local"
    stack_root: str = "/opt/gpufleet/stacks"
    tmpdir: str = "/tmp"
    python_install: bool = False  # whether uv may bring interpreters that the host lacks
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)
    allow_md5: bool = False
    eula_accepted: bool = False
    environment: dict[str, str] = field(default_factory=dict)  # of all stacks
    profile: bool = False
    jupyter_kernels: bool = False

    @property
    def without_gpu(self) -> bool:
        """Whether the host is declared to have no GPU."""
        return self.expect.get("count") == 0
