"""The files by which a host shows its GPUs, written below a directory.

Programs name these files by the paths that they have on the host: below the directory itself where
the probe reads it as a root, or `/` where the tree is copied onto a host.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from lab.stubs import library
from lab.stubs.library import Function

LIBRARIES = "usr/lib/x86_64-linux-gnu"
# The directory of the texts that the stand-in of nvidia-smi prints.
TEXTS = "srv/stand-in-gpus"
SMI = "usr/bin/nvidia-smi"
# NVML's answers about what a card does not have.
NOT_SUPPORTED = 3


class GpuTree:
    """A directory with the files of GPUs; its methods change what one of them says."""

    def __init__(self, root: Path, place: str | None = None) -> None:
        self.root, self.place = root, str(root) if place is None else place

    def put(self, name: str, text: str = "", mode: int = 0o644) -> Path:
        """Write a file of the host."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        return path

    def remove(self, name: str) -> None:
        """Remove a file or tree of the host, which has to be there."""
        path = self.root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    def link(self, name: str, target: str) -> None:
        """Write a symbolic link of the host."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def load_modules(self, version: str) -> None:
        """Show a driver of this version that runs."""
        self.put("proc/modules", "nvidia_uvm 1 0\nnvidia 1 1 nvidia_uvm\next4 1 0\n")
        self.put(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "
            f"{version}  Wed Nov  1 00:00:00 UTC 2026\n",
        )

    def write_cuda(self, version: str, cuda: int, status: int = 0, *, hangs: bool = False) -> None:
        """Write the libcuda.so.1 of a driver, and what it answers when it is asked to start."""
        self._library(
            "libcuda.so.1",
            version,
            {
                "cuInit": Function(status, pauses=hangs),
                "cuDriverGetVersion": Function(writes=cuda, to=0),
            },
        )

    def write_nvml(
        self, version: str, count: int, status: int = 0, links: dict[str, Function] | None = None
    ) -> None:
        """Write the libnvidia-ml.so.1 of a driver; `links`: its answers about NVLink and peers."""
        silent = {
            "nvmlDeviceGetNvLinkState": Function(NOT_SUPPORTED),
            "nvmlDeviceGetP2PStatus": Function(NOT_SUPPORTED),
        }
        self._library(
            "libnvidia-ml.so.1",
            version,
            {
                "nvmlInit_v2": Function(status),
                "nvmlSystemGetDriverVersion": Function(writes=version, to=0, copied=True),
                "nvmlDeviceGetCount_v2": Function(writes=count, to=0),
                "nvmlDeviceGetHandleByIndex_v2": Function(),
                "nvmlDeviceGetPciInfo_v3": Function(NOT_SUPPORTED),
                **(silent if links is None else links),
            },
        )

    def _library(self, soname: str, version: str, functions: dict[str, Function]) -> None:
        name = soname.removesuffix(".1")
        for old in (self.root / LIBRARIES).glob(f"{name}.*"):
            old.unlink()
        library.write(self.root / LIBRARIES / f"{name}.{version}", soname, functions)
        self.link(f"{LIBRARIES}/{soname}", f"{name}.{version}")

    def card(self, address: str, driver: str | None = "nvidia") -> None:
        """Put a card on the PCI bus, and what holds it."""
        place = f"sys/bus/pci/devices/{address}"
        for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
            self.put(f"{place}/{name}", text + "\n")
        if driver:
            self.link(f"{place}/driver", f"../../../bus/pci/drivers/{driver}")
        else:
            self.remove(f"{place}/driver")

    def write_smi(
        self, text: str, listing: str, mig: str, status: int = 0, before: str = ""
    ) -> None:
        """Write an nvidia-smi that prints these texts, and ends so."""
        said = {"smi.xml": text, "list.txt": listing, "mig.csv": mig}
        for name, content in said.items():
            self.put(f"{TEXTS}/{name}", content)
        xml, listed, modes = (f"{self.place}/{TEXTS}/{name}" for name in said)
        asked = "*" if status else "-q*"
        self.put(
            SMI,
            "#!/bin/sh\n"
            "# A stand-in for NVIDIA's nvidia-smi: it prints what was written for it.\n"
            + before
            + f'case "$*" in\n{asked}) cat {xml}; exit {status};;\n'
            f"-L | '') cat {listed};;\n*) cat {modes};;\nesac\n",
            0o755,
        )
