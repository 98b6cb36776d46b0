"""Helpers of the verbs that need a checkout: `lab`, and the developers' verbs in tools/cli."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from gpufleet.campaign.provision.playbook import run
from gpufleet.errors import ConfigurationError
from gpufleet.paths import HAS_TOOLS, ROOT

from .system_packages import require

BIN = Path(sys.executable).parent


def require_checkout(verb: str) -> None:
    """Refuse a verb that an installed gpufleet does not have."""
    if not HAS_TOOLS:
        raise ConfigurationError(
            f"'gpufleet {verb}' needs a checkout of gpufleet; this one is installed as a package.",
            "",
            f"Run './gpufleet {verb}' in a checkout.",
        )


def run_module(
    name: str,
    args: Sequence[str],
    *,
    packages: Mapping[str, str] | None = None,
    output: IO[str] | None = None,
) -> int:
    """Run a package of the checkout (`python -m NAME`) in its root; the exit status."""
    require_checkout({"benchmarks": "bench"}.get(name, name.partition(".")[0]))
    require(packages or {})
    return run([sys.executable, "-m", name, *args], output, cwd=ROOT)
