"""The schedule that is printed beforehand: its limits, and how they grow."""

from __future__ import annotations

import math

import pytest

from benchmarks.simulated_fabric import deadline_s
from gpufleet.fabric.schedule import Step, bits, schedule


@pytest.mark.parametrize(
    ("members", "expected"), [(1, 0), (2, 1), (3, 2), (64, 6), (65, 7), (4096, 12)]
)
def test_a_group_is_halved_as_often_as_its_size_has_bits(members: int, expected: int) -> None:
    assert bits(members) == expected


@pytest.mark.parametrize("rails", [1, 2, 8])
def test_rounds_grow_with_the_logarithm_of_the_members(rails: int) -> None:
    rounds = {count: schedule(count, rails, deadline_s).rounds for count in (64, 512, 4096)}
    # Two searches halve the group three times more often for eight times the members.
    assert rounds[512] - rounds[64] <= 2 * 3
    assert rounds[4096] - rounds[512] <= 2 * 3


@pytest.mark.parametrize("members", range(6, 4097, 409))
def test_a_schedule_is_bounded_by_the_logarithm_of_the_members(members: int) -> None:
    rounds = schedule(members, 8, deadline_s).rounds
    assert rounds <= 70 + 4 * math.log2(members)


def test_seconds_are_deadlines_of_the_largest_tests() -> None:
    planned = schedule(64, 8, float)
    limits = {step.step: step for step in planned.steps}
    assert limits[Step.GROUP].seconds == 64
    assert limits[Step.PAIRS].seconds == 2 * limits[Step.PAIRS].rounds
    assert limits[Step.HALVES].seconds == 32 * 2 * 6
    assert planned.seconds == sum(step.seconds for step in planned.steps)


def test_more_searches_take_more_rounds() -> None:
    few, many = (schedule(64, 8, deadline_s, searches).rounds for searches in (2, 5))
    assert few < many


def test_one_rail_needs_no_tests_of_rails_and_ports() -> None:
    steps = {step.step for step in schedule(64, 1, deadline_s).steps}
    assert not steps & {Step.RAILS, Step.PORTS}


def test_the_printed_schedule_names_each_step_and_the_sum() -> None:
    planned = schedule(64, 8, deadline_s)
    lines = planned.lines()
    assert len(lines) == len(planned.steps) + 1
    assert lines[0] == "the whole group: at most 1 rounds of tests with up to 64 members, 13 s"
    assert lines[-1].startswith(f"all steps: at most {planned.rounds} rounds, ")
