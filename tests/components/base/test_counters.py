"""How fast error counters grow: what is known of it, and what is beyond a limit."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.catalog import network as facts
from gpufleet.catalog.facts import document
from gpufleet.components.base import counters
from gpufleet.components.base import ports as roles
from gpufleet.components.base.counters import Growth, Reading, rates
from gpufleet.on_host import nvlink
from tests.support.healthy_host import nvlinks
from tests.support.rdma_host import device, interface, network, port, roce_port

HOUR, DAY = 3600.0, 86400.0


def grown(
    name: str, before: float, now: float, seconds: float = DAY, *, loads: tuple[int, int] = (1, 1)
) -> Growth:
    (found,) = rates(Reading(loads[0], {name: before}), Reading(loads[1], {name: now}), seconds)
    return found


@pytest.mark.parametrize(
    ("name", "growth", "seconds", "beyond"),
    [
        ("link_downed", 0, DAY, False),
        ("link_downed", 1, DAY, True),
        ("symbol_error", 120, HOUR, False),
        ("symbol_error", 121, HOUR, True),
        ("symbol_error", 121, DAY, False),
        ("symbol_error", 24 * 121, DAY, True),
        ("link_error_recovery", 6, 60, True),
        ("link_error_recovery", 200, DAY, False),
        ("rnr_nak_retry_err", 1, DAY, True),
        ("carrier_changes", 9, DAY, False),
        ("carrier_changes", 10, DAY, True),
        # A cable that is replaced between two readings is no flapping of a day.
        ("carrier_changes", 4, HOUR, False),
        ("symbol_error", 100, 60, False),
        ("replay", 1, DAY, True),
    ],
)
def test_a_growth_is_beyond_its_limit_or_not(
    name: str, growth: float, seconds: float, *, beyond: bool
) -> None:
    found = grown(name, 3, 3 + growth, seconds)
    assert (found.state, found.growth, found.limit is not None) == ("known", growth, beyond)


def test_a_smaller_value_was_cleared_and_one_at_its_maximum_is_not_known() -> None:
    assert grown("link_downed", 9, 2).state == "reset"
    assert grown("symbol_error", 65535, 65535) == Growth("symbol_error", "saturated", None, DAY)
    assert grown("symbol_error", 65535, 12).state == "reset"


def test_one_that_has_reached_its_maximum_since_grew_by_so_much_at_least() -> None:
    found = grown("link_downed", 200, 255)
    assert (found.state, found.growth, found.limit is not None) == ("saturated", 55, True)
    assert grown("symbol_error", 65000, 65535).limit is None


def test_counters_of_another_boot_are_not_compared() -> None:
    assert grown("link_downed", 1, 200, loads=(1, 2)).state == "reset"


def test_a_counter_without_a_limit_or_without_a_past_has_no_growth() -> None:
    assert rates(Reading(1, {}), Reading(1, {"link_downed": 3}), DAY) == []
    assert rates(Reading(1, {"port_xmit_wait": 1}), Reading(1, {"port_xmit_wait": 9}), DAY) == []
    assert rates(Reading(1, {"link_downed": 1}), Reading(1, {"link_downed": 3}), 0) == []


def test_each_port_has_a_reading_of_its_own_by_its_guid() -> None:
    own = [port(0, port=1), port(7, port=2), port(0, port=3, gids=[])]
    found = roles.ports(network([device(0, ports=own)]))
    names = [guid for guid, _ in counters.readings(found, "boot")]
    assert names == ["a088c20300ab0000", "a088c20300ab0007", "a088c20300ab0000-3"]
    assert list(counters.readings(found, None)) == []


def test_a_gid_of_an_ip_address_names_no_port() -> None:
    gids = [{**gid, "index": gid["index"] + 2} for gid in roce_port(5)["gids"][2:]]
    found = roles.ports(network([device(0, roce_port(5, gids=gids))]))
    assert [guid for guid, _ in counters.readings(found, "boot")] == ["a088c20300ab0000-1"]


def test_the_changes_of_a_carrier_are_those_of_the_ports_interface() -> None:
    own = network([device(0)], interfaces=[interface(0, carrier_changes=12)])
    ((_, reading),) = counters.readings(roles.ports(own), "boot")
    assert (reading.counters["carrier_changes"], reading.counters["link_downed"]) == (12, 0)


def test_the_nvlinks_of_each_gpu_have_a_reading_by_its_uuid() -> None:
    smi: Any = {
        "devices": [{"address": f"0000:0{at}:00.0", "uuid": f"GPU-{at}"} for at in range(3)],
        "nvlink": [nvlinks(0, errors={"replay": 3}), nvlinks(1, errors={}), nvlinks(7)],
    }
    assert [(uuid, reading.counters) for uuid, reading in counters.link_readings(smi, "boot")] == [
        ("GPU-0", {"replay": 3.0})
    ]
    assert list(counters.link_readings(smi, None)) == []


def test_every_counter_of_nvlinks_has_a_limit_of_its_own() -> None:
    names = [*nvlink.COUNTERS, *nvlink.FIELDS.values()]
    assert sorted(names) == sorted(row["counter"] for row in document("fabric.yml")["rates"])
    assert not set(names) & {row["counter"] for row in facts._table()["rates"]}


def test_every_limit_is_of_a_counter_that_the_kernel_has() -> None:
    known = {"rnr_nak_retry_err", "local_ack_timeout_err", "roce_slow_restart", "carrier_changes"}
    for row in facts._table()["rates"]:
        assert facts.counter_limit(row["counter"]) or row["counter"] in known
