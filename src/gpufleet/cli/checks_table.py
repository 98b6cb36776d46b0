"""`gpufleet checks-table`: the checks as a Markdown table."""

from __future__ import annotations

import argparse
import sys

from gpufleet.judge import table

from .parser import Parser


def parser() -> Parser:
    """The options: none."""
    return Parser("checks-table", ("checks-table", "checks-table >checks.md"))


def run(_: argparse.Namespace, __: list[str]) -> int:
    """Print the table."""
    sys.stdout.write(table.markdown())
    return 0
