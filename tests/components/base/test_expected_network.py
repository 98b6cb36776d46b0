"""Declarations of network ports are read into the plan, or refused with the place."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.resolver import resolve
from tests.support.rdma_host import declared


def test_a_row_needs_only_its_ports() -> None:
    plan = resolve({"gpu_expect": {"network": [{"ports": "mlx5_*"}]}})
    assert (plan["problems"], plan["expect"]["network"]) == ([], [declared()])


def test_an_empty_list_is_a_declaration() -> None:
    assert resolve({"gpu_expect": {"network": []}})["expect"]["network"] == []
    assert resolve({"gpu_expect": {"count": 1}})["expect"]["network"] is None


@pytest.mark.parametrize(
    ("row", "where", "words"),
    [
        ("mlx5_*", "", "a mapping with ports, role"),
        ({}, ".ports", "mlx5_*"),
        ({"ports": []}, ".ports", "mlx5_*"),
        ({"ports": "mlx5_0; reboot"}, ".ports", "mlx5_*"),
        ({"ports": ["mlx5_0", 7]}, ".ports[1]", "text in quotes"),
        ({"ports": "mlx5_0", "role": "computing"}, ".role", "compute, storage"),
        ({"ports": "mlx5_0", "rate": "400"}, ".rate", "such as 400"),
        ({"ports": "mlx5_0", "rate": 0}, ".rate", "such as 400"),
        ({"ports": "mlx5_0", "link_layer": "RoCE"}, ".link_layer", "InfiniBand, Ethernet"),
        ({"ports": "mlx5_0", "count": 1000}, ".count", "up to 256"),
        ({"ports": "mlx5_0", "gid_type": 2}, ".gid_type", "v1, v2"),
        ({"ports": "mlx5_0", "speed": 400}, ".speed", "the keys are ports"),
        ({"ports": "mlx5_0", "firmware": 28.41}, ".firmware", "28.41.1000"),
    ],
)
def test_another_shape_is_refused(row: Any, where: str, words: str) -> None:
    (found,) = resolve({"gpu_expect": {"network": [row]}})["problems"]
    assert found["where"] == f"gpu_expect.network[0]{where}"
    assert words in found["message"] + found["remedy"]
