"""A bisection that tests each rail: the whole group on every one, and what decides without a figure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.simulated_fabric import RAIL_GB_S, Fabric, Fault, deadline_s, key
from gpufleet.fabric.bisection import bisect, conclude
from gpufleet.fabric.conclusion import Conclusion, Kind
from gpufleet.fabric.rounds import GroupTest, Outcome
from gpufleet.fabric.schedule import schedule
from gpufleet.fabric.threshold import Floor, Past, Threshold

A, B = "gpu0002", "gpu0005"
PORT, RAIL = Fault(Kind.PORT, (A,), 3), Fault(Kind.RAIL, (), 5)
FAULTS = {
    "port": (PORT,),
    "rail": (RAIL,),
    "member": (Fault(Kind.MEMBER, (A,)),),
    "pair": (Fault(Kind.PAIR, (A, B)),),
    "wrong port": (Fault(Kind.PORT, (A,), 3, Outcome.WRONG),),
    "hung port": (Fault(Kind.PORT, (A,), 3, Outcome.HUNG),),
    "hung member": (Fault(Kind.MEMBER, (A,), effect=Outcome.HUNG),),
    "two ports": (PORT, Fault(Kind.PORT, (B,), 0)),
    "port and rail": (PORT, RAIL),
}


def bisected(fabric: Fabric, threshold: Threshold) -> Conclusion:
    steps = bisect(fabric.members, fabric.rails, threshold, deadline_s, each_rail=True)
    found = conclude(steps, fabric.run)
    limit = schedule(len(fabric.members), len(fabric.rails), deadline_s, each_rail=True)
    assert found.rounds <= limit.rounds
    assert fabric.seconds <= limit.seconds
    return found


@pytest.mark.parametrize("members", [8, 64])
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "siblings"])
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_what_is_at_fault_on_rails_is_found(
    faults: tuple[Fault, ...], declared: bool, members: int
) -> None:
    fabric = Fabric(members, faults=faults)
    found = bisected(fabric, fabric.threshold(declared))
    assert {key(each) for each in found.culprits} == {key(each) for each in faults}, found.lines()


def test_healthy_rails_take_a_round_each_and_one_for_all() -> None:
    fabric = Fabric(64)
    found = bisected(fabric, fabric.threshold())
    assert (found.rounds, found.culprits, found.unknown) == (9, (), ())
    assert [seen.test.rails for seen in found.observations[1:]] == [(each,) for each in range(8)]


def test_a_group_that_hangs_on_all_rails_costs_its_deadline_once() -> None:
    fabric = Fabric(64, faults=[Fault(Kind.MEMBER, (A,), effect=Outcome.HUNG)])
    found = bisected(fabric, fabric.threshold())
    large = [seen for seen in found.observations if len(seen.test.members) == 64]
    assert [seen.outcome for seen in large] == [Outcome.HUNG]


def test_two_hosts_have_the_median_of_their_rails() -> None:
    fabric = Fabric(2, faults=[Fault(Kind.RAIL, (), 5)])
    found = bisected(fabric, fabric.threshold(declared=False))
    slow = {seen.test.rails for seen in found.observations if seen.outcome is Outcome.SLOW}
    assert slow == {(5,)}
    assert any("which part of rail 5 between" in text for text in found.unknown)


def test_a_rail_slower_than_the_others_of_two_hosts_is_seen_above_the_floor() -> None:
    fabric = Fabric(2, faults=[Fault(Kind.RAIL, (), 5, share=0.7)])
    threshold = Threshold(
        0.1, "the siblings", floor=lambda test: Floor(28 * len(test.rails), "the catalog")
    )
    found = bisected(fabric, threshold)
    slow = {seen.test.rails for seen in found.observations if seen.outcome is Outcome.SLOW}
    assert slow == {(5,)}
    assert any(text.startswith("what is at fault on rail 5: test 7") for text in found.unknown)


def test_all_alike_is_unknown_without_a_figure_and_seen_with_a_floor_or_a_past() -> None:
    """Each of 16 hosts has half the bandwidth."""

    def slow() -> Fabric:
        faults = [Fault(Kind.RAIL, (), rail) for rail in range(8)]
        return Fabric(16, faults=faults)

    alike = Threshold(0.1, "the siblings")
    found = bisected(slow(), alike)
    assert any("no figure is declared" in text for text in found.unknown)
    assert found.group.outcome is Outcome.NOT_JUDGED

    def floor(test: GroupTest) -> Floor:
        return Floor(0.6 * RAIL_GB_S * len(test.rails), "the catalog")

    found = bisected(slow(), replace(alike, floor=floor))
    assert found.group.outcome is Outcome.SLOW
    assert "the catalog" in found.threshold_source
    past = Past(lambda test: [RAIL_GB_S * len(test.rails)] * 5, 5, 0.85)
    found = bisected(slow(), replace(alike, past=past))
    assert found.group.outcome is Outcome.SLOW
    assert "own past" in found.threshold_source


@pytest.mark.parametrize("members", [2, 4, 16])
def test_healthy_members_above_their_floor_are_healthy(members: int) -> None:
    fabric = Fabric(members)
    threshold = Threshold(
        0.1, "the siblings", floor=lambda test: Floor(28 * len(test.rails), "the catalog")
    )
    found = bisected(fabric, threshold)
    assert (found.culprits, found.unknown) == ((), ())
    assert "the catalog" in found.threshold_source
    assert "the siblings" in found.threshold_source


def test_a_member_slower_than_its_siblings_is_found_above_the_floor() -> None:
    fabric = Fabric(16, faults=[Fault(Kind.MEMBER, (A,), share=0.8)])
    threshold = Threshold(
        0.1, "the siblings", floor=lambda test: Floor(28 * len(test.rails), "the catalog")
    )
    found = bisected(fabric, threshold)
    assert [key(each) for each in found.culprits] == [key(fabric.faults[0])]
