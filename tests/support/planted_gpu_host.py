"""A healthy host with two GPUs, planted below a directory: the probe itself reads it.

What `/proc`, `/sys`, `/dev`, the driver's libraries, `nvidia-smi` and the kernel's log say is
planted; toolkits, stacks and whatever else has to be real is taken from the saved healthy host.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpufleet.components.host.host import SECOND_READINGS
from gpufleet.judge import judge
from gpufleet.on_host import runner
from lab.gpus.smi_text import CUDA, DRIVER, Texts, smi_text
from lab.gpus.tree import GpuTree
from lab.stubs.library import Function
from tests.support.elf_file import kernel_module
from tests.support.healthy_host import data, document, with_cards
from tests.support.machine import deadline

Document = dict[str, Any]

KERNEL, LATER = "6.1.0-27-amd64", "6.1.0-50-amd64"
CARDS = ("0000:01:00.0", "0000:02:00.0")
MODULES = "updates/dkms"
NODES = ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1")
# Each link is connected to a switch, and the GPUs reach each other.
NVLINKS = {
    "nvmlDeviceGetNvLinkState": Function(writes=1, to=2),
    "nvmlDeviceGetNvLinkRemoteDeviceType": Function(writes=2, to=2),
    "nvmlDeviceGetP2PStatus": Function(writes=0, to=3),
}
# Read from the planted host; the others are those of the saved one.
PLANTED = ("kernel", "gpus", "driver", "smi", "kernel_log")


class GpuHost(GpuTree):
    """The planted host; its methods change what one part of it says."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.deadline_s = deadline(20)
        self.service_user: str | None = None
        self.plan, self.saved = document("plan.json"), document("snapshot.json")
        with_cards(self.plan, self.saved)
        self.plan["stacks"] = []
        for run in data(self.saved, "compute")["runs"]:
            for device, address in zip(run["devices"], CARDS, strict=True):
                device["address"] = address
        self.plan["expect"].update(
            uuids=[f"GPU-00000000-1111-2222-3333-4444444444{at:02x}" for at in range(len(CARDS))],
            power_limit_w=700,
            ecc="on",
            compute_mode="default",
            pcie={"generation": 5, "width": 16},
        )
        self.plant()

    def plant(self) -> None:
        """The healthy host, in the place of whatever is there."""
        shutil.rmtree(self.root, ignore_errors=True)
        (self.root / "tmp").mkdir(parents=True)
        self.root.chmod(0o755)
        self._system()
        self._driver()
        for address in CARDS:
            self.card(address)
        self.smi()
        self.log()

    def _system(self) -> None:
        self.booted = int(time.time()) - 86400
        self.put("proc/sys/kernel/osrelease", KERNEL + "\n")
        self.put("proc/sys/kernel/random/boot_id", "0b3233d7-a511-4351-8094-a2709db98e31\n")
        self.put("proc/uptime", "86400.5 1.0\n")
        self.put("proc/stat", f"cpu 1 2 3\nbtime {self.booted}\n")
        self.put("etc/passwd", "root:x:0:0::/root:/bin/sh\nslurm:x:64030:64030::/:/bin/false\n")
        self.put("etc/group", "video:x:44:\nslurm:x:64030:\n")
        self.kernel(KERNEL)
        for cpu in range(4):
            self.governor(cpu, "performance")
        for node in NODES:
            self.put(f"dev/{node}", mode=0o666)

    def governor(self, cpu: int, name: str) -> None:
        """A CPU's frequency governor."""
        place = f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        self.put(f"{place}/scaling_governor", name + "\n")
        self.put(f"{place}/scaling_driver", "acpi-cpufreq\n")

    def kernel(self, version: str, *, driver: str | None = DRIVER) -> None:
        """A kernel with its headers, and the driver's modules for it, if it has any."""
        self.put(f"boot/vmlinuz-{version}")
        self.put(f"boot/initrd.img-{version}")
        self.put(f"usr/src/linux-headers-{version}/Makefile")
        self.link(f"lib/modules/{version}/build", f"/usr/src/linux-headers-{version}")
        for name in ("nvidia", "nvidia-uvm") if driver else ():
            kernel_module(
                self.root / f"lib/modules/{version}/{MODULES}/{name}.ko",
                version=str(driver),
                license="NVIDIA",
            )

    def _driver(self) -> None:
        self.loaded(DRIVER)
        self.cuda()
        self.nvml()
        self.put("etc/modprobe.d/nvidia-blacklists-nouveau.conf", "blacklist nouveau\n")
        unit = "nvidia-persistenced.service"
        self.put(f"lib/systemd/system/{unit}")
        self.link(
            f"etc/systemd/system/multi-user.target.wants/{unit}", f"/lib/systemd/system/{unit}"
        )
        tree = f"var/lib/dkms/nvidia/{DRIVER}"
        (self.root / tree / KERNEL / "x86_64/module").mkdir(parents=True)
        self.link(f"{tree}/source", f"/usr/src/nvidia-{DRIVER}")
        self.link(f"var/lib/dkms/nvidia/kernel-{KERNEL}-x86_64", f"{DRIVER}/{KERNEL}/x86_64")

    def loaded(self, version: str | None) -> None:
        """The driver that runs; None: none."""
        if version is None:
            self.put("proc/modules", "ext4 1 0\n")
            self.remove("proc/driver/nvidia")
            return
        self.load_modules(version)

    def cuda(
        self, status: int = 0, version: str = DRIVER, cuda: int = 12020, *, hangs: bool = False
    ) -> None:
        """Set the answers of libcuda.so.1 when it is asked to start."""
        self.write_cuda(version, cuda, status, hangs=hangs)

    def nvml(self, status: int = 0, version: str = DRIVER, count: int = 2) -> None:
        """Set the answers of libnvidia-ml.so.1."""
        self.write_nvml(version, count, status, NVLINKS)

    def smi(self, *cards: Texts, driver: str = DRIVER, **more: Any) -> None:
        """Set nvidia-smi's output on the cards; without cards: on the two healthy ones."""
        self.smi_says(smi_text(cards or ({}, {}), driver, CUDA, **more))

    def smi_says(self, text: str, status: int = 0, before: str = "") -> None:
        """A stand-in nvidia-smi, which prints this and ends so."""
        listing = "GPU 0: NVIDIA H100 80GB HBM3\nGPU 1: NVIDIA H100 80GB HBM3\n"
        self.write_smi(text, listing, "0, Disabled\n1, Disabled\n", status, before)

    def log(self, *lines: str, whole: bool = True) -> None:
        """The kernel's log since boot, as syslog writes it: without a year."""
        first = [(0.0, "Linux version 6.1.0-27-amd64 (debian-kernel@lists.debian.org)")] * whole
        usual = [
            (4.1, "nvidia-nvlink: Nvlink Core is being initialized, major device number 236"),
            (4.2, "nvidia: module license 'NVIDIA' taints kernel."),
            (4.3, f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {DRIVER}"),
            (5.0, "EXT4-fs (sda1): mounted filesystem with ordered data mode"),
        ]
        reported = [*first, *usual, *((3600.0 + at, line) for at, line in enumerate(lines))]
        self.put(
            "var/log/kern.log",
            "".join(
                time.strftime("%b %d %H:%M:%S", time.localtime(self.booted + int(seconds)))
                + f" gpu01 kernel: [{seconds:12.6f}] {text}\n"
                for seconds, text in reported
            ),
        )

    # -- what is made of it ----------------------------------------------------------------------

    def read(self, *names: str, mode: str = "full") -> Document:
        """These sections, as the probe reads them here."""
        # A process for each section: those that are not used would be two thirds of the time.
        planted = {name: read for name, read in runner.SECTIONS.items() if name in names}
        with patch.object(runner, "SECTIONS", planted):
            found: Document = runner.probe(
                {
                    "root": str(self.root),
                    "mode": mode,
                    "host": self.plan["host"],
                    "mig": True,
                    "deadline_s": self.deadline_s,
                    "service_user": self.service_user,
                    "expect_gpus": len(CARDS),
                }
            )["sections"]
        own = {name: found[name] for name in (*names, *SECOND_READINGS) if name in found}
        # No systemd runs below a directory, and only root could make device files there.
        if driver := own.get("driver", {}).get("data"):
            driver["persistence"]["active"] = bool(driver["persistence"]["unit"]) or None
        for row in (own.get("gpus", {}).get("data") or {}).get("node_access", []):
            row["major"] = row["major"] or 195
        return own

    def snapshot(self) -> Document:
        """The saved host's, with what the probe reads here in its place."""
        saved = {
            name: section
            for name, section in self.saved["sections"].items()
            if name not in SECOND_READINGS
        }
        return {**self.saved, "sections": {**saved, **self.read(*PLANTED)}}

    def checks(self) -> dict[str, Document]:
        """The checks by id."""
        checks: Any = judge.judge(self.plan, self.snapshot())["checks"]
        return {row["id"]: row for row in checks}
