"""Floors of bandwidths: which a machine has, and that no healthy one of their sources is below."""

from __future__ import annotations

import pytest

from gpufleet.catalog import bandwidth, facts, gpus, pci, rows
from gpufleet.catalog.bandwidth import Machine, applies, between, within
from gpufleet.documents import validator

TABLE = facts.document("bandwidth.yml")
MIB = 1 << 20


@pytest.mark.parametrize("row", TABLE["models"], ids=lambda row: row["names"][0])
def test_each_row_has_its_type_known_gpus_and_explained_sources(row: rows.BandwidthRow) -> None:
    assert validator.faults(rows.BandwidthRow, row, "row") == []
    assert set(row) <= set(rows.BandwidthRow.__annotations__)
    assert row["source"]
    assert set(row["source"]) <= set(TABLE["sources"])
    assert ("gb_s" in row) == ("port" in row) != ("hosts" in row)
    assert all(gpus.capabilities(name) for name in row["names"])
    assert all(pci.device(number) for number in row["devices"])


@pytest.mark.parametrize("row", TABLE["models"], ids=lambda row: row["names"][0])
def test_no_healthy_machine_and_no_public_limit_is_below_a_floor(row: rows.BandwidthRow) -> None:
    floor = row.get("gb_s") or row["hosts"]
    assert all(floor < 0.85 * reached for reached in row["healthy"])
    assert all(floor <= limit for limit in row["asked"])
    assert row["healthy"] or row["asked"]


# What nccl-tests printed of healthy machines, at the smallest size to which the figures apply.
HEALTHY = [
    ("eight A100, 512 MiB (superbench)", Machine("20b0", None, 8), 223.7),
    ("eight H100 without NVLS (nccl212)", Machine("2330", None, 8), 370),
    ("eight H200 without NVLS (stas00)", Machine("2335", None, 8), 367.2),
    ("eight B200, 256 MiB (stas00)", Machine("2901", None, 8), 646),
    ("a pair with bridges, 256 MiB (a100_pair)", Machine("2321", None, 2, bridged=True), 193.68),
]


@pytest.mark.parametrize(("machine", "reached"), [case[1:] for case in HEALTHY])
def test_what_healthy_hosts_reach_is_above_the_floor(machine: Machine, reached: float) -> None:
    floor = within(machine)
    assert floor
    assert floor.gb_s < 0.86 * reached
    assert "catalog bandwidth.yml: " in floor.because


def test_hosts_with_the_algorithm_ring_reach_more_than_their_adapters_floor() -> None:
    eight = Machine("2330", None, 8, ports_gbit_s=(400,) * 8)
    one = Machine("2330", None, 1, ports_gbit_s=(400,))
    floors = [floor.gb_s for each in (eight, one) if (floor := between([each, each]))]
    assert floors == [240, 30]
    # nccl290: 46 GB/s for each adapter. nccl2409, a faulty pair: 27, and 216.5 by eight.
    assert floors[1] < 0.7 * 46
    assert floors[1] > 27
    assert floors[0] > 216.5


@pytest.mark.parametrize(
    ("machine", "floor"),
    [
        (Machine("20b2", None, 8, ports_gbit_s=(200,) * 8), 120),
        # An adapter carries no more than its card's PCIe.
        (Machine("20b2", None, 1, ports_gbit_s=(400,)), 15),
        # What many adapters carry is no more than NVLink within a host.
        (Machine("2901", None, 8, ports_gbit_s=(800,) * 8), 240),
        (Machine("3182", None, 8, ports_gbit_s=(800,) * 8), 440),
        (Machine("2941", None, 4), 150),
        (Machine("2941", None, 1, ports_gbit_s=(400,)), None),
        (Machine("2330", None, 8), None),
        (Machine("2331", None, 8, ports_gbit_s=(400,) * 8), None),
        (Machine("26b9", None, 8, ports_gbit_s=(400,) * 2), None),
    ],
)
def test_the_floor_between_hosts(machine: Machine, floor: float | None) -> None:
    own = between([machine, machine])
    assert (own.gb_s if own else None) == floor


def test_a_group_has_the_floor_of_its_weakest_machine_and_none_where_one_is_unknown() -> None:
    strong = Machine("2330", None, 8, ports_gbit_s=(400,) * 8)
    weak = Machine("20b2", None, 8, ports_gbit_s=(200,) * 8)
    found = between([strong, weak, strong])
    assert found
    assert found.gb_s == 120
    assert between([strong, Machine("ffff", None, 8)]) is None


@pytest.mark.parametrize(
    "machine",
    [
        Machine("2330", None, 4),
        Machine("2330", None, 1),
        Machine("2321", None, 2),
        Machine("2331", "NVIDIA H100 80GB HBM3", 8),
        Machine(None, "NVIDIA H200 NVL", 8),
        Machine(None, "NVIDIA GH200 480GB", 8),
        Machine(None, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 8),
        Machine(None, None, 8),
    ],
    ids=str,
)
def test_other_numbers_and_kinds_of_gpus_have_no_floor(machine: Machine) -> None:
    assert within(machine) is None


def test_a_name_decides_where_no_row_has_the_id() -> None:
    found = within(Machine(None, "NVIDIA H100 80GB HBM3", 8))
    assert found
    assert found.gb_s == 300


@pytest.mark.parametrize(
    ("operation", "algorithm", "size", "ranks", "holds"),
    [
        ("all_reduce", "", 512 * MIB, 8, True),
        ("all_reduce", "Ring", 512 * MIB, 64, True),
        ("all_reduce", "Ring", 512 * MIB, 72, False),
        ("all_reduce", "Ring", 64 * MIB, 8, False),
        ("all_reduce", "Tree", 512 * MIB, 16, False),
        ("sendrecv", "Ring", 512 * MIB, 16, False),
        ("all_reduce", "", 512 * MIB, 1, False),
    ],
)
def test_the_floors_hold_for_large_parts_of_one_collective(
    operation: str, algorithm: str, size: int, ranks: int, holds: bool
) -> None:
    assert applies(operation, algorithm, size, ranks) is holds


def test_the_past_counts_from_five_tests_on() -> None:
    assert bandwidth.past_tests() >= 5
    # The same machine scatters by less: Azure warns of H100 at 400 of 450 GB/s.
    assert 0.67 < bandwidth.past_share() < 400 / 450
    assert set(TABLE["past"]["source"]) <= set(TABLE["sources"])
