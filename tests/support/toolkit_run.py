"""Run the workload on a toolkit and a driver of stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpufleet.probe import payload
from gpufleet.probe.constants import COMPUTE_MARK

Document = dict[str, Any]
SCRIPT = payload.workload()


def run(
    libraries: tuple[Path, Path], *more: str, python: str = sys.executable, **reported: str | int
) -> Document:
    """One run on the stand-ins, told by STAND_IN_... what they are to do."""
    toolkit, driver = libraries
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(driver)}
    environment |= {f"STAND_IN_{name.upper()}": str(value) for name, value in reported.items()}
    script = toolkit.parent / "matmul.py"
    script.write_text(SCRIPT, encoding="utf-8")
    ended = subprocess.run(
        [
            python,
            "-I",
            "-S",
            str(script),
            "--toolkit",
            str(toolkit),
            "--size",
            "48",
            "--fill",
            "192",
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
