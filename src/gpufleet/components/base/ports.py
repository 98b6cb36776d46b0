"""The network ports of a host, and the role of each: by declaration, else derived. Pure.

Ports of one role are compared with each other, so that a host whose ports are not declared is
judged as well. The same adapter may serve GPUs and storage, so its model alone gives no role: near
a GPU is a port that shares a PCI port with it. A bridge to the NVSwitches is no port.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from gpufleet.catalog import network as facts
from gpufleet.documents.plan import Plan, PlannedPorts
from gpufleet.documents.sections.network import Gid, Interface, Network, RdmaDevice, RdmaPort

COMPUTE, STORAGE, MANAGEMENT, UNUSED = "compute", "storage", "management", "unused"
INFINIBAND, ETHERNET, EFA = "InfiniBand", "Ethernet", "EFA"
# In place of a link layer that cannot be read.
NOT_READ = "not read"
AMAZON = "0x1d0f"


@dataclass(frozen=True)
class Port:
    """A port of an RDMA device, or a network interface without one, with its role.

    `row`: the number of the declaration that it follows; None where its role is derived.
    """

    name: str
    layer: str
    device: RdmaDevice | None = None
    port: RdmaPort | None = None
    interface: Interface | None = None
    role: str | None = None
    because: str = ""
    row: int | None = None

    @property
    def active(self) -> bool | None:
        """True if the port carries data; None where its state was not read."""
        if self.port is not None:
            number = facts.state_number(self.port["state"])
            return None if number is None else number == facts.state("active")
        state = self.interface["operstate"] if self.interface else None
        if self.interface and state == "unknown":
            # Some drivers, such as virtio's, report the carrier alone.
            return self.interface["carrier"] == 1
        return None if state is None else state == "up"

    @property
    def signal(self) -> bool:
        """True if the cable's other end answers, though no subnet manager has set the port up."""
        return self.port is not None and (
            facts.state_number(self.port["state"])
            in (facts.state("initialized"), facts.state("armed"))
        )

    @property
    def disabled(self) -> bool:
        """True if somebody has switched the port off, or nobody has ever set it up.

        Drivers call each RoCE port that is down disabled, also one without a cable: its interface
        tells, which has a carrier or has none once it is set up.
        """
        if self.layer == ETHERNET and self.interface:
            return self.interface["carrier"] is None
        state = self.port["phys_state"] if self.port else None
        return facts.state_number(state) == facts.state("disabled")

    @property
    def was_up(self) -> bool:
        """True if the port has had a link since the driver was loaded."""
        counted = [self.port["counters"], self.port["hw_counters"]] if self.port else []
        carriers = self.interface["carrier_up_count"] if self.interface else None
        return any((counters or {}).get("link_downed") for counters in counted) or bool(
            self.layer == ETHERNET and carriers
        )

    @property
    def rate(self) -> facts.Rate | None:
        """The rate of its link; None where it was not read."""
        if self.port is not None:
            return facts.rate(self.port["rate"])
        speed = self.interface["speed"] if self.interface else None
        return facts.Rate(speed / 1000, None, "Ethernet") if speed and speed > 0 else None

    @property
    def state_text(self) -> str:
        """Its state, as the kernel prints it."""
        if self.port is None:
            return (self.interface["operstate"] if self.interface else None) or "not read"
        return f"{self.port['state'] or 'not read'}, {self.port['phys_state'] or 'not read'}"

    @property
    def card(self) -> str:
        """The card that it is on: functions of one card differ in the last digit."""
        address = self.device["address"] if self.device else None
        return address.rpartition(".")[0] if address else self.name.partition("/")[0]

    @property
    def position(self) -> tuple[str, int]:
        """Which port of its card it is."""
        address = (self.device["address"] if self.device else None) or ""
        return address.rpartition(".")[2], self.port["port"] if self.port else 1

    @property
    def names(self) -> list[str]:
        """The names by which it can be declared."""
        found = [self.name]
        if self.device and self.name == self.device["name"]:
            found.append(f"{self.name}/1")
        if self.interface and self.interface["name"] != self.name:
            found.append(self.interface["name"])
        return found

    @property
    def siblings(self) -> tuple[object, ...]:
        """The key that a port shares with the ports it is compared with."""
        if self.row is not None:
            return ("declared", self.row)
        if self.role == COMPUTE:
            return (self.role, self.layer)
        kind = (self.device["type"], self.device["board"]) if self.device else ()
        return (self.role, self.layer, *kind)


def ports(
    network: Network, declared: Sequence[PlannedPorts] | None = None, gpus: int = 0
) -> list[Port]:
    """Every port that was read, with its role. `gpus`: how many GPUs are declared."""
    found = _unassigned(network)
    return (
        [_by_declaration(port, declared) for port in found]
        if declared
        else _derived(found, network, gpus)
    )


def of_plan(network: Network, plan: Plan) -> list[Port]:
    """Every port that was read, with its role by the plan's declaration."""
    expect = plan.get("expect") or {}
    return ports(network, expect.get("network"), expect.get("count") or 0)


def groups(found: Iterable[Port], roles: Iterable[str] = (COMPUTE, STORAGE)) -> list[list[Port]]:
    """The ports that are compared with each other: declared ones, and two or more of a role."""
    wanted, by_kind = set(roles), defaultdict(list)
    for port in found:
        if port.role != UNUSED and (port.row is not None or port.role in wanted):
            by_kind[port.siblings].append(port)
    return [
        members for members in by_kind.values() if len(members) > 1 or members[0].row is not None
    ]


