"""Ports, NVLinks and rails in the page: what is shown, once, and never as healthy unread."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from gpufleet.fleet.host_fabric import HostFabric, fabric_of, read_fabric
from gpufleet.fleet.session import HostRun, Session
from gpufleet.judge import judge
from gpufleet.report import fleet_fabric, page
from tests.support import rdma_host
from tests.support.healthy_host import Document, data, document, nvlinks, with_cards
from tests.support.rdma_host import DOWN, device

Change = Callable[[Document], None]
INTERFACE: Document = {
    "name": "eno1",
    "address": "0000:f1:00.0",
    "driver": "i40e",
    "type": 1,
    "operstate": "up",
    "carrier": 1,
    "carrier_changes": 2,
    "carrier_up_count": 1,
    "speed": 10000,
    "index": 2,
    "mtu": 1500,
    "dev_port": 0,
    "master": None,
    "default_route": True,
}


def host(*changes: Change, declared: bool = False, gpus: int = 4) -> tuple[Document, Document]:
    """A plan and a snapshot with a compute port for each GPU, and two for storage."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_cards(plan, snapshot, gpus)
    if not declared:
        del plan["expect"]["network"]
    storage: Any = {"path": ["0000:f0:01.0"], "board": "MT_0000000359", "firmware": "20.35.1012"}
    devices = [device(number) for number in range(gpus)]
    devices += [device(number, **storage) for number in (gpus, gpus + 1)]
    data(snapshot, "network").update(rdma_host.network(devices, gpus))
    for change in changes:
        change(data(snapshot, "network"))
    return plan, snapshot


def of(number: int, **values: Any) -> Change:
    """A change of a port."""

    def change(network: Document) -> None:
        network["devices"][number]["ports"][0].update(copy.deepcopy(values))

    return change


def rows(found: tuple[Document, Document]) -> list[tuple[str, str, str]]:
    plan, snapshot = found
    return [(row.names, row.state, row.errors) for row in fabric_of(snapshot, plan).ports]


COMPUTE, STORAGE = "mlx5_0, mlx5_1, mlx5_2, mlx5_3", "mlx5_4, mlx5_5"


def test_a_healthy_host_has_one_row_for_each_role() -> None:
    plan, snapshot = host()
    compute, storage = fabric_of(snapshot, plan).ports
    assert (compute.names, compute.role, compute.because) == (
        COMPUTE,
        "compute",
        "it shares a PCI port with a GPU",
    )
    assert (compute.state, compute.rate, compute.firmware, compute.errors) == (
        "up",
        "400 Gb/s",
        "28.41.1000 (MT_0000000838)",
        "0",
    )
    assert (storage.names, storage.role) == (STORAGE, "storage")


@pytest.mark.parametrize(
    ("change", "odd"),
    [
        (of(1, **DOWN), "down"),
        (of(1, rate="200 Gb/sec (2X NDR)"), "slower"),
        (of(1, state=None, phys_state=None), "unread"),
    ],
)
def test_what_the_check_calls_a_fault_is_a_row_of_its_own(change: Change, odd: str) -> None:
    plan, snapshot = host(change)
    result = judge.judge(plan, snapshot)
    [check] = [each for each in result["checks"] if each["id"] == "network.ports"]
    assert check["verdict"] == ("INCONCLUSIVE" if odd == "unread" else "FAIL")
    assert rows((plan, snapshot)) == [
        ("mlx5_0, mlx5_2, mlx5_3", "up", "0"),
        ("mlx5_1", odd, "0"),
        (STORAGE, "up", "0"),
    ]


def test_a_port_that_never_had_a_cable_is_no_fault() -> None:
    found = rows(host(of(4, **DOWN), of(5, **DOWN)))
    assert found == [(COMPUTE, "up", "0"), (STORAGE, "idle", "0")]


def test_counters_that_were_not_read_are_not_0() -> None:
    counters = {"symbol_error": 7, "link_downed": 0, "port_rcv_errors": None, "port_xmit_wait": 9}
    assert rows(host(of(1, counters=counters), of(2, counters=None))) == [
        (
            COMPUTE,
            "up",
            "mlx5_1: symbol_error 7, port_rcv_errors not read; mlx5_2: not read",
        ),
        (STORAGE, "up", "0"),
    ]


def test_nvlinks_alike_are_one_row_and_unread_ones_are_not_0() -> None:
    plan, snapshot = host()
    data(snapshot, "smi")["nvlink"] = [
        nvlinks(0),
        nvlinks(1, active=16),
        nvlinks(2, errors={"replay": 3}),
        nvlinks(3, errors={}, links=0),
        {**nvlinks(4), "links": None, "errors": {}},
        nvlinks(5, links=4, active=0),
    ]
    found = [(row.gpus, row.active, row.errors) for row in fabric_of(snapshot, plan).links]
    assert found == [
        ("0, 2", "18 of 18", "GPU 2: replay 3"),
        ("1", "16 of 18; inactive: 16, 17", "0"),
        ("4", "not read", "not read"),
        ("5", "0 of 4", "0"),
    ]


