"""Kinds of machines in a fabric test, and the least bandwidth of healthy ones. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpufleet.catalog import bandwidth
from gpufleet.catalog.bandwidth import Machine
from gpufleet.components.base.cards import of_driver
from gpufleet.components.base.host import Host
from gpufleet.components.base.ports import EFA, Port
from gpufleet.documents.snapshot import Snapshot
from gpufleet.fabric.rounds import GroupTest
from gpufleet.fabric.threshold import Floor
from gpufleet.fleet.inventory import InventoryHost

from .collectives import Measure, Member
from .rails import compute_ports, network_of


@dataclass(frozen=True)
class Machines:
    """The machines of a test by their hosts, and what is measured there."""

    known: Mapping[str, Machine]
    members: Mapping[str, Member]
    measure: Measure

    def floor(self, test: GroupTest) -> Floor | None:
        """The least that these hosts reach; None where no figure of the catalog holds for them."""
        found = [self._taking_part(name, test.rails) for name in test.members]
        machines = [machine for machine in found if machine]
        if len(machines) < len(found) or not bandwidth.applies(
            self.measure.operations[0],
            self.measure.environment.get("NCCL_ALGO", ""),
            max(self.measure.sizes),
            sum(machine.gpus for machine in machines),
        ):
            return None
        if len(machines) == 1:
            return bandwidth.within(machines[0])
        return bandwidth.between(machines)

    def _taking_part(self, name: str, rails: Sequence[int]) -> Machine | None:
        """The part of a host that a test on these rails uses."""
        machine, own = self.known.get(name), self.members[name].rails
        if machine is None or not own:
            return machine
        gpus = {gpu for rail in rails for gpu in own[rail].gpus}
        rates = machine.ports_gbit_s[:1] * len(rails)
        return replace(machine, gpus=len(gpus), ports_gbit_s=rates)


def machines_of(
    hosts: Sequence[InventoryHost], snapshots: Mapping[str, Snapshot]
) -> dict[str, Machine]:
    """The machine of each host whose GPUs were read and are all of one model."""
    return {
        host.name: machine
        for host in hosts
        if (snapshot := snapshots.get(host.name)) and (machine := _machine(host, snapshot))
    }


def _machine(host: InventoryHost, snapshot: Snapshot) -> Machine | None:
    cards = of_driver(Host(snapshot))
    if len({card["device"] for card in cards}) != 1:
        return None
    expect, network = host.spec.expect, network_of(snapshot)
    own = compute_ports(host, network) if network else []
    return Machine(
        cards[0]["device"],
        expect.get("model"),
        expect.get("count") or len(cards),
        bool(expect.get("nvlinks")),
        rates_of(own),
    )


def rates_of(own: Sequence[Port]) -> tuple[float, ...]:
    """The rates of ports in Gb/s, that of most for a port that is down; empty: not known."""
    if any(port.layer == EFA or not port.port for port in own):
        return ()
    used = {port.position for port in own if port.active}
    wired = [port for port in own if port.position in used]
    rates = [
        rate.gb_s for port in wired if port.active and (rate := port.rate) and not rate.unknown
    ]
    return (statistics.mode(rates),) * len(wired) if rates else ()
