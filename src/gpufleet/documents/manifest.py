"""The names of a manifest: what a host consists of and how it is set, in one line each."""

from __future__ import annotations

NAMES = {
    "system": "maker and product of the machine",
    "board": "maker and name of the mainboard",
    "bios": "maker, version and date of the BIOS",
    "bmc": "firmware of the management controller, by the kernel's IPMI driver",
    "cpu.model": "CPUs by model",
    "cpu.topology": "sockets, cores and threads that run",
    "cpu.microcode": "version of the microcode",
    "cpu.governor": "frequency governor",
    "memory.modules": "memory modules by size, configured speed and part",
    "memory.total": "memory that the kernel has",
    "numa.cpus": "CPUs of each NUMA node",
    "numa.memory": "memory of each NUMA node",
    "pci.functions": "functions on the PCI bus by class and model",
    "pci.links": "PCIe links of drives, adapters and NVSwitches",
    "nvme.drives": "NVMe drives by model, size and firmware",
    "nvme.media_errors": "data that the NVMe drives could not recover, in all",
    "network.adapters": "RDMA adapters by model, board and firmware",
    "network.ports": "RDMA ports by kind and rate",
    "network.interfaces": "Ethernet interfaces by driver and speed",
    "gpu.models": "GPUs by model",
    "gpu.vbios": "VBIOS of the GPUs",
    "kernel.release": "kernel that runs",
    "kernel.command_line": "command line, without the host's own disks and addresses",
    "clock.synchronised": "whether the kernel's clock is synchronised",
    "clock.services": "programs that set the clock",
    "limits.logins": "lines of limits.conf",
    "limits.defaults": "default limits of systemd",
    "limits.sshd": "limits that logins inherit",
    "limits.slurmd": "limits that Slurm's jobs inherit",
    "limits.containerd": "limits that containers inherit",
    "limits.dockerd": "limits that Docker's containers inherit",
    "limits.kubelet": "limits of the kubelet",
    "limits.pbs_mom": "limits that PBS's jobs inherit",
}
# A name of its own for each mounted file system: `mount /scratch`.
MOUNT = "mount "
# The value of what a host does not have.
NONE = "none"
# More than a host has, and the longest value that is compared.
MOST_NAMES, MOST_TEXT = 256, 4096


def known(name: str) -> bool:
    """Return whether a manifest can have a value of this name."""
    return name in NAMES or (name.startswith(f"{MOUNT}/") and len(name) <= MOST_TEXT)
