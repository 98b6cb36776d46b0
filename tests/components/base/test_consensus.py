"""GPUs that disagree about the sums of random products."""

from __future__ import annotations

import random

import pytest

from gpufleet.components.base.consensus import Difference, differences
from gpufleet.components.compute.consensus import FORMATS
from gpufleet.workload.consensus import NAMES


def sums(seed: int, count: int = 8) -> list[str]:
    """A GPU's sums after 1, 2, 4 ... rounds."""
    drawn = random.Random(seed)
    return [f"{drawn.getrandbits(64):016x}" for _ in range(count)]


def flipped(value: str, bit: int) -> str:
    return f"{int(value, 16) ^ 1 << bit:016x}"


def test_the_probe_and_the_check_have_the_same_formats() -> None:
    assert FORMATS == NAMES


def test_a_thousand_rounds_of_64_gpus_agree() -> None:
    for seed in range(1000):
        right = sums(seed)
        assert differences([right[: 4 + gpu % 5] for gpu in range(64)]) == []


@pytest.mark.parametrize("name", NAMES)
def test_one_flipped_bit_of_one_gpu_in_64_is_found(name: str) -> None:
    drawn = random.Random(name)
    for seed in range(100):
        right, at = sums(seed), drawn.randrange(8)
        wrong = right[:at] + [flipped(value, drawn.randrange(64)) for value in right[at:]]
        members = [right] * 63
        members.insert(drawn.randrange(64), wrong)
        [found] = differences(members)
        assert found == Difference(1 << at, {right[at]: 63, wrong[at]: 1})
        assert found.right == right[at]


def test_gpus_that_computed_less_take_no_part() -> None:
    right = sums(1)
    wrong = [*right[:6], flipped(right[6], 0)]
    [found] = differences([right[:4], right[:4], right, wrong])
    assert found == Difference(64, {right[6]: 1, wrong[6]: 1})
    assert found.right is None


@pytest.mark.parametrize(
    ("gpus", "right"),
    [
        ({"a": 2, "b": 1}, "a"),
        ({"a": 1, "b": 1}, None),
        ({"a": 2, "b": 2}, None),
        ({"a": 2, "b": 1, "c": 1}, None),
        ({"a": 3, "b": 1, "c": 1}, "a"),
    ],
)
def test_more_than_half_decide(gpus: dict[str, int], right: str | None) -> None:
    assert Difference(1, gpus).right == right


def test_nobody_differs_from_nobody() -> None:
    assert differences([]) == []
    assert differences([[], []]) == []


def test_one_that_differs_early_hides_none_that_differs_later() -> None:
    right, early, late = sums(1), sums(2), [*sums(1)[:5], *sums(3)[5:]]
    assert differences([early, late, right, right, right]) == [
        Difference(1, {right[0]: 4, early[0]: 1}),
        Difference(32, {right[5]: 3, late[5]: 1}),
    ]


def test_after_a_difference_without_most_nothing_more_is_known() -> None:
    one, other = sums(1), sums(2)
    assert differences([one, other]) == [Difference(1, {one[0]: 1, other[0]: 1})]
