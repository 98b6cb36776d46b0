"""A tray with Grace: IMEX, and what manages the memory that CPU and GPU share."""

from __future__ import annotations

from typing import Any

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, with_cards
from tests.support.host_parts import PROVISION

TRAYS = [f"10.0.7.{n}" for n in range(1, 19)]


def with_tray(plan: Document, snapshot: Document) -> None:
    """A tray of a rack of 18, with IMEX at all times and the driver's own memory."""
    with_cards(plan, snapshot)
    plan["expect"].update(
        imex={"nodes": [*TRAYS], "per_job": False, "channels": 1}, memory_mode="driver"
    )
    data(snapshot, "driver").update(
        imex={
            "unit": "nvidia-imex.service",
            "enabled": True,
            "active": True,
            "nodes": [*TRAYS],
            "channels": 1,
        },
        coherent_memory={"mode": "driver", "nodes": []},
    )


fault, harmless = faults_on(with_tray)


def imex(snapshot: Document) -> dict[str, Any]:
    found: dict[str, Any] = data(snapshot, "driver")["imex"]
    return found


@fault("driver.imex", cause="nvidia-imex.service is not installed", remedy="version, 535.261.03")
def no_imex(plan: Document, snapshot: Document) -> None:
    imex(snapshot).update(unit=None, enabled=None, active=None, nodes=None, channels=0)


@fault("driver.packages", cause="535.216.03 (nvidia-imex)", remedy=PROVISION)
def imex_of_another_version(plan: Document, snapshot: Document) -> None:
    data(snapshot, "packages")["driver"].append(
        {"name": "nvidia-imex", "version": "535.216.03-1", "status": "installed", "held": True}
    )


@fault("driver.imex", cause="does not start at boot", remedy="systemctl enable nvidia-imex")
def imex_not_enabled(plan: Document, snapshot: Document) -> None:
    imex(snapshot)["enabled"] = False


@fault("driver.imex", cause="nvidia-imex.service does not run", remedy="journalctl -u nvidia-imex")
def imex_stopped(plan: Document, snapshot: Document) -> None:
    imex(snapshot)["active"] = False


@fault("driver.imex", verdict="INCONCLUSIVE", cause="unknown whether", remedy="as root")
def imex_not_asked(plan: Document, snapshot: Document) -> None:
    imex(snapshot)["active"] = None


@fault("driver.imex", cause="it lacks 10.0.7.18; it has also 10.0.8.1", remedy="one address a line")
def another_rack(plan: Document, snapshot: Document) -> None:
    imex(snapshot)["nodes"] = [*TRAYS[:-1], "10.0.8.1"]


@fault("driver.imex", cause="nodes_config.cfg is missing", remedy="gpu_expect.imex.nodes")
def no_nodes(plan: Document, snapshot: Document) -> None:
    imex(snapshot)["nodes"] = None


@fault("driver.imex", cause="0 IMEX channels", remedy="NVreg_CreateImexChannel0=1")
def no_channel(plan: Document, snapshot: Document) -> None:
    imex(snapshot)["channels"] = 0


@fault("driver.imex", verdict="INCONCLUSIVE", cause="not observed", remedy="new snapshot")
def imex_not_observed(plan: Document, snapshot: Document) -> None:
    del data(snapshot, "driver")["imex"]


@harmless
def imex_between_jobs(plan: Document, snapshot: Document) -> None:
    plan["expect"]["imex"] = {"nodes": None, "per_job": True, "channels": None}
    imex(snapshot).update(active=False, enabled=False, nodes=None, channels=0)


@harmless
def another_order_of_trays(plan: Document, snapshot: Document) -> None:
    imex(snapshot)["nodes"].reverse()


@fault(
    "driver.memory-mode",
    cause="The kernel manages the GPUs' memory (numa), declared is driver",
    remedy="NVreg_CoherentGPUMemoryMode=driver of the module nvidia (from branch 580 on)",
)
def memory_of_the_kernel(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["coherent_memory"] = {"mode": None, "nodes": [2, 10, 18, 26]}


@fault("driver.memory-mode", cause="The driver manages", remedy="CoherentGPUMemoryMode=numa")
def memory_of_the_driver(plan: Document, snapshot: Document) -> None:
    plan["expect"]["memory_mode"] = "numa"


@fault("driver.memory-mode", verdict="INCONCLUSIVE", cause="Neither", remedy="load the driver")
def memory_of_nobody(plan: Document, snapshot: Document) -> None:
    data(snapshot, "driver")["coherent_memory"] = {"mode": None, "nodes": []}


@fault("driver.memory-mode", verdict="INCONCLUSIVE", cause="not observed", remedy="new snapshot")
def memory_not_observed(plan: Document, snapshot: Document) -> None:
    del data(snapshot, "driver")["coherent_memory"]


@harmless
def memory_of_the_kernel_as_declared(plan: Document, snapshot: Document) -> None:
    plan["expect"]["memory_mode"] = "numa"
    data(snapshot, "driver")["coherent_memory"] = {"mode": "numa", "nodes": [2, 10]}
