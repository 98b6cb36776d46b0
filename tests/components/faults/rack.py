"""The NVLink domain of a rack: GB200-like cards in the domain that the rack's hosts share.

State and domain are as on trays of a rack; the driver and the other values of the cards are those
of the healthy host.
"""

from __future__ import annotations

from copy import deepcopy

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, with_cards
from tests.support.host_parts import printed

RACK = "6f0a6e6c-3b0e-4c62-9f3c-0a51c1b2d3e4"
OTHER = "11111111-3b0e-4c62-9f3c-0a51c1b2d3e4"
ZERO = "00000000-0000-0000-0000-000000000000"


def place(domain: str | None = RACK, clique: str | None = "32766") -> dict[str, str | None]:
    """The elements that nvidia-smi prints of a card in a domain."""
    return {"fabric/clusterUuid": domain, "fabric/cliqueId": clique}


def placed(snapshot: Document, *cards: dict[str, str | None]) -> None:
    """Let nvidia-smi have printed this of the cards, before and after all work."""
    printed(snapshot, *cards)
    snapshot["sections"]["smi_after"] = deepcopy(snapshot["sections"]["smi"])


def hosts(number: int, domain: str = RACK, clique: str | None = "32766") -> Document:
    """So many hosts of the rack are there."""
    return {"domain": domain, "clique": clique, "hosts": number}


def with_rack(plan: Document, snapshot: Document) -> None:
    """A host of a rack of 18, all in one domain."""
    with_cards(plan, snapshot)
    placed(snapshot, place(), place())
    plan["expect"]["fabric"] = {"rack": "r12", "clique": None}
    plan["rack"] = [hosts(18)]


fault, harmless = faults_on(with_rack)


@fault(
    "gpu.rack",
    cause=f"in NVLink domain {OTHER}; 17 of 18 hosts of rack r12 are in {RACK}",
    remedy="correct gpu_expect.fabric.rack",
)
def host_in_another_domain_than_its_rack(plan: Document, snapshot: Document) -> None:
    placed(snapshot, place(OTHER), place(OTHER))
    plan["rack"] = [hosts(17), hosts(1, OTHER)]


@harmless
def another_host_of_the_rack_is_in_another_domain(plan: Document, snapshot: Document) -> None:
    plan["rack"] = [hosts(17), hosts(1, OTHER)]


@fault(
    "gpu.rack",
    verdict="INCONCLUSIVE",
    cause=f"no one has most of them: {OTHER} (9 hosts), {RACK} (9 hosts)",
    remedy="switch trays",
)
def half_of_the_rack_in_another_domain(plan: Document, snapshot: Document) -> None:
    plan["rack"] = [hosts(9), hosts(9, OTHER)]


@fault(
    "gpu.rack",
    cause="The GPUs are in clique 4 of their NVLink domain; 17 of 18 hosts of rack r12 are in"
    " clique 32766",
    remedy="declare gpu_expect.fabric.clique of each of its hosts",
)
def host_in_another_clique_than_its_rack(plan: Document, snapshot: Document) -> None:
    placed(snapshot, place(clique="4"), place(clique="4"))
    plan["rack"] = [hosts(17), hosts(1, clique="4")]


@fault(
    "gpu.rack",
    verdict="INCONCLUSIVE",
    cause="are in different cliques, and no one has most of them: 1 (9 hosts), 2 (9 hosts)",
    remedy="if the rack is partitioned, declare gpu_expect.fabric.clique",
)
def rack_that_may_be_partitioned(plan: Document, snapshot: Document) -> None:
    placed(snapshot, place(clique="1"), place(clique="1"))
    plan["rack"] = [hosts(9, clique="1"), hosts(9, clique="2")]


@fault(
    "gpu.rack",
    cause="are in clique 2, declared is gpu_expect.fabric: {rack: r12, clique: 1}",
    remedy="correct gpu_expect.fabric.clique",
)
def other_clique_than_declared(plan: Document, snapshot: Document) -> None:
    placed(snapshot, place(clique="2"), place(clique="2"))
    plan["expect"]["fabric"]["clique"] = 1
    plan["rack"] = [hosts(18, clique=None)]


@harmless
def partitioned_rack_whose_cliques_are_declared(plan: Document, snapshot: Document) -> None:
    placed(snapshot, place(clique="2"), place(clique="2"))
    plan["expect"]["fabric"]["clique"] = 2
    plan["rack"] = [hosts(18, clique=None)]


@fault("gpu.rack", cause="of this host alone (its UUID is zero), declared", remedy="switch trays")
def domain_of_one_host_in_a_rack(plan: Document, snapshot: Document) -> None:
    placed(snapshot, place(ZERO), place(ZERO))
    plan["rack"] = []


@fault(
    "gpu.rack",
    cause="is in no NVLink domain (fabric state: N/A), declared is gpu_expect.fabric: {rack: r12}",
    remedy="switch trays",
)
@fault("gpu.fabric", verdict="INCONCLUSIVE", cause="does not report its", remedy="nvidia-smi -q")
def tray_whose_fabric_is_not_supported(plan: Document, snapshot: Document) -> None:
    none = {"fabric/state": "N/A", "fabric/status": "N/A", **place("N/A", "N/A")}
    placed(snapshot, none, none)
    plan["rack"] = []


@fault(
    "gpu.rack",
    verdict="INCONCLUSIVE",
    cause="does not report its NVLink domain (fabric state: Completed)",
    remedy="570.124",
)
def driver_that_does_not_report_the_domain(plan: Document, snapshot: Document) -> None:
    placed(snapshot, place(None, None), place(None, None))
    plan["rack"] = []


@fault(
    "gpu.rack", verdict="INCONCLUSIVE", cause="NVLink domain (fabric state: In", remedy="gpu.fabric"
)
@fault("gpu.fabric", verdict="INCONCLUSIVE", cause="still registering", remedy="fabric manager")
def tray_that_still_registers(plan: Document, snapshot: Document) -> None:
    state = {"fabric/state": "In Progress", "fabric/status": "N/A", **place("N/A", "N/A")}
    placed(snapshot, state, state)
    plan["rack"] = []


@fault(
    "gpu.fabric",
    verdict="INCONCLUSIVE",
    cause=f"GPU 1 (0000:01:00.0) in {RACK}, clique 4",
    remedy="switch trays",
)
@fault("gpu.rack", cause="The GPUs are in clique 4 of their", remedy="switch trays")
def one_card_in_another_clique_than_its_siblings(plan: Document, snapshot: Document) -> None:
    placed(snapshot, place(), place(clique="4"))
    plan["rack"] = [hosts(17)]


@harmless
def host_verified_without_its_rack(plan: Document, snapshot: Document) -> None:
    plan["rack"] = [hosts(1)]


@harmless
def cards_of_a_lone_host_with_a_domain(plan: Document, snapshot: Document) -> None:
    """On hosts with NVSwitches of their own the state is Completed, too."""
    placed(snapshot, place(), place())
    plan["expect"]["fabric"] = {"rack": None, "clique": 32766}
    del plan["rack"]
