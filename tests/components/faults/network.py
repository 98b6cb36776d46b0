"""The network ports: links, rates, counters, settings, and what programs open."""

from __future__ import annotations

from typing import Any

from tests.support.check_faults import faults_on
from tests.support.healthy_host import Document, data, with_cards
from tests.support.rdma_host import DOWN, declared, derived, device, network, port, roce_port

fault, harmless = faults_on(with_cards)
STORAGE = {"type": "MT4123", "board": "MT_0000000223", "firmware": "20.35.1012", "device": "0x101b"}


def storage(number: int, **changes: Any) -> Document:
    """A ConnectX-6 far from the GPUs."""
    own = port(number, rate="200 Gb/sec (4X HDR)")
    return device(number, **{"ports": [own], **STORAGE, **changes})


def rails(plan: Document, snapshot: Document) -> list[Document]:
    """Declare no ports, and give each of eight GPUs a RoCE port; the devices."""
    devices = derived(plan, snapshot)
    for number, row in enumerate(devices):
        row["ports"] = [roce_port(number)]
    return devices


def first(devices: list[Document], number: int = 3) -> Document:
    """The port of a device."""
    found: Document = devices[number]["ports"][0]
    return found


@harmless
def eight_adapters_and_two_of_storage(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot, storage(8), storage(9))


@harmless
def rails_of_roce(plan: Document, snapshot: Document) -> None:
    rails(plan, snapshot)


@harmless
def totals_that_a_boot_and_congestion_leave(plan: Document, snapshot: Document) -> None:
    for number, row in enumerate(derived(plan, snapshot)):
        row["ports"][0]["counters"].update(
            link_downed=number, symbol_error=7 * number, port_xmit_wait=(1 << 32) - 1
        )


@harmless
def second_ports_that_never_had_a_cable(plan: Document, snapshot: Document) -> None:
    devices = derived(plan, snapshot)
    spare = [
        device(
            number,
            port(number, **DOWN),
            name=f"mlx5_{10 + number}",
            address=f"0000:{0x40 + number:02x}:00.1",
        )
        for number in range(8)
    ]
    snapshot["sections"]["network"]["data"] = network([*devices, *spare], 8)


@harmless
def bridges_to_the_nvswitches(plan: Document, snapshot: Document) -> None:
    bridge = {"bridge": True, "ports": None, "board": "NVD0000000079", "firmware": "28.47.2526"}
    derived(plan, snapshot, *(device(number, **bridge) for number in range(20, 24)))


@fault("network.ports", cause="mlx5_3 is down (1: DOWN, 2: Polling): 7 ports", remedy="its cable")
def one_of_eight_ports_down(plan: Document, snapshot: Document) -> None:
    first(derived(plan, snapshot)).update(DOWN)


@fault(
    "network.ports",
    cause="mlx5_1 is down (1: DOWN, 3: Disabled): it is declared in",
    remedy="cable",
)
def declared_port_disabled(plan: Document, snapshot: Document) -> None:
    data(snapshot, "network")["devices"][1]["ports"][0].update(DOWN, phys_state="3: Disabled")


@fault(
    "network.ports",
    cause="mlx5_3 is down (1: DOWN, 3: Disabled): 7 ports",
    remedy="ip link set ens3np0 up",
)
def interface_of_a_rail_set_down(plan: Document, snapshot: Document) -> None:
    row = rails(plan, snapshot)[3]
    row["ports"][0].update(DOWN, phys_state="3: Disabled")
    own = {"name": "ens3np0", "address": row["address"], "driver": "mlx5_core", "type": 1}
    own |= {"operstate": "down", "carrier": None, "carrier_changes": 0, "carrier_up_count": 0}
    own |= {"speed": -1, "index": 5, "mtu": 9000, "dev_port": 0, "master": None}
    data(snapshot, "network")["interfaces"] = [{**own, "default_route": False}]


@fault("network.ports", cause="mlx5_8 is down", remedy="its cable")
def storage_port_that_had_a_link(plan: Document, snapshot: Document) -> None:
    row = storage(8)
    row["ports"][0].update(DOWN)
    row["ports"][0]["counters"]["link_downed"] = 1
    derived(plan, snapshot, row, storage(9))


@fault("network.ports", verdict="NOT-DECLARED", cause="mlx5_8 is down", remedy="role: unused")
def storage_port_that_nobody_has_set_up(plan: Document, snapshot: Document) -> None:
    row = storage(8)
    row["ports"][0].update(DOWN, phys_state="3: Disabled")
    derived(plan, snapshot, row, storage(9))


@fault("network.ports", cause="mlx5_3 has a link (2: INIT", remedy="subnet manager")
def port_without_a_subnet_manager(plan: Document, snapshot: Document) -> None:
    first(derived(plan, snapshot))["state"] = "2: INIT"


