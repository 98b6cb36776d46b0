"""How a verification probes its hosts: mode, deadlines, contents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpufleet.fleet.inventory import InventoryHost
from gpufleet.on_host.deep_time import UNDECLARED_GPUS, deep_seconds
from gpufleet.on_host.host import DEFAULTS

# The least seconds that a deep probe's deadline is longer by: it reads all files' contents.
DEEP_S = 360


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
    # True if the links between GPUs, and with the host, are loaded together with the GPUs.
    fabric_load: bool = False
    # True if stacks and toolkits compute; without that a full probe only reads.
    computes: bool = True

    def deadline_of(self, host: InventoryHost) -> float:
        """The deadline of a host: more GPUs have more time, and stacks have it to compile."""
        from gpufleet.components.probe_settings import probe_settings  # noqa: PLC0415

        return self.deadline_with(host, probe_settings(host.spec, warm=self.warm))

    def deadline_with(self, host: InventoryHost, settings: Mapping[str, Any]) -> float:
        """The same by the settings of the host's probe."""
        from gpufleet.components.probe_settings import more_seconds, visible_gpus  # noqa: PLC0415

        gpus = visible_gpus(host.spec)
        return (
            self.deadline_s
            + more_seconds(host.spec, settings)
            + (self.deep_s(UNDECLARED_GPUS if gpus is None else gpus, settings) if self.deep else 0)
        )

    def deep_s(self, gpus: int, settings: Mapping[str, Any]) -> float:
        """The seconds that a deep probe of so many GPUs may take beyond a usual deadline."""
        if not gpus:
            return DEEP_S
        load_s: float = DEFAULTS["sustained_s"] if self.load_s is None else self.load_s
        longer_s: float = deep_seconds(load_s, gpus, settings["toolkits"])
        return max(DEEP_S, longer_s)
