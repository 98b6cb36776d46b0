"""All checks, in the order in which a person wants to read them."""

from . import host, toolkit, cudnn, linker, environment, gpu, driver, restart, stack, containers  # noqa: I001 (their order)
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
    "environment",
    "gpu",
    "host",
    "linker",
    "restart",
    "stack",
    "toolkit",
]
