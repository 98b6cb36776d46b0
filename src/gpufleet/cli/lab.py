"""`gpufleet lab ...`: the lab's own command line; and the default lab of `provision`."""

from __future__ import annotations

import sys

from gpufleet.errors import ConfigurationError

from .developer import run_module
from .system_packages import LAB, require


def run(args: list[str]) -> int:
    """Hand everything to `python -m lab`."""
    return run_module("lab", args, packages=LAB)


def start_lab() -> None:
    """Build and start the default lab; a `ConfigurationError` where that fails."""
    require(LAB)
    for act in ("artifacts", "up"):
        build(act)


def build(act: str) -> None:
    """Run one verb of the lab, its output on standard error."""
    if run_module("lab", [act], packages=LAB, output=sys.stderr):
        raise ConfigurationError(
            f"The lab could not be built: 'lab {act}' failed.", "", "See its output above."
        )
