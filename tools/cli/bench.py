"""`gpufleet bench ...`: the command line of benchmarks/."""

from __future__ import annotations

from gpufleet.cli.developer import run_module
from gpufleet.cli.system_packages import LAB


def run(args: list[str]) -> int:
    """Hand everything to `python -m benchmarks`."""
    return run_module("benchmarks", args, packages=LAB)
