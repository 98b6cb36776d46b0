"""RoCE bonds, interfaces that report a carrier alone, MTUs, and adapters that are gone."""

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


def roce_rails(plan: Document, snapshot: Document, **first: Any) -> list[Document]:
    """Eight RoCE ports beside GPUs; their interfaces, of which the fourth has these values."""
    devices = derived(plan, snapshot)
    for number, row in enumerate(devices):
        row["ports"] = [roce_port(number)]
    interfaces = [interface(number) for number in range(8)]
    interfaces[3].update(first)
    data(snapshot, "network")["interfaces"] = interfaces
    return interfaces


@fault(
    "network.settings",
    cause="The MTU of the interfaces differs: mlx5_3 has 1500, its siblings 9000",
    remedy="ip link set ens3np0 mtu 9000",
)
def a_rail_with_another_mtu(plan: Document, snapshot: Document) -> None:
    roce_rails(plan, snapshot, mtu=1500)


@fault("network.settings", cause="mlx5_3 has 1500, its siblings 9000", remedy="set bond3 mtu 9000")
def a_bond_with_another_mtu(plan: Document, snapshot: Document) -> None:
    roce_rails(plan, snapshot, mtu=1500, master="bond3")
    for gid in data(snapshot, "network")["devices"][3]["ports"][0]["gids"]:
        gid["interface"] = "bond3"


@fault("network.settings", cause="mlx5_3 has 1500", remedy="ip link set INTERFACE mtu 9000")
def an_interface_whose_name_is_no_plain_one(plan: Document, snapshot: Document) -> None:
    roce_rails(plan, snapshot, mtu=1500, name="ens3;reboot")


@fault(
    "network.settings",
    verdict="INCONCLUSIVE",
    cause="have 1500; mlx5_4",
    remedy="ip link set ens0np0 mtu 9000",
)
def rails_of_two_mtus(plan: Document, snapshot: Document) -> None:
    for row in roce_rails(plan, snapshot)[:4]:
        row["mtu"] = 1500


@harmless
def a_rail_that_is_also_the_way_to_the_users(plan: Document, snapshot: Document) -> None:
    roce_rails(plan, snapshot, mtu=1500, default_route=True)


@harmless
def second_ports_with_another_mtu(plan: Document, snapshot: Document) -> None:
    """The first ports of the adapters are for storage, and the second ones for a local network."""
    rails = roce_rails(plan, snapshot)
    found = data(snapshot, "network")
    for number, (row, rail) in enumerate(zip(found["devices"], rails, strict=True)):
        row["address"] = rail["address"] = f"0000:4{number // 2}:00.{number % 2}"
        rail["mtu"] = 1500 if number % 2 else 9000
    found.update(network(found["devices"], 8, interfaces=rails))


@harmless
def bonds_for_storage_and_for_users(plan: Document, snapshot: Document) -> None:
    for leg in bonded(plan, snapshot)[2:]:
        leg["mtu"] = 1500


def gone(plan: Document, snapshot: Document, *numbers: int) -> Document:
    """Eight GPUs with an adapter each, but for these; the section."""
    derived(plan, snapshot)
    left = [device(number) for number in range(8) if number not in numbers]
    found: Document = data(snapshot, "network")
    found.update(network(left, 8))
    return found


@fault(
    "network.ports",
    verdict="INCONCLUSIVE",
    cause="No adapter is beside the GPU at 0000:03:00.0: 7 of 8 GPUs share a PCI port with one",
    remedy="lspci",
)
def an_adapter_that_is_gone(plan: Document, snapshot: Document) -> None:
    gone(plan, snapshot, 3)


@harmless
def two_adapters_for_three_gpus(plan: Document, snapshot: Document) -> None:
    gone(plan, snapshot, *range(2, 8))["gpus"][3:] = []


@harmless
def two_adapters_for_eight_gpus(plan: Document, snapshot: Document) -> None:
    gone(plan, snapshot, *range(2, 8))


@harmless
def one_card_of_two_ports_for_most_gpus(plan: Document, snapshot: Document) -> None:
    """Five of eight GPUs are below the switch of the only card."""
    found = gone(plan, snapshot, *range(1, 8))
    second = device(0, name="mlx5_1", address="0000:40:00.1")
    found.update(network([*found["devices"], second], 8))
    for gpu in found["gpus"][:5]:
        gpu["path"] = found["devices"][0]["path"]


@harmless
def adapters_that_are_near_no_gpu(plan: Document, snapshot: Document) -> None:
    for row in gone(plan, snapshot, 3)["devices"]:
        row["path"] = [f"0000:f{row['numa']}:00.0"]
