"""`python -m gpufleet pack-pull FILE`: the probe and the judge as one file that hosts run."""

from __future__ import annotations

import sys
from pathlib import Path

from gpufleet.verification.pull import pack


def main(words: list[str]) -> int:
    """Write the file; its exit status."""
    if len(words) != 1:
        sys.stderr.write("usage: gpufleet pack-pull FILE\n")
        return 4
    pack(Path(words[0]))
    return 0
