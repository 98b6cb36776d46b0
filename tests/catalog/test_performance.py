"""Floors: which a name has, and that they stay far below what is published."""

from __future__ import annotations

import pytest

from gpufleet.catalog import facts, gpus
from gpufleet.catalog.performance import floors
from gpufleet.resolver import resolve


@pytest.mark.parametrize(
    ("name", "tflops", "gib_s"),
    [
        ("Tesla T4", 2.43, 140),
        ("Tesla V100-SXM2-16GB", 4.2, 419),
        ("NVIDIA A100-SXM4-80GB", 5.85, 724),
        ("NVIDIA H100 80GB HBM3", 15.3, 931),
        ("NVIDIA H200", 18.0, 2235),
        ("NVIDIA GeForce RTX 3090 Ti", 10.68, 436),
        ("NVIDIA GeForce GTX 1080 Ti", 3.39, 225),
    ],
)
def test_the_floor_of_a_model(name: str, tflops: float, gib_s: int) -> None:
    found = floors(name)
    assert found is not None
    assert (found.tflops, found.gib_s) == (tflops, gib_s)


@pytest.mark.parametrize("name", [
    "", "NVIDIA X9000", "NVIDIA GeForce RTX 4090 Laptop GPU", "Quadro RTX 6000 with Max-Q Design",
    "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
])
def test_what_is_not_known_or_only_a_part_has_none(name: str) -> None:
    assert floors(name) is None


def test_each_model_of_the_table_is_a_known_gpu() -> None:
    table = facts.document("performance.yml")
    assert table["source"].startswith("NVIDIA's data sheets")
    assert all(0 < share <= 0.5 for share in table["share"].values())
    for row in table["models"]:
        assert row["sheet"]
        assert 1 < row["tflops"] < 200
        assert 100 < row["gb_s"] < 10000
        for name in row["names"]:
            assert gpus.capabilities(name), name


def test_a_plan_has_the_wished_floor_or_that_of_the_model() -> None:
    def expected(**expect: object) -> tuple[object, object]:
        plan = resolve({"gpu_stacks": [], "gpu_expect": {"count": 1, **expect}})
        assert plan["problems"] == []
        return plan["expect"]["tflops"], plan["expect"]["tflops_because"]

    assert expected() == (None, None)
    assert expected(model="Voodoo") == (None, None)
    assert expected(tflops=12) == (12.0, "gpu_expect.tflops")
    assert expected(model="NVIDIA L4", tflops=11.5) == (11.5, "gpu_expect.tflops")
    assert expected(model="NVIDIA L4") == (
        9.09, "30% of 30.3 TFLOP/s and 50% of 300 GB/s, data sheet: L4")


@pytest.mark.parametrize("value", [0, -1, "fast", True, float("inf"), [1]])
def test_a_floor_that_is_none_is_refused(value: object) -> None:
    plan = resolve({"gpu_stacks": [], "gpu_expect": {"count": 1, "tflops": value}})
    problem, = plan["problems"]
    assert problem["where"] == "gpu_expect.tflops"
    assert "a number above 0, such as 12.5" in problem["message"] + problem["remedy"]
