"""Lines of the platform in the kernel log: IOMMU, lockups beside errors, links that flap."""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, with_cards
from tests.support.host_parts import event

fault, harmless = faults_on(with_cards)
DAY_S = 86400.0


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="The IOMMU refused accesses of 0000:01:00.0 to memory (40 times)",
    remedy="add iommu=pt to the kernel's command line",
)
def an_iommu_that_refuses_copies_between_cards(plan: Document, snapshot: Document) -> None:
    event(snapshot, "iommu-fault", address="0000:01:00.0", count=40)


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="The IOMMU refused accesses of 0000:40:00.0",
    remedy="see gpu.peer and network.gpudirect",
)
def an_iommu_that_refuses_an_adapters_copies(plan: Document, snapshot: Document) -> None:
    assert data(snapshot, "network")["adapters"][0]["address"] == "0000:40:00.0"
    event(snapshot, "iommu-fault", address="0000:40:00.0")


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="A processor was stuck (a lockup), and the machine logged errors of its hardware",
    remedy="find the memory module or processor in the management controller's log",
)
def a_lockup_beside_errors_of_memory(plan: Document, snapshot: Document) -> None:
    event(snapshot, "lockup")
    event(snapshot, "corrected-error")


@fault(
    "kernel.log",
    verdict="INCONCLUSIVE",
    cause="The link of the network adapter at 0000:5e:00.0 went down 25 times since boot",
    remedy="look at its cable, at both transceivers",
)
def a_link_that_flaps(plan: Document, snapshot: Document) -> None:
    event(snapshot, "port-down", address="0000:5e:00.0", count=12, uptime_s=2 * DAY_S)
    event(snapshot, "port-down", address="0000:5e:00.0", count=25, uptime_s=2 * DAY_S)


@harmless
def what_a_platform_logs_in_a_healthy_year(plan: Document, snapshot: Document) -> None:
    event(snapshot, "lockup")
    event(snapshot, "stall")
    event(snapshot, "port-down", address="0000:40:00.0", count=9)
    event(snapshot, "port-down", address="0000:41:00.0", count=40, uptime_s=300 * DAY_S)
    # A controller of the board.
    event(snapshot, "iommu-fault", address="0000:00:14.0")


@harmless
def errors_that_the_hardware_corrected(plan: Document, snapshot: Document) -> None:
    event(snapshot, "corrected-error", count=3)