def bridges(network: Network) -> list[str]:
    """The RDMA devices that are bridges to the NVSwitches."""
    return [row["name"] for row in network["devices"] or [] if row["bridge"]]


def other_legs(port: Port, network: Network) -> list[Interface]:
    """The further interfaces of a RoCE bond: one RDMA device serves functions of one card.

    A bridge has members on the card as well. Those that stand for other functions have the
    address of an RDMA device.
    """
    own = port.interface
    if port.device is None or own is None or not own["master"] or not own["address"]:
        return []
    addresses = {device["address"] for device in network["devices"] or []}
    return [
        row
        for row in network["interfaces"] or []
        if row["master"] == own["master"]
        and row["address"] not in addresses
        and (row["address"] or "").rpartition(".")[0] == own["address"].rpartition(".")[0]
    ]


def matched(row: PlannedPorts, found: Iterable[Port]) -> list[Port]:
    """The ports that a declaration names."""
    return [port for port in found if _names(row, port)]


def _names(row: PlannedPorts, port: Port) -> bool:
    return any(fnmatchcase(name, each) for each in row["ports"] for name in port.names)


def _by_declaration(port: Port, declared: Sequence[PlannedPorts]) -> Port:
    for number, row in enumerate(declared):
        if _names(row, port):
            because = f"gpu_expect.network[{number}]"
            return replace(port, role=row["role"], because=because, row=number)
    return replace(port, because="no entry of gpu_expect.network names it")


def _unassigned(network: Network) -> list[Port]:
    """The ports without their roles: those of RDMA devices, then other interfaces."""
    rows = network["interfaces"] or []
    by_place = {(row["address"], row["dev_port"] or 0): row for row in rows}
    by_name = {row["name"]: row for row in rows}
    found: list[Port] = []
    used: set[str] = set()
    silent = set()
    for device in network["devices"] or []:
        if device["ports"] is None and device["address"]:
            silent.add(device["address"])
        for port in device["ports"] or []:
            name = device["name"] if port["port"] == 1 else f"{device['name']}/{port['port']}"
            place = device["address"] or "", port["port"] - 1
            layer = EFA if device["vendor"] == AMAZON else port["link_layer"] or NOT_READ
            own = by_place.get(place) or by_name.get(_interface(port["gids"]))
            found.append(Port(name, layer, device, port, own))
            used.update([own["name"]] if own else [])
    for interface in by_place.values():
        if interface["name"] not in used and interface["address"] not in silent:
            found.append(Port(interface["name"], ETHERNET, interface=interface))
    return found


def _interface(gids: list[Gid] | None) -> str:
    """The interface of a port by its GIDs: a device without hardware of its own has no other."""
    return next((gid["interface"] for gid in gids or [] if gid["interface"]), "")


def _derived(found: list[Port], network: Network, gpus: int) -> list[Port]:
    """The ports with the roles that follow from where and what they are."""
    near_gpus = {bridge for gpu in network["gpus"] for bridge in gpu["path"]}
    count = len(network["gpus"]) or gpus
    near = {
        port.name for port in found if port.device and not near_gpus.isdisjoint(port.device["path"])
    }
    compute = _compute(found, near, count) if count else {}
    return [
        replace(port, role=role, because=because)
        for port in found
        for role, because in [compute.get(port.name) or _other_role(port, count)]
    ]


def _other_role(port: Port, gpus: int) -> tuple[str, str]:
    if port.interface and port.interface["default_route"]:
        return MANAGEMENT, "its interface has the default route"
    if port.device is None:
        return MANAGEMENT, "it is no RDMA device"
    return STORAGE, "other ports serve the GPUs" if gpus else "this host has no GPU"


def _compute(found: list[Port], near: set[str], gpus: int) -> Mapping[str, tuple[str, str]]:
    """The role, and the reason for it, of each port that serves the GPUs, by port."""
    able = [
        port
        for port in found
        if port.device
        and (port.name in near or not (port.interface and port.interface["default_route"]))
    ]
    kinds: dict[tuple[str, str | None], list[Port]] = defaultdict(list)
    for port in able:
        kinds[port.layer, port.device["type"] if port.device else None].append(port)
    if not kinds:
        return {}

    def likely(kind: tuple[str, str | None]) -> tuple[bool, int, int, bool]:
        members = kinds[kind]
        close = sum(port.name in near for port in members)
        return kind[0] == EFA, close, len(members), kind[0] == INFINIBAND

    best = max(kinds, key=likely)
    close = [port for port in kinds[best] if port.name in near]
    if best[0] == EFA:
        return {port.name: (COMPUTE, "it is an EFA device") for port in kinds[best]}
    if not close:
        what = f"most RDMA ports are {best[0]} ports of {best[1] or 'its model'}"
        return {port.name: (COMPUTE, f"{what}; none is near a GPU") for port in kinds[best]}
    return {
        port.name: (COMPUTE, "it shares a PCI port with a GPU") for port in _of_gpus(close, gpus)
    }


def _of_gpus(close: list[Port], gpus: int) -> list[Port]:
    """The ports near GPUs without those of another board (PSID) than most, which serve storage.

    Fewer ports than GPUs need others to complete them: then a card was replaced by one of another
    board.
    """
    cards: dict[str | None, set[str]] = defaultdict(set)
    for port in close:
        cards[port.device["board"] if port.device else None].add(port.card)
    taken: set[str | None] = set()
    number = 0
    for board in sorted(cards, key=lambda each: -len(cards[each])):
        if not taken or number + len(cards[board]) <= gpus:
            taken.add(board)
            number += len(cards[board])
    return [port for port in close if port.device and port.device["board"] in taken]
