"""The lossless class of RoCE ports: flow control, ECN and trust, each on all ports of a role."""

from __future__ import annotations

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, with_cards
from tests.support.rdma_host import device, interface, network, roce_port

BIT = 1 << 3


def with_lossless(plan: Document, snapshot: Document) -> None:
    """A host with two RoCE ports whose priority 3 is lossless, and declared to be so."""
    with_cards(plan, snapshot)
    plan["expect"]["network"][0].update(lossless_priority=3, gid_index=3)
    devices = [device(number, roce_port(number)) for number in range(2)]
    settings = {
        "pfc": BIT,
        "trust": "dscp",
        "notify": BIT,
        "react": BIT | 1,
        "traffic_class": 106,
    }
    interfaces = [interface(number, lossless=dict(settings)) for number in range(2)]
    snapshot["sections"]["network"]["data"] = network(devices, 2, interfaces=interfaces)


fault, harmless = faults_on(with_lossless)


def second(snapshot: Document) -> Document:
    """The settings of the second port."""
    found: Document = data(snapshot, "network")["interfaces"][1]["lossless"]
    return found


@fault(
    "network.lossless",
    cause="mlx5_1 has priority flow control (PFC) off for priority 3, on for 4, 5; declared is"
    " gpu_expect.network[0].lossless_priority",
    remedy="mlnx_qos -i ens1np0",
)
def flow_control_of_other_priorities(plan: Document, snapshot: Document) -> None:
    second(snapshot)["pfc"] = 1 << 4 | 1 << 5


@fault(
    "network.lossless",
    cause="mlx5_1 has ECN of the receiver (roce_np) off for priority 3, on for none",
    remedy="cat /sys/class/net/ens1np0/ecn/roce_np/enable/3",
)
def receiver_without_ecn(plan: Document, snapshot: Document) -> None:
    second(snapshot)["notify"] = 0


@fault(
    "network.lossless",
    cause="mlx5_0, mlx5_1 have ECN of the sender (roce_rp) off for priority 3, on for 0",
    remedy="cat /sys/class/net/ens0np0/ecn/roce_rp/enable/3",
)
def senders_without_ecn(plan: Document, snapshot: Document) -> None:
    for row in data(snapshot, "network")["interfaces"]:
        row["lossless"]["react"] = 1


@fault(
    "network.lossless",
    cause="The field that gives a packet its priority is not the same on all ports: mlx5_0 has"
    " dscp; mlx5_1 has pcp",
    remedy="--trust dscp",
)
def one_port_trusts_another_field(plan: Document, snapshot: Document) -> None:
    second(snapshot)["trust"] = "pcp"


@fault(
    "network.lossless",
    cause="The traffic class of RoCE packets is not the same on all ports: mlx5_0 has 106; mlx5_1"
    " has none",
    remedy="tc/1/traffic_class",
)
def one_port_does_not_mark_its_packets(plan: Document, snapshot: Document) -> None:
    second(snapshot)["traffic_class"] = -1


@harmless
def driver_without_a_traffic_class(plan: Document, snapshot: Document) -> None:
    for row in data(snapshot, "network")["interfaces"]:
        row["lossless"]["traffic_class"] = None


@fault(
    "network.lossless",
    verdict="INCONCLUSIVE",
    cause="Whether mlx5_0, mlx5_1 have ECN of the receiver (roce_np) on cannot be read",
    remedy="MLNX_OFED and DOCA",
)
def driver_of_the_kernel_without_files_of_ecn(plan: Document, snapshot: Document) -> None:
    for row in data(snapshot, "network")["interfaces"]:
        row["lossless"].update(notify=None, react=None)


@fault(
    "network.lossless",
    verdict="INCONCLUSIVE",
    cause="Whether mlx5_1 has priority flow control (PFC) on cannot be read",
    remedy="mlnx_qos -i ens1np0",
)
def flow_control_not_readable(plan: Document, snapshot: Document) -> None:
    second(snapshot).update(pfc=None, trust=None)


@fault(
    "network.lossless",
    verdict="INCONCLUSIVE",
    cause="mlx5_0, mlx5_1 have priority flow control (PFC) on cannot be read",
    remedy="dcb pfc show",
)
def snapshot_of_a_probe_that_did_not_read_it(plan: Document, snapshot: Document) -> None:
    for row in data(snapshot, "network")["interfaces"]:
        del row["lossless"]


@fault(
    "network.lossless",
    cause="mlx5_0, mlx5_1 are InfiniBand ports and need no lossless class",
    remedy="remove lossless_priority from gpu_expect.network[0]",
)
def lossless_class_of_infiniband_ports(plan: Document, snapshot: Document) -> None:
    plan["expect"]["network"][0]["gid_index"] = None
    for row in data(snapshot, "network")["devices"]:
        row["ports"][0]["link_layer"] = "InfiniBand"


@fault(
    "network.settings",
    cause="index 2 is IB/RoCE v1, declared is RoCE v2",
    remedy="correct gpu_expect.network[0]",
)
def lossless_class_with_a_gid_of_version_1(plan: Document, snapshot: Document) -> None:
    plan["expect"]["network"][0]["gid_index"] = 2


@fault(
    "network.settings",
    cause="The GID of mlx5_1 with index 3 is only link-local, those of the siblings are IPv4",
    remedy="IP address",
)
def declared_gid_without_an_address(plan: Document, snapshot: Document) -> None:
    data(snapshot, "network")["devices"][1]["ports"][0]["gids"][3]["kind"] = "link-local"


@fault(
    "network.ports",
    "network.errors",
    "network.settings",
    "network.lossless",
    "network.gpudirect",
    verdict="HUNG",
    cause="mlx5_1 gave no values: no answer",
    remedy="power cycle",
)
def device_of_a_lossless_class_that_hangs(plan: Document, snapshot: Document) -> None:
    plan["expect"]["network"][0]["count"] = None
    row = data(snapshot, "network")["devices"][1]
    row.update(ports=None, bridge=None, board=None, firmware=None)
    row.update(error="no answer within 4 s", hung=True)


@harmless
def more_lossless_priorities_than_declared(plan: Document, snapshot: Document) -> None:
    second(snapshot)["pfc"] = BIT | 1 << 5


@harmless
def priority_by_vlan_on_all_ports(plan: Document, snapshot: Document) -> None:
    for row in data(snapshot, "network")["interfaces"]:
        row["lossless"]["trust"] = "pcp"
