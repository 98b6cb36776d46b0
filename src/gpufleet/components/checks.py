"""All checks: every module below is imported, and registers its checks.

`READING_ORDER` is the order in which a person reads them. The checks of a module that it does not
name come last.
"""

from importlib import import_module
from pkgutil import walk_packages

from gpufleet import components

from .base.registry import CHECKS, PAIR_CHECKS, Check, Evidence, Finding
from .base.sections import Sections

READING_ORDER = (
    "host.host",
    "host.booted",
    "host.shared_files",
    "host.contents",
    "cuda.toolkit_checks",
    "cuda.cudnn_checks",
    "cuda.linker_checks",
    "stacks.environment_checks",
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
    "driver.installed_checks",
    "driver.use_checks",
    "gpu.kernel_log",
    "driver.restart_checks",
    "compute.toolkits",
    "compute.exactness",
    "compute.consensus",
    "compute.speed",
    "gpu.after_load",
    "stacks.installed",
    "stacks.run",
    "stacks.products",
    "stacks.gpus",
    "stacks.tensorflow_tests",
    "stacks.programs",
    "containers.checks",
    "containers.toolkit_checks",
    "driver.grace_checks",
    "gpu.peer_access",
    "host.governor",
    "host.manifest",
    "host.nvme",
    "driver.repository_checks",
    "network.setup",
    "compute.pair_checks",
)

for _name in READING_ORDER:
    import_module(f"{components.__name__}.{_name}")
for _module in walk_packages(components.__path__, f"{components.__name__}."):
    import_module(_module.name)

__all__ = ["CHECKS", "PAIR_CHECKS", "Check", "Evidence", "Finding", "Sections"]
