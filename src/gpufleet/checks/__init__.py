"""All checks, in the order in which a person wants to read them."""

from . import host, temporary, contents  # noqa: I001 (their order)
from . import toolkit, cudnn, linker, environment
from . import gpu, gpu_health, links, driver, driver_use, kernel, restart
from . import compute, exactness, speed, after_load, stack, stack_run, stack_gpu, hello
from . import stack_programs, containers, pair
from .registry import CHECKS, PAIR_CHECKS, Check, Finding, Evidence
from .sections import Sections

__all__ = [
    "CHECKS",
    "PAIR_CHECKS",
    "Check",
    "Evidence",
    "Finding",
    "Sections",
    "after_load",
    "compute",
    "containers",
    "contents",
    "cudnn",
    "driver",
    "driver_use",
    "environment",
    "exactness",
    "gpu",
    "gpu_health",
    "hello",
    "host",
    "kernel",
    "linker",
    "links",
    "pair",
    "restart",
    "speed",
    "stack",
    "stack_gpu", "stack_programs", "stack_run",
    "temporary",
    "toolkit",
]
