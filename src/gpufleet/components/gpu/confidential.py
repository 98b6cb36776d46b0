"""Confidential computing: what crosses the PCI bus is encrypted, in a virtual machine of its own.

Copies with the host go through buffers in which the processor encrypts them, at about 4 GB/s, and
GPUs cannot address each other's memory over PCI Express. Over NVLink they can in the modes of
several GPUs: Protected PCIe (H100, H200), and encrypted NVLink (Blackwell).
"""

from __future__ import annotations

from gpufleet.components.base.sections import Sections
from gpufleet.documents.sections.gpu import Nvml

BECAUSE = "confidential computing is on"


def is_confidential(observed: Sections) -> bool:
    """Return whether NVML reports that the GPUs of this host compute confidentially."""
    nvml = _nvml(observed)
    return bool(nvml and nvml.get("confidential"))


def is_without_peers(observed: Sections) -> bool:
    """Return whether each GPU computes confidentially alone, without access to a peer."""
    nvml = _nvml(observed)
    return bool(nvml and nvml.get("confidential") and not nvml.get("multi_gpu_mode"))


def _nvml(observed: Sections) -> Nvml | None:
    data = observed.read_elsewhere()
    return data["smi"].get("nvml") if "smi" in data else None
