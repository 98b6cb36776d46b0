"""Stand-ins for NVIDIA's libraries that compute on the processor, built by gcc from gpu.c.

They let every path of `matmul.py --toolkit` be run on a machine without a GPU, and are told by
the environment to be wrong, to crash or to hang.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("gpu.c")
TOOLKIT = {
    "cudart": "libcudart.so.12",
    "cublas": "libcublas.so.12",
    "cublasLt": "libcublasLt.so.12",
    "nvrtc": "libnvrtc.so.12",
    "cudnn": "libcudnn.so.8",
}
DRIVER = {"cuda": "libcuda.so.1", "nvml": "libnvidia-ml.so.1"}


def build(home: Path) -> tuple[Path, Path]:
    """The toolkit and the directory of the driver's libraries, both below `home`."""
    toolkit, driver = home / "cuda-12.2", home / "driver"
    compiled(toolkit / "lib64", TOOLKIT)
    compiled(driver, DRIVER)
    return toolkit, driver


def compiled(directory: Path, names: dict[str, str], reported: str = "") -> None:
    """These libraries in a new directory; `told` is one setting where the environment is empty."""
    directory.mkdir(parents=True)
    for part, soname in names.items():
        subprocess.run(
            [
                "gcc",
                "-O2",
                "-std=gnu11",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-Wno-unused",
                "-shared",
                "-fPIC",
                f'-DTOLD="{reported}"',
                f"-DLIBRARY_{part}",
                f"-Wl,-soname,{soname}",
                str(SOURCE),
                "-o",
                str(directory / soname),
                "-lm",
            ],
            check=True,
        )
