"""A stand-in of NCCL and of the CUDA runtime that compute on the processor, over TCP.

`build` makes the directory that `gpu_nccl_dir` names on a host without a GPU. nccl.c says how it
differs from NCCL, and which faults its file `faults` plants.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCES = Path(__file__).parent
LIBRARIES = {"libnccl.so.2": "nccl.c", "libcudart.so.12": "cudart.c"}


def build(directory: Path) -> Path:
    """Compile both libraries into `directory`/lib64; returns `directory`."""
    (directory / "lib64").mkdir(parents=True, exist_ok=True)
    for soname, source in LIBRARIES.items():
        subprocess.run(
            [
                "gcc",
                *("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"),
                f"-Wl,-soname,{soname}",
                SOURCES / source,
                *("-o", directory / "lib64" / soname),
                *("-lpthread", "-ldl"),
            ],
            check=True,
        )
    return directory
