"""The conclusion's text: each culprit with its tests, each thing that stayed unknown."""

from __future__ import annotations

import pytest

from benchmarks.simulated_fabric import Fabric, Fault, names
from gpufleet.fabric.conclusion import Conclusion, Kind, describe
from gpufleet.fabric.rounds import Outcome

MEMBER = Fault(Kind.MEMBER, ("gpu0007",))


def conclusion(*faults: Fault, members: int = 16, rails: int = 8) -> Conclusion:
    return Fabric(members, rails, faults, noise=0).bisect()


@pytest.mark.parametrize(
    ("fault", "start"),
    [
        (MEMBER, "gpu0007 is slow: tests 5, 13, 18 with "),
        (Fault(Kind.MEMBER, ("gpu0007",), effect=Outcome.HUNG), "gpu0007 is hung: tests "),
        (Fault(Kind.PORT, ("gpu0007",), 2, Outcome.WRONG), "port 2 of gpu0007 is wrong: tests "),
        (Fault(Kind.RAIL, (), 5), "rail 5 is slow: tests "),
        (Fault(Kind.PAIR, ("gpu0002", "gpu0011")), "the link between gpu0002 and gpu0011 is slow"),
    ],
    ids=lambda each: each.kind.value if isinstance(each, Fault) else None,
)
def test_a_statement_names_culprit_outcome_and_tests(fault: Fault, start: str) -> None:
    found = conclusion(fault)
    (culprit,) = found.culprits
    assert culprit.statement.startswith(start)
    for seen in (*culprit.failing, *culprit.clearing):
        assert str(seen.number) in culprit.statement
    assert f"at fault: {culprit.statement}" in found.lines()


def test_the_last_lines_say_that_the_others_pass_and_what_slow_means() -> None:
    *_, others, rounds = conclusion(MEMBER).lines()
    assert others.startswith("the others pass together in test ")
    assert rounds.endswith(" rounds; slow means: the simulation")


def test_the_numbers_of_tests_are_their_places_in_the_list() -> None:
    observations = conclusion(MEMBER).observations
    assert [seen.number for seen in observations] == list(range(1, len(observations) + 1))


def test_a_test_is_described_in_one_line() -> None:
    first, second = conclusion(MEMBER, members=16).observations[:2]
    assert describe(first) == (
        "test 1, round 1: gpu0000 to gpu0015 (16 members), rails 0,1,2,3,4,5,6,7:"
        " slow, 184.0 GB/s (at least 331.2)"
    )
    assert describe(second) == (
        "test 2, round 2: gpu0000, gpu0001, rails 0,1,2,3,4,5,6,7:"
        " passed, 368.0 GB/s (at least 331.2)"
    )


@pytest.mark.parametrize(
    ("faults", "text"),
    [
        ((MEMBER,), "whether links of gpu0007 are at fault too"),
        ((Fault(Kind.RAIL, (), 5),), "whether single ports on rail 5 are healthy"),
    ],
)
def test_what_a_fault_hides_is_unknown(faults: tuple[Fault, ...], text: str) -> None:
    assert any(text in line for line in conclusion(*faults).unknown)


def test_where_one_rail_of_two_is_left_a_member_may_be_a_port() -> None:
    found = conclusion(MEMBER, Fault(Kind.RAIL, (), 1), rails=2)
    assert any("whether all of gpu0007 or only port 0" in line for line in found.unknown)


def test_all_rails_at_fault_name_no_rail() -> None:
    found = conclusion(*(Fault(Kind.RAIL, (), rail) for rail in range(8)))
    assert not found.culprits
    assert any("which rail is at fault: no pair passes on any" in line for line in found.unknown)


def test_members_without_good_partners_are_unknown() -> None:
    bad = [Fault(Kind.MEMBER, (name,)) for name in names(3)[:2]]
    found = conclusion(*bad, members=3, rails=1)
    assert not found.culprits
    assert any("gpu0000, gpu0001, gpu0002 are at fault" in line for line in found.unknown)