@fault("network.ports", cause="mlx5_3 carries 200 Gb/sec (2X NDR): mlx5_0", remedy="its cable")
def half_the_lanes_of_a_port(plan: Document, snapshot: Document) -> None:
    first(derived(plan, snapshot))["rate"] = "200 Gb/sec (2X NDR)"


@fault("network.ports", cause="carries 100 Gb/sec (4X EDR): declared are 400", remedy="cable")
def slower_than_declared(plan: Document, snapshot: Document) -> None:
    data(snapshot, "network")["devices"][0]["ports"][0]["rate"] = "100 Gb/sec (4X EDR)"


@fault("network.ports", verdict="INCONCLUSIVE", cause="does not know a speed", remedy="mlxlink")
def rate_that_the_kernel_does_not_know(plan: Document, snapshot: Document) -> None:
    for row in data(snapshot, "network")["devices"]:
        row["ports"][0]["rate"] = "10 Gb/sec (4X SDR)"


@fault("network.ports", cause="1 port matches mlx5_*, declared are 2", remedy="lspci")
def declared_device_gone(plan: Document, snapshot: Document) -> None:
    found = data(snapshot, "network")
    found.update(network(found["devices"][:1], 2))


@fault("network.ports", cause="The declared port mlx5_7 is not there", remedy="lspci")
def declared_name_gone(plan: Document, snapshot: Document) -> None:
    plan["expect"]["network"] = [declared(ports=["mlx5_7", "mlx5_0"])]


@fault("network.ports", cause="No driver has the adapter at 0000:43:00.0", remedy="dmesg")
def adapter_without_a_driver(plan: Document, snapshot: Document) -> None:
    devices = derived(plan, snapshot)
    found = data(snapshot, "network")
    found.update(network(devices[:3] + devices[4:], 8, adapters=found["adapters"]))
    found["adapters"][3]["driver"] = None


@fault("network.ports", cause="module mlx5_ib is not loaded", remedy="modprobe mlx5_ib")
@fault(
    "network.errors",
    "network.settings",
    "network.gpudirect",
    verdict="NOT-DECLARED",
    cause="no RDMA device",
    remedy="declare",
)
def module_of_the_adapters_not_loaded(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)
    found = data(snapshot, "network")
    found.update(network([], 8, adapters=found["adapters"]))
    found["modules"]["mlx5_ib"] = False


@fault("network.ports", cause="has link layer InfiniBand, declared is Ethernet", remedy="LINK_TYPE")
def other_link_layer_than_declared(plan: Document, snapshot: Document) -> None:
    plan["expect"]["network"] = [
        declared(ports=["mlx5_0"], link_layer="Ethernet"),
        declared(ports=["mlx5_1"]),
    ]


@fault("network.ports", verdict="INCONCLUSIVE", cause="layer of mlx5_3 cannot", remedy="ibstat")
def port_that_tells_no_state(plan: Document, snapshot: Document) -> None:
    first(derived(plan, snapshot)).update(dict.fromkeys(("state", "phys_state", "rate")))


@fault(
    "network.errors", verdict="INCONCLUSIVE", cause="No counter of mlx5_0, ", remedy="hw_counters"
)
def counters_that_were_not_read(plan: Document, snapshot: Document) -> None:
    for row in derived(plan, snapshot):
        for each in row["ports"]:
            each.update(counters=None, hw_counters=None)


@fault("network.errors", verdict="INCONCLUSIVE", cause="mlx5_3 cannot be read", remedy="dmesg")
def counter_that_cannot_be_read(plan: Document, snapshot: Document) -> None:
    first(derived(plan, snapshot))["counters"]["symbol_error"] = None


@fault(
    "network.ports",
    "network.errors",
    "network.settings",
    "network.gpudirect",
    verdict="HUNG",
    cause="mlx5_3 gave no values: no answer",
    remedy="power cycle",
)
def device_that_hangs(plan: Document, snapshot: Document) -> None:
    row = derived(plan, snapshot)[3]
    row.update(ports=None, bridge=None, board=None, firmware=None)
    row.update(error="no answer within 4 s", hung=True)


@fault(
    "network.ports",
    "network.errors",
    "network.settings",
    "network.gpudirect",
    verdict="INCONCLUSIVE",
    cause="mlx5_3 were not read: these may be bridges",
    remedy="as root",
)
def product_data_not_readable(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)[3].update(ports=None, bridge=None)


@fault(
    "network.ports",
    "network.errors",
    "network.settings",
    "network.gpudirect",
    verdict="NOT-DECLARED",
    cause="no two ports have one role to be compared: mlx5_0",
    remedy="ports: mlx5_0",
)
def single_adapter_of_a_workstation(plan: Document, snapshot: Document) -> None:
    del plan["expect"]["network"]
    data(snapshot, "network").update(network([device(0, roce_port(0))], 1))