@pytest.mark.parametrize("damage", [None, [], 7, {"devices": [None]}, {"devices": 3}])
def test_a_damaged_section_has_no_rows(damage: Any) -> None:
    plan, snapshot = host()
    snapshot["sections"]["network"]["data"] = damage
    assert read_fabric(snapshot, plan).ports == ()
    assert read_fabric({"sections": None}, plan) == HostFabric()
    assert read_fabric(None, {}) == HostFabric()


# -- the fleet -------------------------------------------------------------------------------------


def fleet(**changes: list[Change]) -> dict[str, HostFabric]:
    found = {}
    for name, own in changes.items():
        plan, snapshot = host(*own)
        found[name] = fabric_of(snapshot, plan)
    return found


def test_the_matrix_has_the_hosts_with_a_fault_and_counts_it_by_rail() -> None:
    found = fleet_fabric.rails(
        fleet(
            a=[],
            b=[of(3, **DOWN)],
            c=[of(3, **DOWN), of(1, rate="200 Gb/sec (2X NDR)")],
            d=[of(0, state=None)],
            # Storage is no rail.
            e=[of(4, **DOWN)],
        )
    )
    assert (found.hosts, found.names) == (5, ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"])
    assert {name: [cell.state for cell in cells] for name, cells in found.rows} == {
        "c": ["up", "slower", "up", "down"],
        "b": ["up", "up", "up", "down"],
        "d": ["unread", "up", "up", "up"],
    }
    assert found.rows[0][0] == "c"
    assert found.faults == [1, 1, 0, 2]


def test_hosts_with_one_port_have_no_rails() -> None:
    plan, snapshot = host(gpus=1)
    assert fleet_fabric.rails({"a": fabric_of(snapshot, plan)}).hosts == 0


# -- the embedded document -------------------------------------------------------------------------


def session(count: int) -> Session:
    hosts = []
    for number in range(count):
        plan, snapshot = host(*([of(1, **DOWN)] if number % 2 else []))
        hosts.append(HostRun(f"gpu{number}", snapshot, plan, judge.judge(plan, snapshot)))
    return Session(hosts)


def test_hosts_that_are_alike_share_their_rows() -> None:
    found = page.document(session(4))
    assert [each["fabric"] for each in found["hosts"]] == [1, 0, 1, 0]
    assert len(found["fabrics"]) == 2
    ports, links = found["fabrics"][1]
    letter, names, role, *_ = found["rows"][ports[0]]
    assert (letter, found["texts"][names], found["texts"][role]) == ("P", COMPUTE, "compute")
    letter, gpus, active, *_ = found["rows"][links[0]]
    assert (letter, found["texts"][gpus], found["texts"][active]) == ("", "0, 1, 2, 3", "18 of 18")
    assert [found["rows"][row][0] for row in found["fabrics"][0][0]] == ["P", "F", "P"]


def test_where_room_is_short_the_worst_hosts_have_their_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = session(2)
    [*_, bad] = fleet_fabric.fabrics(two).values()
    texts = {text for row in bad.ports for text in fleet_fabric.port_row(row)[1:]}
    texts |= {text for row in bad.links for text in fleet_fabric.link_row(row)}
    monkeypatch.setattr(fleet_fabric, "MOST_TEXTS", sum(map(len, texts)))
    assert [each["fabric"] for each in page.document(two)["hosts"]] == [None, 0]


def test_a_long_text_of_a_host_is_cut() -> None:
    plan, snapshot = host(lambda network: network["devices"][0].update(firmware="x" * 5000))
    longest = max(
        len(text) for row in fabric_of(snapshot, plan).ports for text in fleet_fabric.port_row(row)
    )
    assert fleet_fabric.MOST_TEXT < longest < fleet_fabric.MOST_TEXT + 40


def test_declared_ports_say_so() -> None:
    plan, snapshot = host(declared=True)
    assert {row.because for row in fabric_of(snapshot, plan).ports} == {
        "gpu_expect.network[0]",
    }


def test_a_host_without_adapters_has_no_rails(plan: Document, snapshot: Document) -> None:
    """A host without RDMA devices has the rows of its interfaces, without counters."""
    data(snapshot, "network")["interfaces"] = [INTERFACE]
    found = fabric_of(snapshot, plan)
    assert [(row.names, row.errors, row.firmware) for row in found.ports] == [("eno1", "–", "")]
    assert found.rails == ()


def test_ports_are_in_the_order_of_their_numbers() -> None:
    devices = [device(0), device(1, name="mlx5_10"), device(2)]
    plan, snapshot = host(lambda network: network.update(devices=devices))
    assert [name for name, _ in fabric_of(snapshot, plan).rails] == ["mlx5_0", "mlx5_2", "mlx5_10"]
