"""`gpufleet catalogue`: the checks as a Markdown table."""

from __future__ import annotations

import argparse
import sys

from gpufleet.checks import catalogue

from .parser import Parser


def parser() -> Parser:
    """The options: none."""
    return Parser("catalogue", ("catalogue", "catalogue >checks.md"))


def run(_: argparse.Namespace, __: list[str]) -> int:
    """Print the table."""
    sys.stdout.write(catalogue.markdown())
    return 0
