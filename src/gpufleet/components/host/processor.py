"""The processor: what a framework's wheels need of it and it lacks, and what helps."""

from __future__ import annotations

from gpufleet.catalog import facts
from gpufleet.components.base.host import Host
from gpufleet.frameworks import FrameworkId

# A hypervisor's default model of a processor hides what the machine has (Proxmox: kvm64).
REMEDY = (
    "in a virtual machine: set its CPU type to host in the hypervisor (Proxmox: qm set ID --cpu"
    " host; libvirt: host-passthrough), shut it down and start it; on a machine of its own: use"
    " another one"
)


def lacking(host: Host, framework: FrameworkId, version: str) -> list[str]:
    """The features that a release needs and the host's processor lacks; empty where unknown."""
    have = host.cpu_features
    if have is None or host.arch != facts.X86_64:
        return []
    return [name for name in facts.cpu_features(framework, version) if name not in have]


def shown(names: list[str]) -> str:
    """Features as vendors write them: AVX2, SSE4.1."""
    return ", ".join(name.upper().replace("_", ".") for name in names)
