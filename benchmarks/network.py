# Apache-2.0, see LICENSE
"""The cost of the section ``network`` in ``verify`` of one host: 8 GPUs, 12 ports, as files.

Both contenders probe the same planted host and judge what was read, in turn, in one run: with all
sections that can be planted, and without ``network``. Reported are the medians of the wall-clock
seconds, and of the processor seconds of the probe's processes, which run at the same time. A real
adapter answers some of these reads by its firmware, which takes longer than a file.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from gpufleet.judge import judge
from gpufleet.on_host import runner
from tests.support.healthy_host import document, with_cards
from tests.support.planted_gpu_host import PLANTED, GpuHost
from tests.support.rdma_tree import Tree, h100

Document = dict[str, Any]
GPUS, PORTS, MOST_S = 8, 12, 0.5
SECTIONS = (*PLANTED, "network")


class Cost(NamedTuple):
    """Seconds of one probe and its judgement."""

    wall: float
    processor: float


def planted(root: Path) -> Document:
    """Plant the host; its plan. HGX H100 with ten InfiniBand ports, and two of RoCE."""
    host = GpuHost(root)
    host.smi(*({"pci/pci_bus_id": f"00000000:{at:02x}:00.0"} for at in range(GPUS)))
    host.nvml(count=GPUS)
    # The GPUs and their ports are those of the tree.
    host.remove("sys/bus/pci")
    tree = Tree(root)
    h100(tree)
    for number in (10, 11):
        place = tree.mlx(
            f"mlx5_{number}",
            number,
            "01",
            "0xa2dc",
            model="MT41692",
            link_layer="Ethernet",
            rate="200 Gb/sec (4X HDR)",
            address=number,
        )
        tree.interface(f"ens{number}np0", place)
    plan: Document = document("plan.json")
    with_cards(plan, document("snapshot.json"), GPUS)
    del plan["expect"]["network"]
    return plan


def verified(root: Path, plan: Document, names: tuple[str, ...]) -> Cost:
    """Probe these sections and judge them; all other ones are those of the saved host."""
    sections = {name: read for name, read in runner.SECTIONS.items() if name in names}
    config = {"root": str(root), "mode": "full", "deadline_s": 60, "expect_gpus": GPUS}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    with patch.object(runner, "SECTIONS", sections):
        found = runner.probe(config)
    snapshot = document("snapshot.json")
    snapshot["sections"].update(found["sections"])
    judge.judge(plan, snapshot)
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    states = {name: found["sections"][name]["state"] for name in names}
    assert set(states.values()) == {"ok"}, states
    if "network" in names:
        devices = found["sections"]["network"]["data"]["devices"]
        assert sum(len(row["ports"]) for row in devices) == PORTS
    return Cost(wall, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime)


def measure(rounds: int, console: Console) -> Table:
    """The medians of both, their ratio and their difference."""
    contenders = {"without network": PLANTED, "with network": SECTIONS}
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "host"
        plan = planted(root)
        for number in range(max(9, rounds) + 1):
            with console.status(f"round {number}"):
                for name, sections in contenders.items():
                    cost = verified(root, plan, sections)
                    # The first one also reads the catalog.
                    costs[name] += [cost] if number else []
    table = Table(title=f"One planted host of {GPUS} GPUs and {PORTS} ports", min_width=60)
    for heading in ("verify", "wall, s", "processor, s"):
        table.add_column(heading, justify="left" if heading == "verify" else "right")
    middle = {
        name: [statistics.median(values) for values in zip(*rows, strict=True)]
        for name, rows in costs.items()
    }
    for name, values in middle.items():
        table.add_row(name, *(f"{value:.3f}" for value in values))
    less, more = middle.values()
    table.add_row("difference", *(f"{b - a:.3f}" for a, b in zip(less, more, strict=True)))
    table.add_row("ratio", *(f"{b / a:.2f}" for a, b in zip(less, more, strict=True)))
    table.caption = f"At most {MOST_S} s more of wall-clock time."
    return table
