"""A small sample of the benchmark: no healthy host is named, and faulty cards are named in time."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from benchmarks import yardstick
from benchmarks.yardstick import ERRORS, FIXED, LIMITS, MAD, OWN, SLOW, SLOWER, SUPERBENCH, Month


@pytest.fixture(scope="module")
def month() -> Month:
    return yardstick.sized(100, 0)


def test_no_healthy_host_is_named(month: Month) -> None:
    assert month.false_hosts == set()


@pytest.mark.parametrize("fault", [SLOWER, SLOW, ERRORS])
def test_faulty_cards_are_named_in_time(month: Month, fault: str) -> None:
    (delay,) = month.delays[fault]
    assert 1 <= delay <= LIMITS[fault]


@pytest.mark.parametrize(("method", "setting"), [(FIXED, 0.95), (SUPERBENCH, 0.05), (MAD, 3.0)])
def test_other_methods_name_healthy_hosts(method: str, setting: float) -> None:
    """They are sensitive enough for 10 %, and then name more than the budget's one host."""
    months = [yardstick.compared(method, setting, seed) for seed in (50, 51)]
    assert yardstick.named_within(months, SLOWER, 3) >= 0.75
    assert yardstick.false_hosts(months) > 10


def test_the_same_seed_makes_the_same_fleet() -> None:
    one, other = yardstick.faulty(100, 3, 1), yardstick.faulty(100, 3, 1)
    assert one.faults == other.faults
    assert all(
        (one.values[name] == other.values[name]).sum() > 5000 for name in ("fp32", "temperature")
    )


def test_pictures_are_svg_with_each_method() -> None:
    month = Month({"gpu1"}, {SLOWER: [3.0], SLOW: [5.0, 12.0], ERRORS: [1.0]})
    for picture in (
        yardstick.delays_picture({OWN: [month], MAD: [month]}),
        yardstick.curves_picture({OWN: {1.0: [month]}, MAD: {3.5: [month], 4.0: [month]}}),
    ):
        texts = {element.text for element in ET.fromstring(picture).iter() if element.text}
        assert {OWN, MAD, "dashes: 5 % slower"} <= texts
    assert yardstick.named_within([month], SLOW, 10) == 0.5