@fault(
    "network.ports",
    "network.errors",
    "network.settings",
    "network.gpudirect",
    verdict="NOT-DECLARED",
    cause="are the machine's",
    remedy="verify the machine",
)
def ports_of_the_machine_in_a_container(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)
    data(snapshot, "kernel")["container"] = "docker"


@fault(
    "network.ports",
    "network.errors",
    "network.settings",
    "network.gpudirect",
    verdict="INCONCLUSIVE",
    cause="RDMA devices were not read",
    remedy="/sys",
)
def ports_not_observed(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)
    data(snapshot, "network").update(devices=None, interfaces=None)


@fault(
    "network.errors", verdict="INCONCLUSIVE", cause="mlx5_3: link_downed 255", remedy="perfquery"
)
def counter_at_its_maximum(plan: Document, snapshot: Document) -> None:
    first(derived(plan, snapshot))["counters"]["link_downed"] = 255


@fault(
    "network.settings", cause="mlx5_3 has 28.39.2048, most have 28.41.1000", remedy="mlxfwmanager"
)
def firmware_of_one_adapter_is_older(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)[3]["firmware"] = "28.39.2048"


@fault("network.settings", cause="have firmware 28.41.1000, declared is 28.43.1", remedy="update")
def other_firmware_than_declared(plan: Document, snapshot: Document) -> None:
    plan["expect"]["network"][0]["firmware"] = "28.43.1014"


@fault("network.settings", cause="mlx5_3 has board MT_0000000970, the other", remedy="same board")
def board_of_one_adapter_is_another(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)[3]["board"] = "MT_0000000970"


@fault(
    "network.settings",
    cause="have board MT_0000000838, declared is MT_0000000970",
    remedy="replace",
)
def other_board_than_declared(plan: Document, snapshot: Document) -> None:
    plan["expect"]["network"][0]["board"] = "MT_0000000970"


@fault("network.settings", cause="MaxReadReq differs: mlx5_3 has 512 bytes, its", remedy="setpci")
def read_requests_of_one_adapter_are_short(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)[3]["max_read_request"] = 512


@fault("network.settings", cause="relaxed ordering differs: mlx5_3 has off", remedy="RlxdOrd")
def relaxed_ordering_of_one_adapter_is_off(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)[3]["relaxed_ordering"] = False


@fault(
    "network.settings", verdict="INCONCLUSIVE", cause="of mlx5_3 cannot be read", remedy="as root"
)
def pci_settings_not_readable(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)[3].update(max_read_request=None, relaxed_ordering=None)


@fault("network.settings", cause="mlx5_3 has 8 PCIe lanes, possible are 16", remedy="reseat")
def half_of_an_adapters_lanes(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)[3]["link"]["current_link_width"] = "8"


@fault("network.settings", cause="mlx5_3 has PCIe generation 4, possible are 5", remedy="reseat")
def slower_pcie_link_of_an_adapter_under_load(plan: Document, snapshot: Document) -> None:
    row = derived(plan, snapshot)[3]
    row["link"]["current_link_speed"] = "16.0 GT/s PCIe"
    row["traffic_gb_s"] = 180.5


@fault(
    "network.settings",
    verdict="INCONCLUSIVE",
    cause="mlx5_3 has PCIe generation 4, possible are 5: no data was moved while it was read",
    remedy="while a job uses these ports",
)
def slower_pcie_link_of_an_idle_adapter(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)[3]["link"]["current_link_speed"] = "16.0 GT/s PCIe"


@fault("network.settings", cause="have 16 PCIe lanes, declared are 32", remedy="reseat")
def fewer_lanes_than_declared(plan: Document, snapshot: Document) -> None:
    plan["expect"]["network"][0]["pcie"] = {"generation": 5, "width": 32}


@fault(
    "network.settings",
    verdict="INCONCLUSIVE",
    cause="Adapter and slot of mlx5_3 allow 8 PCIe lanes, those of the siblings 16",
    remedy="pcie: {width: 8}",
)
def one_adapter_in_a_narrow_slot(plan: Document, snapshot: Document) -> None:
    row = derived(plan, snapshot)[3]
    row["link"]["current_link_width"] = "8"
    row["above"].update(max_link_width="8", current_link_width="8")


@harmless
def slow_slots_that_are_declared(plan: Document, snapshot: Document) -> None:
    plan["expect"]["network"][0]["pcie"] = {"generation": 4, "width": 8}
    for row in data(snapshot, "network")["devices"]:
        row["link"].update(current_link_speed="16.0 GT/s PCIe", current_link_width="8")


@harmless
def adapters_in_slots_of_eight_lanes(plan: Document, snapshot: Document) -> None:
    for row in derived(plan, snapshot):
        row["link"]["current_link_width"] = "8"
        row["above"].update(max_link_width="8", current_link_width="8")


