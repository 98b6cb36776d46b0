"""All checks, in the order in which a person wants to read them."""

from . import host, toolkit, cudnn, linker, environment  # noqa: I001 (their order)
from . import gpu, gpu_health, driver, driver_use, kernel, restart, stack, containers
from .registry import CHECKS, Check, Finding, Sections, Seen

__all__ = [
    "CHECKS",
    "Check",
    "Finding",
    "Sections",
    "Seen",
    "containers",
    "cudnn",
    "driver",
    "driver_use",
    "environment",
    "gpu",
    "gpu_health",
    "host",
    "kernel",
    "linker",
    "restart",
    "stack",
    "toolkit",
]
