"""The next run's work on the network adapters of a host."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.changes import changes
from gpufleet.components.resolver import resolve
from tests.support.host_documents import Row, gpu_host, section
from tests.support.rdma_host import ROLE_FILES, device, network, not_set_up, set_up

ADAPTERS = ["0000:40:00.0", "0000:41:00.0"]
DECLARED = {"driver": "inbox", "max_read_request_bytes": 4096, "acs": "off"}
PACKAGES = ("rdma-core", "ibverbs-providers", "infiniband-diags")


def host(setup: Row, *, read_request: int = 4096) -> Row:
    """A host with two adapters beside two GPUs, and the packages of its distribution."""
    devices = [device(number, max_read_request=read_request) for number in range(2)]
    return gpu_host(
        "debian-12",
        "2330",
        "2330",
        gpus={"hypervisor": False},
        network=network(devices, 2, setup=setup),
        packages={"network": dict.fromkeys(PACKAGES, "44.0-2")},
    )


def rows(found: Row, declared: Row | None = None) -> list[tuple[str, str, str]]:
    """The changes as (what, action, because)."""
    plan = resolve({"gpu_network": DECLARED if declared is None else declared}, found)
    assert plan["problems"] == []
    return [(row["what"], row["action"], row["because"]) for row in changes(plan, found)]


def test_a_host_that_is_set_up_is_left_alone() -> None:
    assert rows(host(set_up(ADAPTERS))) == []


def test_a_fresh_host_is_set_up() -> None:
    fresh = host(not_set_up(), read_request=512)
    section(fresh, "packages")["network"] = {}
    [(what, action, because)] = rows(fresh)
    assert (what, action) == ("network", "repair")
    assert because.startswith("packages of the inbox network driver are not installed")
    assert because.endswith("(and 3 more)")


def test_a_reset_device_is_set_again() -> None:
    [(_, action, because)] = rows(host(set_up(ADAPTERS), read_request=512))
    assert (action, because) == (
        "repair",
        "MaxReadReq is not 4096 bytes: mlx5_0 has 512, mlx5_1 has 512",
    )


def test_everything_of_ours_is_removed_where_nothing_is_declared() -> None:
    found = host(set_up(ADAPTERS))
    plan = resolve({"gpu_toolkits": []}, found)
    [row] = changes(plan, found)
    assert (row["what"], row["id"], row["action"]) == ("network", "adapters", "remove")
    assert "is no longer declared (gpu_network)" in row["because"]
    assert changes(resolve({}, host(not_set_up())), host(not_set_up())) == []


@pytest.mark.parametrize(
    ("declared", "left"),
    [
        ({"driver": "inbox"}, ROLE_FILES[:3]),
        ({"max_read_request_bytes": 4096}, ROLE_FILES[3:]),
    ],
)
def test_a_part_that_is_no_longer_declared_goes(declared: Row, left: list[str]) -> None:
    settings = {"max_read_request": 4096, "acs_off": False, "adapters": ADAPTERS}
    [(_, action, because)] = rows(host(set_up(ADAPTERS, settings=settings)), declared)
    assert action == "repair"
    assert all(name in because for name in left)
    kept = [name for name in ROLE_FILES if name not in left]
    assert rows(host(set_up(ADAPTERS, settings=settings, files=kept)), declared) == []


def test_what_only_a_reboot_helps_is_no_change() -> None:
    setup: dict[str, Any] = set_up(ADAPTERS, loaded_driver="KERNELS", installed_driver="DOCAS")
    setup["on_disk"]["mlx5_core"] = "extra/mlnx-ofa_kernel/drivers/net/mlx5_core.ko.xz"
    assert rows(host(setup), {**DECLARED, "driver": "doca"}) == []


@pytest.mark.parametrize("name", ["network", "kernel", "packages"])
def test_a_section_that_was_not_read_is_neither_set_up_nor_a_reason_to(name: str) -> None:
    found = host(set_up(ADAPTERS))
    found["sections"][name] = {"state": "hung", "data": None, "error": "planted"}
    [(what, action, because)] = rows(found)
    assert (what, action) == ("network", "unread")
    assert because.startswith(f"the host's {name} could not be read (planted;")
