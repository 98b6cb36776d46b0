"""Floors: which a name has, and that they stay far below what is published."""

from __future__ import annotations

import pytest

from gpufleet.catalog import facts, gpus
from gpufleet.catalog.performance import floors
from gpufleet.components.resolver import resolve


@pytest.mark.parametrize(
    ("name", "tflops", "gib_s"),
    [
        ("Tesla T4", 3.24, 162),
        ("Tesla V100-SXM2-16GB", 4.2, 537),
        ("NVIDIA A100-SXM4-80GB", 5.85, 992),
        ("NVIDIA H100 80GB HBM3", 26.32, 1685),
        ("NVIDIA H100 PCIe", 13.84, 1088),
        ("NVIDIA H200", 26.8, 2774),
        ("NVIDIA H200 NVL", 24.0, 1958),
        ("NVIDIA H20", 15.93, 1333),
        ("NVIDIA A10", 5.47, 425),
        ("NVIDIA A10G", 11.47, 321),
        ("NVIDIA L4", 7.83, 176),
        ("NVIDIA RTX A6000", 10.33, 448),
        ("NVIDIA GB200", 13.7, 2303),
        ("NVIDIA B300 SXM6 AC", 30.0, 4091),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 46.8, 982),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 33.0, 744),
        ("NVIDIA RTX 4000 SFF Ada Generation", 5.76, 130),
        ("NVIDIA GeForce RTX 3090 Ti", 10.68, 436),
        ("NVIDIA GeForce GTX 1080 Ti", 3.39, 225),
    ],
)
def test_the_floor_of_a_model(name: str, tflops: float, gib_s: int) -> None:
    found = floors(name)
    assert found is not None
    assert (found.tflops, found.gib_s) == (tflops, gib_s)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA X9000",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "Quadro RTX 6000 with Max-Q Design",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA L40S-48Q",
        "GRID A100-40C",
        "NVIDIA A10-24Q",
        "NVIDIA L4-24Q",
        "NVIDIA RTX PRO 4000 Blackwell SFF Edition",
    ],
)
def test_what_is_not_known_or_only_a_part_has_none(name: str) -> None:
    assert floors(name) is None


def test_each_model_of_the_table_is_a_known_gpu() -> None:
    table = facts.document("performance.yml")
    assert table["source"].startswith("NVIDIA's data sheets")
    assert 0 < table["share"]["tflops"] < table["share"]["most_tflops"] <= 0.5
    assert all(0 < share < 1 for share in table["share"].values())
    for row in table["models"]:
        assert row["sheet"]
        assert 1 < row["tflops"] < 200
        assert 100 < row["gb_s"] < 10000
        for name in row["names"]:
            assert gpus.capabilities(name), name


MODELS = {
    "A100 SXM 80 GB": "A100-SXM4-80GB",
    "H100 SXM": "H100 80GB HBM3",
    "H200 SXM": "H200",
    "GH200 480GB": "GH200 480GB",
    "B200": "B200",
    "B300": "B300",
    "GB200": "GB200",
}


def test_every_floor_is_below_the_limit_of_nvidia_s_own_diagnostics() -> None:
    """A healthy A10 at 150 W, L4, A6000, H20 or H200 NVL failed, which DCGM passes."""
    limits = {row["id"]: row for row in facts.document("speeds.yml")["dcgm"]}
    judged = set()
    for row in facts.document("performance.yml")["models"]:
        for number in row.get("dcgm", ()):
            limit, found = limits[number], floors(row["names"][0])
            assert found is not None
            # DCGM passes what reaches 95 % of its target.
            assert limit["double"] or found.tflops < 0.95 * limit["tflops"], row
            assert limit["gb_s"] is None or found.gib_s * 1.0737 < limit["gb_s"], row
            judged.add(number)
    # A100 SXM of 40 GB has a target in double precision, and a limit that is wrong.
    assert set(limits) - judged == {"20b0"}


def test_every_floor_is_far_below_what_was_reached() -> None:
    seen = 0
    for row in facts.document("speeds.yml")["achieved"]:
        found = floors(MODELS.get(row["gpu"], ""))
        if found and row["what"].startswith("HBM"):
            assert found.gib_s * 1.0737 <= 0.76 * row["value"], row
        elif found and row["what"].startswith("FP32"):
            assert found.tflops < 0.6 * row["value"], row
        else:
            continue
        seen += 1
    assert seen >= 12


def test_a_lower_power_limit_lowers_the_floors_and_says_so() -> None:
    found = floors("NVIDIA H100 80GB HBM3")
    assert found is not None
    lower = found.at_power(350, 700)
    assert (lower.tflops, lower.gib_s) == (13.16, 842)
    assert lower.tflops_because == (
        "at a power limit of 350 of 700 W, 90% of 29.25 TFLOP/s, DCGM's target"
    )
    assert {found.at_power(*watts) for watts in ((700, 700), (None, 700), (750, 700))} == {found}


def test_a_plan_has_the_declared_floor_or_that_of_the_model() -> None:
    def expected(**expect: object) -> tuple[object, object]:
        plan = resolve({"gpu_stacks": [], "gpu_expect": {"count": 1, **expect}})
        assert plan["problems"] == []
        return plan["expect"]["tflops"], plan["expect"]["tflops_because"]

    assert expected() == (None, None)
    assert expected(model="Voodoo") == (None, None)
    assert expected(tflops=12) == (12.0, "gpu_expect.tflops")
    assert expected(model="NVIDIA L4", tflops=11.5) == (11.5, "gpu_expect.tflops")
    assert expected(model="NVIDIA L4") == (7.83, "90% of 8.7 TFLOP/s, DCGM's target")


@pytest.mark.parametrize("value", [0, -1, "fast", True, float("inf"), [1]])
def test_a_floor_that_is_none_is_refused(value: object) -> None:
    plan = resolve({"gpu_stacks": [], "gpu_expect": {"count": 1, "tflops": value}})
    (problem,) = plan["problems"]
    assert problem["where"] == "gpu_expect.tflops"
    assert "a number above 0, such as 12.5" in problem["message"] + problem["remedy"]
