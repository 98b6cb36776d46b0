"""How a verification probes its hosts: mode, deadlines, contents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpufleet.inventory import InventoryHost

# Added to a host's deadline for the sustained load and the time to cool down, in seconds.
DEEP_S = 360
# A deep probe's deadline has room for so many times its load: for that in other number formats, and
# for the shares of the probe's sections.
LOADS = 3


@dataclass(frozen=True)
class ProbeOptions:
    """How to probe."""

    mode: str = "full"
    fanout: int = 32
    deadline_s: float = 300
    deep: bool = False
    # ClusterShell's topology.conf: the hosts behind each gateway.
    topology: Path | None = None
    # Give stacks the time to compile their code for GPUs of any model.
    warm: bool = False
    # By host, what its probe reads of the contents tonight: `scrub` of its configuration.
    scrub: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Read the contents of all installed files, as a deep probe does, without its load.
    contents: bool = False
    # The seconds of a deep probe's load on all GPUs at once (default: the probe's own).
    load_s: float | None = None
    # The directory whose disk is loaded together with the GPUs.
    disk_load: str | None = None
    # Whether the links between GPUs, and with the host, are loaded together with the GPUs.
    fabric_load: bool = False
    # Whether stacks and toolkits compute; without it a full probe reads alone.
    computes: bool = True

    @property
    def host_s(self) -> float:
        """The deadline of a host with one GPU in seconds, the sustained load included."""
        return self.deadline_s + (DEEP_S + LOADS * (self.load_s or 0) if self.deep else 0)

    def deadline_of(self, host: InventoryHost) -> float:
        """The deadline of a host: its stacks have more time on more GPUs, and to compile."""
        from gpufleet.spec.probe_settings import probe_settings  # noqa: PLC0415

        return self.deadline_with(host, probe_settings(host.spec, warm=self.warm))

    def deadline_with(self, host: InventoryHost, settings: Mapping[str, Any]) -> float:
        """The same by the settings of the host's probe."""
        from gpufleet.spec.probe_settings import more_seconds  # noqa: PLC0415

        return self.host_s + more_seconds(host.spec, settings)
