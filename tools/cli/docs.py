"""`gpufleet docs ...`: the command line of docs/generate.py."""

from __future__ import annotations

from gpufleet.cli.developer import run_module


def run(args: list[str]) -> int:
    """Hand everything to `python -m docs.generate`."""
    return run_module("docs.generate", args)
