"""Run the workload on a toolkit and a driver of stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpufleet.on_host import payload
from gpufleet.on_host.constants import COMPUTE_MARK

Document = dict[str, Any]
SCRIPT = payload.workload()
# How many times faster the clock of a run on stand-ins is: seconds of load are fractions of one.
SPEED = 20
# The memory that a deep run fills, in blocks of BLOCK_MIB.
BLOCK_MIB, FILL_MIB = 8, 24
# A run on stand-ins computes for less time, and with less memory, than one on GPUs.
SMALLER = f"""
import time
from gpufleet.workload import copies, disk, host_copies, memory

def hasten(monotonic, sleep):
    began = monotonic()
    time.monotonic = lambda: began + {SPEED} * (monotonic() - began)
    time.sleep = lambda seconds: sleep(seconds / {SPEED} if seconds >= 1 else seconds)

hasten(time.monotonic, time.sleep)
# 256 blocks of this are copied within the memory.
copies.MIB, copies.PART, copies.PAIR_LENGTH = 1 << 17, 2 << 20, 2 << 20
host_copies.LENGTH, memory.BLOCK, disk.MOST_BLOCKS = 4 << 20, {BLOCK_MIB} << 20, 2

main()
"""
# The workload's script without its packing: its modules are compiled once.
UNPACKED = f"""
import sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[2] / "src")!r})
from gpufleet.workload.command import main
{SMALLER}"""


def run(
    libraries: tuple[Path, Path], *more: str, python: str | None = None, **reported: str | int
) -> Document:
    """One run on the stand-ins, told by STAND_IN_... what they are to do.

    Its seconds, `--deadline` included, are those of the faster clock. Another `python` runs the
    script as it travels.
    """
    toolkit, driver = libraries
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(driver)}
    environment |= {"STAND_IN_BLOCK_MIB": str(BLOCK_MIB)}
    environment |= {f"STAND_IN_{name.upper()}": str(value) for name, value in reported.items()}
    script = toolkit.parent / "matmul.py"
    packed = SCRIPT.partition("\nmain(")[0] + SMALLER
    script.write_text(packed if python else UNPACKED, encoding="utf-8")
    ended = subprocess.run(
        [
            python or sys.executable,
            "-I",
            "-S",
            str(script),
            "--toolkit",
            str(toolkit),
            "--size",
            "48",
            "--fill",
            str(FILL_MIB),
            "--deadline",
            str(60 * SPEED),
            *more,
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    last = ended.stdout.splitlines()[-1]
    found: Document = json.loads(last.removeprefix(COMPUTE_MARK))
    return found


def run_stage(
    libraries: tuple[Path, Path], name: str, *more: str, gpus: int = 2, **reported: str | int
) -> list[Document]:
    """The entries of one stage, on all GPUs, without those before it."""
    addresses = ",".join(f"0000:{gpu:02x}:00.0" for gpu in range(gpus))
    found = run(
        libraries,
        "--stage",
        name,
        "--gpus",
        str(gpus),
        "--places",
        addresses,
        *more,
        gpus=gpus,
        **reported,
    )
    entries: list[Document] = found[name]
    return entries
