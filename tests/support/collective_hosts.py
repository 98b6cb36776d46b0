"""Hosts of a fabric test that are all this machine, each with a stand-in NCCL of its own."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast
from unittest import mock

from gpufleet.documents.collectives import FabricTest, Operation, Scope
from gpufleet.documents.snapshot import Snapshot
from gpufleet.fleet import fabric_test
from gpufleet.fleet.collectives import Measure
from gpufleet.fleet.fabric_test import FabricOptions
from gpufleet.fleet.inventory import Become, Connection, InventoryHost
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.transport.fanout import Outcome
from tests.support.healthy_host import document

SIZES = (1 << 20,)
# The bus bandwidth of the stand-in, whose byte takes 60 ns.
FULL_GB_PER_S = 1 / 60


class CollectiveHosts:
    """Some hosts, and what is wrong with each."""

    def __init__(self, place: Path, libraries: Path, names: list[str]) -> None:
        self.place, self.lines = place, list[str]()
        self.operations: tuple[Operation, ...] = ("all_reduce",)
        self.scope: Scope = "all"
        self.shared, self.sizes = True, SIZES
        self.past: Callable[[Sequence[str]], Sequence[float]] = lambda hosts: ()
        # By host, the sections of its snapshot about GPUs and ports.
        self.sections: dict[str, dict[str, Any]] = {}
        for name in names:
            shutil.copytree(libraries, place / name)
            self.plant(name)
        self.hosts = [
            InventoryHost(
                name,
                {"gpu_nccl_dir": str(place / name), "gpu_expect": {"count": 1}},
                Connection(name, "local", become=Become(False)),
            )
            for name in names
        ]

    def plant(self, name: str, faults: str = "") -> None:
        """Have the stand-in of a host go wrong."""
        (self.place / name / "lib64/faults").write_text(f"name {name}\n{faults}\n")

    def gpus(self, name: str, count: int) -> None:
        """How many GPUs the stand-in shows."""
        (self.place / name / "lib64/gpus").write_text(f"{count}\n")

    def options(self, deadline_s: float, at_least: float | None) -> FabricOptions:
        """Fast, and with a tolerance beyond what a busy machine changes."""
        return FabricOptions(
            Measure(self.operations, self.sizes, 2),
            deadline_s,
            0.6,
            at_least=at_least,
            shared=self.shared,
            scope=self.scope,
            past=self.past,
        )

    def run(self, deadline_s: float = 60, at_least: float | None = FULL_GB_PER_S) -> FabricTest:
        """Test them all; `lines` are the lines of progress."""
        with mock.patch.object(fabric_test, "probe_hosts", self.probed):
            return fabric_test.run(
                self.hosts, self.options(deadline_s, at_least), ProbeOptions(), self.lines.append
            )

    def probed(self, hosts: list[InventoryHost], options: ProbeOptions) -> dict[str, Outcome]:
        """The probe's outcomes on these hosts: this machine has neither GPUs nor ports."""
        found = {}
        for host in hosts:
            snapshot = document("snapshot.json")
            for name, data in self.sections.get(host.name, {}).items():
                snapshot["sections"][name]["data"] = data
            found[host.name] = Outcome(cast(Snapshot, snapshot))
        return found

    def left_behind(self) -> list[str]:
        """Processes that have a stand-in of these hosts loaded, after a moment to end in."""
        found: list[str] = []
        for _ in range(50):
            found = processes_with(self.place)
            if not found:
                break
            time.sleep(0.1)
        return found


def processes_with(place: Path) -> list[str]:
    """The processes that have a library below this directory loaded."""

    def has(maps: Path) -> bool:
        try:
            return str(place).encode() in maps.read_bytes()
        except OSError:  # it ended, or is another account's
            return False

    return [path.parent.name for path in Path("/proc").glob("[0-9]*/maps") if has(path)]
