"""Kinds of machines in a fabric test, by what a probe read, and their floors."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.catalog.bandwidth import Machine
from gpufleet.fabric.rounds import GroupTest
from gpufleet.fleet.collectives import Measure, Member
from gpufleet.fleet.inventory import Connection, InventoryHost
from gpufleet.fleet.machines import Machines, machines_of
from gpufleet.fleet.rails import rails_of
from tests.support.healthy_host import document
from tests.support.rdma_host import DOWN, device, network, port, roce_port

LARGE = Measure(("all_reduce",), (1 << 20, 512 << 20), environment={"NCCL_ALGO": "Ring"})
EIGHT = [device(at) for at in range(8)]


def snapshot(section: Any, *devices: str) -> Any:
    found = document("snapshot.json")
    found["sections"]["network"]["data"] = section
    found["sections"]["gpus"]["data"]["pci"] = [
        {"address": f"0000:{at:02x}:00.0", "vendor": "0x10de", "device": each, "driver": "nvidia"}
        for at, each in enumerate(devices)
    ]
    return found


def host(name: str, **expect: Any) -> InventoryHost:
    return InventoryHost(name, {"gpu_expect": expect}, Connection(name))


def machine(section: Any, *devices: str, **expect: Any) -> Machine | None:
    return machines_of([host("a", **expect)], {"a": snapshot(section, *devices)}).get("a")


H100 = ("0x2330",) * 8


@pytest.mark.parametrize(
    ("section", "rates"),
    [
        (network(EIGHT, 8), (400.0,) * 8),
        # A port that is down, or slower, counts as the others do.
        (network([device(0, port(0, **DOWN)), *EIGHT[1:]], 8), (400.0,) * 8),
        (network([device(0, port(0, rate="200 Gb/sec (4X HDR)")), *EIGHT[1:]], 8), (400.0,) * 8),
        (network([device(at, roce_port(at)) for at in range(8)], 8), (400.0,) * 8),
        (network([device(at, vendor="0x1d0f") for at in range(8)], 8), ()),
        (network([device(at, port(at, **DOWN)) for at in range(8)], 8), ()),
        (network([], 8), ()),
        (None, ()),
    ],
    ids=["healthy", "down", "half", "RoCE", "EFA", "all down", "none", "not read"],
)
def test_a_machine_has_the_rates_of_its_compute_ports(
    section: Any, rates: tuple[float, ...]
) -> None:
    assert machine(section, *H100) == Machine("0x2330", None, 8, ports_gbit_s=rates)


def test_a_declared_number_of_gpus_and_declared_nvlinks_count() -> None:
    found = machine(network([], 2), "0x2321", "0x2321", count=2, nvlinks=12)
    assert found == Machine("0x2321", None, 2, bridged=True)


@pytest.mark.parametrize("devices", [(), ("0x2330", "0x2335")], ids=["none", "two models"])
def test_gpus_that_were_not_read_or_differ_are_no_known_machine(devices: tuple[str, ...]) -> None:
    assert machine(network(EIGHT, 8), *devices) is None


def machines(measure: Measure = LARGE, *, rails: bool = False) -> Machines:
    hosts = [host("a"), host("b")]
    snapshots = {each.name: snapshot(network(EIGHT, 8), *H100) for each in hosts}
    own = rails_of(hosts, snapshots) if rails else {}
    members = {
        each.name: Member(each, "/opt/nccl", False, None, own.get(each.name, ())) for each in hosts
    }
    return Machines(machines_of(hosts, snapshots), members, measure)


@pytest.mark.parametrize(("names", "floor"), [(("a",), 300), (("a", "b"), 240), (("a", "z"), None)])
def test_the_floor_of_a_test_is_that_of_its_hosts(names: tuple[str, ...], floor: int) -> None:
    known = machines()
    known = Machines(known.known, {**known.members, "z": known.members["a"]}, LARGE)
    found = known.floor(GroupTest(names, (0,)))
    assert (found.gb_s if found else None) == floor


def test_some_rails_have_the_floor_of_their_ports() -> None:
    known = machines(rails=True)
    floors = [known.floor(GroupTest(("a", "b"), own)) for own in ((3,), (0, 1), tuple(range(8)))]
    assert [floor.gb_s for floor in floors if floor] == [30, 60, 240]


@pytest.mark.parametrize(
    "measure",
    [
        Measure(("all_reduce",), (64 << 20,)),
        Measure(("sendrecv", "all_reduce"), (512 << 20,)),
        Measure(("all_reduce",), (512 << 20,), environment={"NCCL_ALGO": "Tree"}),
    ],
    ids=["small", "sendrecv", "Tree"],
)
def test_other_measures_have_no_floor(measure: Measure) -> None:
    assert machines(measure).floor(GroupTest(("a", "b"), (0,))) is None
