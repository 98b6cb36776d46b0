"""The plan's `network`: what a run installs, loads and sets, and what is refused beforehand."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.resolver import resolve
from tests.support.host_documents import Row, codes, gpu_host, refusal
from tests.support.rdma_host import REPOSITORY, device, network, not_set_up

DOCAS = "updates/dkms/mlx5_core.ko.zst"
SETTINGS = {"max_read_request_bytes": 4096, "acs": "off"}


def host(system: str = "debian-12", *, hypervisor: bool | None = False, **setup: Any) -> Row:
    """A host with two GPUs, each with an adapter beside it, and one adapter of storage."""
    devices = [device(number) for number in range(2)]
    devices.append(device(9, type="MT4123", board="MT_0000000223", path=["0000:99:01.0"]))
    return gpu_host(
        system,
        "2330",
        "2330",
        gpus={"hypervisor": hypervisor},
        network=network(devices, 2, setup=not_set_up(**setup)),
    )


def planned(declared: Row, found: Row | None = None) -> Row:
    """The plan's `network` of a declaration without problems."""
    plan = resolve({"gpu_network": declared}, found)
    assert plan["problems"] == []
    assert plan["network"] is not None
    return {**plan["network"]}


def test_nothing_of_the_network_is_planned_where_nothing_is_declared() -> None:
    assert resolve({"gpu_toolkits": []}, host())["network"] is None


@pytest.mark.parametrize(
    ("system", "packages"),
    [
        ("debian-12", ["rdma-core", "ibverbs-providers", "infiniband-diags"]),
        ("ubuntu-22.04", ["rdma-core", "ibverbs-providers", "infiniband-diags"]),
        ("rhel-9", ["rdma-core", "libibverbs", "infiniband-diags"]),
    ],
)
def test_inbox_is_the_distributions_packages_and_modules(system: str, packages: list[str]) -> None:
    found = planned({"driver": "inbox"}, host(system))
    assert found["packages"] == packages
    assert found["modules"] == ["mlx5_ib", "ib_uverbs", "ib_umad", "rdma_ucm"]
    assert (found["max_read_request"], found["acs_off"], found["repository"]) == (None, False, None)


def test_peermem_is_loaded_last_and_never_by_default() -> None:
    assert planned({"driver": "inbox", "peermem": True}, host())["modules"][-1] == "nvidia_peermem"
    assert planned({"peermem": True}, host())["modules"][0] == "mlx5_ib"
    assert planned(SETTINGS, host())["modules"] == []


def test_modules_follow_the_vendors_of_the_adapters() -> None:
    amazon = host()
    for row in amazon["sections"]["network"]["data"]["adapters"]:
        row["vendor"] = "0x1d0f"
    assert planned({"driver": "inbox"}, amazon)["modules"][:2] == ["efa", "ib_uverbs"]


def test_the_modules_of_a_container_are_the_machines() -> None:
    inside = host()
    inside["sections"]["kernel"]["data"]["container"] = "podman"
    found = planned({"driver": "inbox", "peermem": True}, inside)
    assert found["modules"] == []
    assert found["packages"]


def test_settings_are_for_the_adapters_with_role_compute() -> None:
    assert planned(SETTINGS, host())["adapters"] == ["0000:40:00.0", "0000:41:00.0"]
    declared = {"gpu_network": SETTINGS, "gpu_expect": {"network": [{"ports": "mlx5_9"}]}}
    plan = resolve(declared, host())
    assert plan["network"] is not None
    assert plan["network"]["adapters"] == ["0000:49:00.0"]
    assert planned(SETTINGS)["adapters"] is None


def test_doca_comes_from_the_sites_repository() -> None:
    found = planned({"driver": "doca", "repository": REPOSITORY}, host())
    assert found["packages"] == ["doca-ofed"]
    assert found["repository"] == {**REPOSITORY, "suite": "./", "components": None}


def test_doca_without_a_repository_is_only_verified() -> None:
    assert planned({"driver": "doca"}, host(on_disk={"mlx5_core": DOCAS}))["packages"] == []
    missing = refusal({"gpu_network": {"driver": "doca"}}, host())
    assert missing["code"] == "network-driver"
    assert missing["where"] == "gpu_network.repository"
    assert "are not installed for the running kernel" in missing["message"]


def test_doca_that_nobody_could_look_for_is_noted() -> None:
    plan = resolve({"gpu_network": {"driver": "doca"}}, host(on_disk=None))
    assert plan["problems"] == []
    assert any("Whether DOCA is installed was not read" in note for note in plan["notes"])


def test_inbox_is_refused_where_another_driver_is_installed() -> None:
    found = refusal({"gpu_network": {"driver": "inbox"}}, host(on_disk={"mlx5_core": DOCAS}))
    assert (found["code"], found["where"]) == ("network-driver", "gpu_network.driver")
    assert DOCAS in found["message"]
    assert "gpufleet removes no network driver" in found["remedy"]


def test_access_control_stays_on_in_a_virtual_machine() -> None:
    found = refusal({"gpu_network": {"acs": False}}, host(hypervisor=True))
    assert (found["code"], found["where"]) == ("network-setting", "gpu_network.acs")
    assert "need access control (ACS)" in found["message"]
    assert codes(resolve({"gpu_network": {"max_read_request_bytes": 512}}, host())) == []


def test_peermem_is_refused_on_a_host_without_gpus() -> None:
    declared = {"gpu_network": {"peermem": True}, "gpu_expect": {"count": 0}}
    assert refusal(declared)["where"] == "gpu_network.peermem"
