"""The distribution of thousands of cards is a few numbers, and its outliers are named."""

from __future__ import annotations

import pytest

from gpufleet.watch.strips import COLUMNS, MOST_OUTLIERS, columns, strips
from gpufleet.yardstick.values import Analysis, Finding, Spread

GROUP, SPEED, HEAT = "H100, driver 550", "toolkit.12.3.tflops", "load.temperature_c"


def spread(measure: str, kind: str, cards: int = 101) -> Spread:
    offsets = {(f"gpu{card:03}", f"GPU-{card}"): card / 1000 - 0.05 for card in range(cards)}
    return Spread(kind, measure, GROUP, 50.0, offsets)


def finding(card: int, change: float, measure: str = SPEED, kind: str = "throughput") -> Finding:
    where = (f"gpu{card:03}", f"GPU-{card}")
    return Finding("shift", kind, measure, GROUP, change, change / 2, 3, 100, True, *where)


def test_cards_are_counted_in_columns() -> None:
    (strip,) = strips(Analysis(spreads=[spread(SPEED, "throughput")]))
    assert (strip["cards"], strip["least"], strip["most"]) == (101, -0.05, 0.05)
    assert len(strip["counts"]) == COLUMNS
    assert sum(strip["counts"]) == 101
    assert strip["outliers"] == []


def test_an_outlier_is_where_it_is_tonight() -> None:
    found = Analysis(
        findings=[finding(50, -0.2), finding(50, 12.0, HEAT, "temperature")],
        spreads=[spread(SPEED, "throughput"), spread(HEAT, "temperature")],
    )
    hot, slow = strips(found)
    assert slow["outliers"] == [
        {"host": "gpu050", "card": "GPU-50", "offset": pytest.approx(-0.2), "fails": True}
    ]
    # The strip reaches as far as its outlier.
    assert slow["least"] == pytest.approx(-0.2)
    assert sum(slow["counts"]) == 101
    assert hot["outliers"][0]["offset"] == pytest.approx(12)


def test_an_outlier_of_the_mean_is_in_the_strip_of_each_measure() -> None:
    other = "stack.jax-0.5.3.tflops"
    found = Analysis(
        findings=[finding(50, -0.2, "mean throughput"), finding(50, -0.3, other)],
        spreads=[spread(each, "throughput") for each in (SPEED, other)],
    )
    offsets = {
        each["measure"]: [one["offset"] for one in each["outliers"]] for each in strips(found)
    }
    assert offsets == {SPEED: [pytest.approx(-0.2)], other: [pytest.approx(-0.3)]}


def test_strips_with_outliers_come_first_and_list_some_of_them() -> None:
    found = Analysis(
        findings=[finding(card, -0.2) for card in range(30)],
        spreads=[spread(HEAT, "temperature"), spread(SPEED, "throughput")],
    )
    first, second = strips(found)
    assert (first["measure"], second["measure"]) == (SPEED, HEAT)
    assert len(first["outliers"]) == MOST_OUTLIERS
    assert first["more_outliers"] == 30 - MOST_OUTLIERS


def test_cards_that_are_all_alike_have_one_column() -> None:
    assert columns([0.0, 0.0], 0.0, 0.0, 3) == [0, 2, 0]