@fault(
    "network.settings",
    cause="mlx5_3 has another RoCE v2 GID than the siblings: none",
    remedy="IP address",
)
def rail_without_an_address(plan: Document, snapshot: Document) -> None:
    own = first(rails(plan, snapshot))
    own["gids"] = own["gids"][:2]


@fault("network.settings", cause="IPv4 at index 5; theirs is IPv4 at index 3", remedy="show_gids")
def gid_of_a_rail_at_another_index(plan: Document, snapshot: Document) -> None:
    first(rails(plan, snapshot))["gids"][3]["index"] = 5


@fault("network.settings", cause="mlx5_1 has no GID with index 3", remedy="IP address")
def declared_gid_not_there(plan: Document, snapshot: Document) -> None:
    devices = [device(number, roce_port(number)) for number in range(2)]
    data(snapshot, "network").update(network(devices, 2))
    plan["expect"]["network"][0].update(gid_index=3, gid_type="v2")
    devices[1]["ports"][0]["gids"].pop()


@fault("network.settings", cause="index 2 is IB/RoCE v1, declared is RoCE v2", remedy="show_gids")
def declared_gid_of_another_type(plan: Document, snapshot: Document) -> None:
    devices = [device(number, roce_port(number)) for number in range(2)]
    data(snapshot, "network").update(network(devices, 2))
    plan["expect"]["network"][0].update(gid_index=2, gid_type="v2")


@fault("network.settings", cause="mlx5_3 lacks P_Key 0x8012", remedy="subnet manager")
def port_left_out_of_a_partition(plan: Document, snapshot: Document) -> None:
    for row in derived(plan, snapshot):
        row["ports"][0]["pkeys"] = ["0xffff", "0x8012"]
    data(snapshot, "network")["devices"][3]["ports"][0]["pkeys"] = ["0xffff"]


@fault("network.settings", cause="the module ib_umad is not loaded", remedy="modprobe ib_umad")
def module_of_management_not_loaded(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)
    found = data(snapshot, "network")
    found["modules"]["ib_umad"] = False
    found["nodes"] = [row for row in found["nodes"] if "umad" not in row["path"]]


@fault("network.settings", verdict="INCONCLUSIVE", cause="was not read", remedy="ls /sys/module")
def modules_not_observed(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)
    data(snapshot, "network")["modules"] = None


@fault(
    "network.settings",
    cause="mlx5_3 has no device file /dev/infiniband/uverbs*",
    remedy="modprobe ib_uverbs",
)
def device_file_of_one_adapter_gone(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)
    for row in data(snapshot, "network")["nodes"]:
        if row["device"] == "mlx5_3" and "uverbs" in row["path"]:
            row["exists"] = False


@fault(
    "network.ports",
    "network.errors",
    "network.settings",
    "network.gpudirect",
    verdict="NOT-DECLARED",
    cause="gpu_expect.network: []",
    remedy="",
)
def no_ports_are_declared(plan: Document, snapshot: Document) -> None:
    plan["expect"]["network"] = []


@fault("network.ports", verdict="INCONCLUSIVE", cause="layer of mlx5_1 cannot", remedy="ibstat")
def link_layer_that_cannot_be_read(plan: Document, snapshot: Document) -> None:
    data(snapshot, "network")["devices"][1]["ports"][0]["link_layer"] = None


@fault(
    "network.errors",
    verdict="INCONCLUSIVE",
    cause="mlx5_3 has no counters that its siblings have: excessive_buffer",
    remedy="compare their files",
)
def port_without_counters(plan: Document, snapshot: Document) -> None:
    first(derived(plan, snapshot))["counters"] = None


@fault("network.settings", verdict="INCONCLUSIVE", cause="board of mlx5_3 cannot", remedy="ibstat")
def board_not_readable(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)[3]["board"] = None


@fault("network.settings", verdict="INCONCLUSIVE", cause="firmware of mlx5_3", remedy="ibstat")
def firmware_not_readable(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)[3]["firmware"] = None


@fault("network.settings", verdict="INCONCLUSIVE", cause="lanes of mlx5_3 cannot", remedy="LnkSta")
def pcie_link_not_readable(plan: Document, snapshot: Document) -> None:
    derived(plan, snapshot)[3]["link"] = None


@fault("network.settings", verdict="INCONCLUSIVE", cause="GID table of mlx5_3", remedy="by hand")
def gids_not_readable(plan: Document, snapshot: Document) -> None:
    first(rails(plan, snapshot))["gids"] = None


@fault("network.settings", verdict="INCONCLUSIVE", cause="P_Keys of mlx5_3", remedy="by hand")
def partitions_not_readable(plan: Document, snapshot: Document) -> None:
    first(derived(plan, snapshot))["pkeys"] = None
