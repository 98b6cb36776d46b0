"""Rails: the n-th compute port of each host, with the GPUs near it. Pure.

NCCL takes the ports of a test by name (`NCCL_IB_HCA`), each host its own: the third port of one may
be mlx5_3, and that of another mlx5_4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpufleet.components.base.ports import COMPUTE, EFA, Port, ports
from gpufleet.documents.sections.network import GpuPlace, Network
from gpufleet.documents.snapshot import Snapshot
from gpufleet.errors import ConfigurationError
from gpufleet.fabric.conclusion import Culprit, Kind
from gpufleet.fleet.inventory import InventoryHost

REMEDY = (
    "Declare the compute ports of each host, as many on each: gpu_expect: {network: [{ports:"
    " [mlx5_0, mlx5_1], role: compute}]}; or leave out hosts of another kind: --limit."
)
# The highest number of ports that a message names.
MOST_NAMED = 16


class RailsError(ConfigurationError):
    """Hosts that have no rails in common, or of which this is not known."""


@dataclass(frozen=True)
class Rail:
    """A host's part of a rail.

    `port`: its name there; `adapter`: the same as NCCL names it, `mlx5_3:1`; `gpus`: the numbers of
    the GPUs near it in the order of their PCI addresses; `inactive`: its state, if it carries none.
    """

    port: str
    adapter: str
    gpus: tuple[int, ...]
    inactive: str = ""


def environment(rails: Sequence[Rail]) -> dict[str, str]:
    """NCCL's variables for a test on these ports alone: no other port and no link between trays."""
    if not rails:
        return {}
    return {
        "NCCL_IB_HCA": f"={','.join(rail.adapter for rail in rails)}",
        "NCCL_CROSS_NIC": "0",
        "NCCL_MNNVL_ENABLE": "0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def rails_of(
    hosts: Sequence[InventoryHost], snapshots: Mapping[str, Snapshot]
) -> dict[str, tuple[Rail, ...]]:
    """The rails of each host, as many on each. Raises `RailsError`."""
    found: dict[str, tuple[Rail, ...]] = {}
    wrong: list[str] = []
    read = {host.name: network_of(snapshots.get(host.name)) for host in hosts}
    known = {
        host.name: compute_ports(host, section) for host in hosts if (section := read[host.name])
    }
    used = {port.position for each in known.values() for port in each if port.active}
    for host in hosts:
        section = read[host.name]
        # The second ports of cards have no cable on many machines.
        own = [port for port in known.get(host.name, ()) if port.position in used]
        if section is None:
            wrong.append(f"{host.name}: its ports were not read")
        elif any(port.layer == EFA or not port.port for port in own):
            wrong.append(f"{host.name}: {_names(own)}: NCCL takes only RDMA ports by name, not EFA")
        elif not own:
            wrong.append(f"{host.name}: no active port is known to serve its GPUs")
        elif not (gpus := _gpus(host, section)):
            wrong.append(f"{host.name}: it shows no GPU, and gpu_expect.count declares none")
        else:
            found[host.name] = tuple(
                Rail(
                    port.name,
                    f"{port.device['name']}:{port.port['port']}",
                    numbers,
                    "" if port.active else port.state_text,
                )
                for port, numbers in zip(own, nearest(own, gpus), strict=True)
                if port.device and port.port
            )
    if not wrong and len({len(each) for each in found.values()}) > 1:
        wrong = [
            f"{name}: {len(each)} compute ports: {', '.join(rail.port for rail in each)}"
            for name, each in found.items()
        ]
    if wrong:
        raise RailsError(
            "Nothing was tested: the hosts have no rails in common.\n" + "\n".join(wrong),
            "",
            REMEDY,
        )
    return found


def network_of(snapshot: Snapshot | None) -> Network | None:
    """The section of a host's ports, if it was read."""
    section = snapshot["sections"].get("network") if snapshot else None
    return section.get("data") if section else None


def compute_ports(host: InventoryHost, section: Network) -> list[Port]:
    """The ports that serve a host's GPUs: as it declares, else by their places."""
    expect = host.spec.expect
    found = ports(section, expect.get("network"), expect.get("count") or 0)
    return [port for port in found if port.role == COMPUTE]


def nearest(own: Sequence[Port], gpus: Sequence[GpuPlace | None]) -> list[tuple[int, ...]]:
    """For each port the numbers of its GPUs: each GPU is with one port, and no port without one."""
    found: list[list[int]] = [[] for _ in own]
    for number, gpu in enumerate(gpus):
        best = max(
            range(len(own)), key=lambda at: (*_closeness(own[at], gpu), -len(found[at]), -at)
        )
        found[best].append(number)
    for port, numbers in zip(own, found, strict=True):
        if not numbers:
            # More ports than GPUs: some GPU serves two of them.
            numbers.append(max(range(len(gpus)), key=lambda at: (*_closeness(port, gpus[at]), -at)))
    return [tuple(numbers) for numbers in found]


def _closeness(port: Port, gpu: GpuPlace | None) -> tuple[int, bool]:
    """How many PCI ports above both are the same, and whether both are at one processor."""
    if port.device is None or gpu is None:
        return 0, False
    shared = 0
    for one, other in zip(port.device["path"], gpu["path"], strict=False):
        if one != other:
            break
        shared += 1
    numa = port.device["numa"]
    return shared, numa is not None and numa >= 0 and numa == gpu["numa"]


def _gpus(host: InventoryHost, section: Network) -> list[GpuPlace | None]:
    """The places of a host's GPUs in CUDA's order; None for one that the PCI bus does not show."""
    seen = sorted(section["gpus"], key=lambda gpu: gpu["address"])
    return [*seen] or [None] * (host.spec.expect.get("count") or 0)


def _names(own: Iterable[Port]) -> str:
    return ", ".join([port.name for port in own][:MOST_NAMED])


def culprit_name(culprit: Culprit, rails: Mapping[str, Sequence[Rail]]) -> str:
    """A culprit in a few words; ports and rails with the names that the hosts have for them."""
    if culprit.kind is Kind.PORT and culprit.members[0] in rails:
        own = rails[culprit.members[0]][culprit.rails[0]]
        state = f", {own.inactive}" if own.inactive else ""
        return f"port {own.port} of {culprit.members[0]} (rail {culprit.rails[0]}{state})"
    if culprit.kind is Kind.RAIL and rails:
        names = dict.fromkeys(each[culprit.rails[0]].port for each in rails.values())
        return f"rail {culprit.rails[0]} ({', '.join([*names][:MOST_NAMED])})"
    return culprit.name
