"""The faults of a fabric that have to be seen, each with the tests that plant it.

The tests of `LOOK` see a fault in one look at a host, on documents or on a machine that is planted
as files; those of `NIGHTS` need the night before, since one look does not show a rate. That a fault
is seen by its own check alone is part of the tests themselves; hosts are judged one by one, and
those of a rack in tests/fleet/test_siblings.py.
"""

from __future__ import annotations

import importlib

import pytest

from tests.support.check_faults import REGISTRY, faults

machines = importlib.import_module("tests.components.network.test_machines")

# {fault: the names of its breaks in tests/components/faults, then those in test_machines.py}
LOOK: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "an NVLink is down": (("links-one_nvlink_of_18_is_down",), ()),
    "half of the NVLinks are down": (("links-half_of_the_nvlinks_are_down",), ()),
    "a bridge is lost": (
        (
            "links-a_declared_bridge_is_down",
            "links-a_card_without_the_bridge_of_its_siblings",
            "links-two_of_three_bridges",
            "links-one_link_of_a_bridge_is_down",
        ),
        (),
    ),
    "links are up, and no pair has peer access": (
        ("links-links_that_are_up_and_no_peer_access",),
        (),
    ),
    "a clique or a domain is odd": (
        (
            "rack-one_card_in_another_clique_than_its_siblings",
            "rack-host_in_another_clique_than_its_rack",
            "rack-host_in_another_domain_than_its_rack",
            "rack-other_clique_than_declared",
        ),
        (),
    ),
    "a counter is saturated": (
        ("network-counter_at_its_maximum",),
        ("h100: mlx5_1: symbol_error 65535",),
    ),
    "a port is down": (
        ("network-one_of_eight_ports_down", "network-declared_port_disabled"),
        ("h100: mlx5_5 is down", "efa: rdmap9s0 is down", "gb200: mlx5_1 is down"),
    ),
    "a port has half of its rate": (
        ("network-half_the_lanes_of_a_port", "network-slower_than_declared"),
        ("a100: mlx5_4 carries 100 Gb/sec (2X HDR)",),
    ),
    "a firmware is wrong": (
        ("network-firmware_of_one_adapter_is_older", "network-other_firmware_than_declared"),
        ("b200: mlx5_7 has 28.39.2048",),
    ),
    "a board (PSID) is wrong": (
        ("network-board_of_one_adapter_is_another", "network-other_board_than_declared"),
        ("h100: mlx5_7 has board MT_0000000970",),
    ),
    "a module is missing": (
        (
            "network-module_of_the_adapters_not_loaded",
            "network-module_of_management_not_loaded",
            "gpudirect-declared_module_of_gdrcopy_not_loaded",
        ),
        ("b300: /dev/infiniband/umad*: the module ib_umad is not loaded",),
    ),
    "a GID is wrong": (
        (
            "network-rail_without_an_address",
            "network-gid_of_a_rail_at_another_index",
            "network-declared_gid_not_there",
            "network-declared_gid_of_another_type",
            "lossless-declared_gid_without_an_address",
            "lossless-lossless_class_with_a_gid_of_version_1",
        ),
        ("h200 with roce: mlx5_5 has another RoCE v2 GID",),
    ),
    "a lossless class is set up by halves": (
        (
            "lossless-flow_control_of_other_priorities",
            "lossless-receiver_without_ecn",
            "lossless-one_port_trusts_another_field",
        ),
        (),
    ),
    "access control (ACS) is on": (
        ("gpudirect-access_control_on",),
        ("h100: 0004:02:01.0 (request redirect, completion redirect, upstream forwarding)",),
    ),
    "the IOMMU translates": (
        ("gpudirect-iommu_that_translates",),
        ("a100: The IOMMU translates addresses of",),
    ),
    "peermem is of another driver": (
        ("gpudirect-peermem_of_another_driver",),
        ("b200: nvidia_peermem is of driver 535.54.03, loaded is",),
    ),
    "bridges to the NVSwitches are there": (
        ("network-bridges_to_the_nvswitches", "network-product_data_not_readable"),
        ("b200: mlx5_2 is down", "b300: mlx5_3 is down"),
    ),
}
# {fault: (module, its tests)}
NIGHTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "a counter rises": (
        "tests.watch.test_port_errors",
        (
            "test_a_link_that_went_down_since_the_last_night_is_bad",
            "test_errors_of_nvlinks_are_those_of_their_gpu",
            "test_a_rate_that_only_warns_is_a_note",
        ),
    ),
    "a counter was reset": (
        "tests.watch.test_port_errors",
        ("test_a_host_that_was_booted_or_a_counter_that_was_cleared_starts_again",),
    ),
    "a link flaps": (
        "tests.watch.test_port_errors",
        (
            "test_a_link_that_flaps_is_a_note",
            "test_a_link_that_went_down_since_the_last_night_is_bad",
        ),
    ),
    "a bridge is lost that was there": (
        "tests.watch.test_drift",
        ("test_active_nvlinks_are_compared_with_the_past",),
    ),
}


@pytest.mark.parametrize("fault", LOOK)
def test_each_fault_of_one_look_is_planted(fault: str) -> None:
    documents, planted = LOOK[fault]
    faults()
    assert [name for name in documents if name not in REGISTRY] == []
    assert [name for name in planted if name not in machines.ONE_FAULT] == []


@pytest.mark.parametrize("fault", NIGHTS)
def test_each_fault_of_two_nights_is_planted(fault: str) -> None:
    module, names = NIGHTS[fault]
    tests = importlib.import_module(module)
    assert [name for name in names if not callable(getattr(tests, name, None))] == []


def test_twelve_kinds_of_machines_are_planted_healthy() -> None:
    assert len(machines.MACHINES) >= 12
