"""Confidential computing: what crosses the PCI bus is encrypted, in a virtual machine of its own.

Copies with the host go through buffers in which the processor encrypts them, at about 4 GB/s, and
GPUs cannot address each other's memory over PCI Express.
"""

from __future__ import annotations

from gpufleet.checks.base.sections import Sections

BECAUSE = "confidential computing is on"


def is_confidential(observed: Sections) -> bool:
    """Whether NVML reports that the GPUs of this host compute confidentially."""
    data = observed.read_elsewhere()
    nvml = data["smi"].get("nvml") if "smi" in data else None
    return bool(nvml and nvml.get("confidential"))
