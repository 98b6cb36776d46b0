"""Declarations of cards are read into the plan, or refused with the place and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.base import expectation
from gpufleet.components.declare import declaration_of
from gpufleet.components.probe_settings import probe_settings
from gpufleet.components.resolver import resolve
from tests.support.host_documents import refusal
from tests.support.rdma_host import declared

UUID = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"


def expected(**wanted: Any) -> dict[str, Any]:
    plan = resolve({"gpu_expect": wanted})
    assert plan["problems"] == []
    found: dict[str, Any] = plan["expect"]
    return found


def test_everything_that_is_declared_stands_in_the_plan() -> None:
    wanted = {
        "count": 1,
        "model": "NVIDIA L4",
        "memory_mib": 23034,
        "uuids": [UUID.upper()],
        "power_limit_w": 72,
        "ecc": "on",
        "compute_mode": "exclusive_process",
        "pcie": {"generation": 4, "width": 16},
        "nvlinks": 0,
        "fabric": {"rack": "r12", "clique": 3},
        "tflops": 12.5,
        "bus_bandwidth_gb_s": 380.0,
        "governor": "performance",
        "modules": ["nvidia_peermem", "gdrdrv"],
        "imex": {"nodes": ["10.0.7.1", "10.0.7.2"], "per_job": False, "channels": 1},
        "memory_mode": "driver",
        "network": [declared(count=8, rate=400.0, gid_index=3, gid_type="v2", lossless_priority=3)],
    }
    assert expected(**wanted) == {**wanted, "uuids": [UUID], "tflops_because": "gpu_expect.tflops"}
    # A key that nobody reads would be accepted, and dropped.
    assert wanted.keys() == set(expectation.KEYS)


@pytest.mark.parametrize("key", expectation.KEYS)
def test_each_key_refuses_a_wrong_type(key: str) -> None:
    assert refusal({"gpu_expect": {key: {"wrong": "type"}}})["where"].startswith(
        f"gpu_expect.{key}"
    )


def test_who_names_the_cards_has_counted_them() -> None:
    assert expected(uuids=[UUID])["count"] == 1


def test_what_is_not_declared_is_null() -> None:
    assert set(expected(count=2).values()) == {2, None}
    assert expected(pcie={"width": 8})["pcie"] == {"generation": None, "width": 8}
    plan = resolve({})
    assert (set(plan["expect"].values()), plan["service_user"]) == ({None}, None)


@pytest.mark.parametrize(("written", "meant"), [(True, "on"), (False, "off"), ("off", "off")])
def test_yaml_makes_truths_of_on_and_off(written: Any, meant: str) -> None:
    assert expected(ecc=written)["ecc"] == meant


@pytest.mark.parametrize(
    ("wanted", "where", "words"),
    [
        ({"power_limit_w": "700 W"}, "gpu_expect.power_limit_w", "a number of watts"),
        ({"ecc": "yes"}, "gpu_expect.ecc", "one of on, off"),
        ({"governor": "fast"}, "gpu_expect.governor", "performance, powersave"),
        ({"compute_mode": "Prohibited"}, "gpu_expect.compute_mode", "default, exclusive_process"),
        ({"nvlinks": "all"}, "gpu_expect.nvlinks", "0 for cards without a bridge"),
        ({"modules": ["nvidia"]}, "gpu_expect.modules[0]", "one of nvidia_peermem, gdrdrv"),
        ({"fabric": "r12"}, "gpu_expect.fabric", "a mapping with rack, clique"),
        ({"fabric": {"rack": "a b"}}, "gpu_expect.fabric.rack", "such as r12"),
        ({"fabric": {"clique": "x"}}, "gpu_expect.fabric.clique", "a clique's number"),
        ({"imex": {"nodes": "10.0.7.1"}}, "gpu_expect.imex.nodes", "a list"),
        ({"imex": {"channels": "all"}}, "gpu_expect.imex.channels", "a number of channels"),
        ({"imex": {"nodes": ["a"], "per_job": True}}, "gpu_expect.imex", "declare one of the two"),
        ({"memory_mode": "cdmm"}, "gpu_expect.memory_mode", "driver, numa"),
        ({"pcie": 16}, "gpu_expect.pcie", "a mapping with generation, width"),
        ({"pcie": {"width": 12}}, "gpu_expect.pcie.width", "one of 1, 2, 4, 8, 16"),
        ({"pcie": {"generation": 9}}, "gpu_expect.pcie.generation", "one of 1, 2, 3"),
        ({"pcie": {"wdth": 4}}, "gpu_expect.pcie.wdth", "rename wdth to width"),
        (
            {"network": [{"ports": "mlx5_0", "lossless_priority": 8}]},
            "gpu_expect.network[0].lossless_priority",
            "a number up to 7",
        ),
        (
            {"network": [{"ports": "mlx5_0", "pcie": {"width": 3}}]},
            "gpu_expect.network[0].pcie.width",
            "one of 1, 2, 4, 8, 16",
        ),
        ({"uuids": UUID}, "gpu_expect.uuids", "a list"),
        ({"uuids": ["MIG-1"]}, "gpu_expect.uuids[0]", "nvidia-smi -L"),
        ({"uuids": [7]}, "gpu_expect.uuids[0]", "text in quotes"),
        ({"power_limt_w": 1}, "gpu_expect.power_limt_w", "power_limit_w"),
    ],
)
def test_another_shape_is_refused(wanted: dict[str, Any], where: str, words: str) -> None:
    found = refusal({"gpu_expect": wanted})
    assert (found["where"], words in found["message"] + found["remedy"]) == (where, True)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"uuids": [UUID, UUID.lower()]}, "names a GPU twice"),
        ({"count": 2, "uuids": [UUID]}, "names 1 GPU, gpu_expect.count is 2"),
    ],
)
def test_cards_that_cannot_all_be_there_are_refused(wanted: dict[str, Any], words: str) -> None:
    found = refusal({"gpu_expect": wanted})
    assert (found["code"], found["where"]) == ("expect-clash", "gpu_expect.uuids")
    assert words in found["message"]


def test_the_account_that_uses_the_cards_is_reported_to_plan_and_probe() -> None:
    assert resolve({"gpu_service_user": "slurm"})["service_user"] == "slurm"
    assert (
        probe_settings(declaration_of({"gpu_service_user": "slurm"}).spec)["service_user"]
        == "slurm"
    )
    assert probe_settings(declaration_of({}).spec)["service_user"] is None
    found = refusal({"gpu_service_user": "slurm; reboot"})
    assert (found["where"], "an account's name" in found["message"]) == ("gpu_service_user", True)
