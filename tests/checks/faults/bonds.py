"""RoCE bonds of two functions of a card, interfaces that report a carrier alone, and MTUs."""

from __future__ import annotations

from typing import Any

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, with_cards
from tests.support.rdma_host import declared, derived, device, interface, network, roce_port

fault, harmless = faults_on(with_cards)
LOST: Document = {"operstate": "down", "carrier": 0, "speed": -1}


def bonded(plan: Document, snapshot: Document, count: int = 2) -> list[Document]:
    """Adapters with a bond of two functions each; their interfaces."""
    devices = derived(plan, snapshot)
    interfaces = []
    for number in range(8, 8 + count):
        bus = f"0000:{0x40 + number:02x}:00"
        own = device(number, roce_port(number), name=f"mlx5_bond_{number}", type="MT4123")
        devices.append({**own, "path": [f"0000:e{number}:01.0"], "board": "MT_0000000223"})
        for leg in (0, 1):
            changes: dict[str, Any] = {
                "name": f"ens{number}f{leg}np{leg}",
                "master": f"bond{number}",
            }
            interfaces.append(interface(number, address=f"{bus}.{leg}", **changes))
    data(snapshot, "network").update(network(devices, 8, interfaces=interfaces))
    return interfaces


@harmless
def whole_bonds(plan: Document, snapshot: Document) -> None:
    bonded(plan, snapshot)


@fault(
    "network.ports",
    cause="ens9f1np1 has no carrier, of the bond bond9: mlx5_bond_9 works with what is left of it",
    remedy="ethtool ens9f1np1",
)
def a_bond_that_lost_a_leg(plan: Document, snapshot: Document) -> None:
    bonded(plan, snapshot)[3].update(LOST)


@fault("network.ports", cause="ens9f0np0 has no carrier, of the bond bond9", remedy="its cable")
def a_bond_that_lost_its_first_leg(plan: Document, snapshot: Document) -> None:
    bonded(plan, snapshot)[2].update(LOST)


@fault(
    "network.ports",
    verdict="NOT-DECLARED",
    cause="ens9f1np1 has no carrier, of the bond bond9: nothing says whether it should",
    remedy="take it out of the bond",
)
def bonds_whose_second_legs_never_had_a_cable(plan: Document, snapshot: Document) -> None:
    for leg in bonded(plan, snapshot)[1::2]:
        leg.update(LOST, carrier_up_count=0)


@harmless
def a_function_that_is_no_leg(plan: Document, snapshot: Document) -> None:
    """A bridge has members that have an RDMA device each, and those that stand for functions."""
    devices = derived(plan, snapshot)
    members = [interface(number, master="ovs-system") for number in range(8)]
    members += [interface(0, name="pf0vf0", dev_port=1, master="ovs-system", **LOST)]
    members += [interface(20, name="eno1", master="ovs-system", **LOST)]
    for number, row in enumerate(devices):
        row["ports"] = [roce_port(number)]
    data(snapshot, "network").update(network(devices, 8, interfaces=members))


@harmless
def an_interface_that_reports_its_carrier_alone(plan: Document, snapshot: Document) -> None:
    own = interface(30, name="eth0", address="virtio0", driver="virtio_net", operstate="unknown")
    data(snapshot, "network")["interfaces"].append(own)
    plan["expect"]["network"].append(declared(ports=["eth0"], role="management"))


@fault("network.ports", cause="eth0 is down (unknown): it is declared in", remedy="its cable")
def an_interface_without_a_carrier(plan: Document, snapshot: Document) -> None:
    an_interface_that_reports_its_carrier_alone(plan, snapshot)
    data(snapshot, "network")["interfaces"][-1].update(carrier=0)
