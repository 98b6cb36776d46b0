"""`gpufleet pack-pull FILE`: probe and judge as one file that hosts run."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpufleet.fleet.pull import pack

from .parser import Parser


def parser() -> Parser:
    """The options."""
    verb = Parser(
        "pack-pull", ("pack-pull gpufleet-pull.pyz", "pack-pull /tmp/pull.pyz"), usage="FILE"
    )
    verb.add_argument_group("Program").add_argument(
        "file", type=Path, metavar="FILE", help="Write this program"
    )
    return verb


def run(options: argparse.Namespace, _: list[str]) -> int:
    """Write the program; the exit status."""
    pack(options.file)
    return 0
