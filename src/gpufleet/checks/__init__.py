"""All checks: every module below is imported, and registers its checks.

`READING_ORDER` is the order in which a person reads them. The checks of a module that it does not
name come last.
"""

from importlib import import_module
from pkgutil import walk_packages

from .base.registry import CHECKS, PAIR_CHECKS, Check, Evidence, Finding
from .base.sections import Sections

READING_ORDER = (
    "host.host",
    "host.booted",
    "host.shared_files",
    "host.contents",
    "cuda.toolkit",
    "cuda.cudnn",
    "cuda.linker",
    "cuda.environment",
    "gpu.identity",
    "gpu.listed",
    "gpu.health",
    "gpu.links",
    "gpu.nvlink",
    "gpu.rack",
    "network.ports",
    "network.errors",
    "network.settings",
    "network.lossless",
    "network.gpudirect",
    "driver.installed",
    "driver.use",
    "gpu.kernel_log",
    "driver.restart",
    "compute.toolkits",
    "compute.exactness",
    "compute.consensus",
    "compute.speed",
    "gpu.after_load",
    "stack.installed",
    "stack.run",
    "stack.products",
    "stack.gpus",
    "stack.tensorflow_tests",
    "stack.programs",
)

for _name in READING_ORDER:
    import_module(f"{__name__}.{_name}")
for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)

__all__ = ["CHECKS", "PAIR_CHECKS", "Check", "Evidence", "Finding", "Sections"]
