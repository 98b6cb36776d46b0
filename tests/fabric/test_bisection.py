"""Each kind of fault in a simulated fabric is concluded, with the tests that prove it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.simulated_fabric import Fabric, Fault, deadline_s, key, names
from gpufleet.fabric.bisection import bisect, conclude
from gpufleet.fabric.conclusion import Conclusion, Kind
from gpufleet.fabric.rounds import Outcome, Result, Round
from gpufleet.fabric.schedule import schedule
from gpufleet.fabric.threshold import Threshold

A, B, C, D = "gpu0007", "gpu0040", "gpu0012", "gpu0055"
EFFECTS = (Outcome.SLOW, Outcome.WRONG, Outcome.HUNG)
MEMBER, CAPPED = Fault(Kind.MEMBER, (A,)), Fault(Kind.MEMBER, (A,), capped=True)
PAIR, NEIGHBOURS = Fault(Kind.PAIR, (A, B)), Fault(Kind.PAIR, (A, "gpu0008"))
RAIL, PORT = Fault(Kind.RAIL, (), 3), Fault(Kind.PORT, (A,), 2)
TWO = {
    "members": (MEMBER, Fault(Kind.MEMBER, (B,))),
    "neighbours": (MEMBER, Fault(Kind.MEMBER, ("gpu0008",))),
    "pairs apart": (PAIR, Fault(Kind.PAIR, (C, D))),
    "pairs of one member": (PAIR, Fault(Kind.PAIR, (A, C))),
    "both links of a ring": (NEIGHBOURS, Fault(Kind.PAIR, (A, "gpu0006"))),
    "rails": (RAIL, Fault(Kind.RAIL, (), 5)),
    "ports of one member": (PORT, Fault(Kind.PORT, (A,), 6)),
    "ports of one rail": (PORT, Fault(Kind.PORT, (B,), 2)),
    "member and pair": (Fault(Kind.MEMBER, (C,)), PAIR),
    "member and rail": (MEMBER, RAIL),
    "capped member and rail": (CAPPED, RAIL),
    "member and port": (Fault(Kind.MEMBER, (C,)), PORT),
    "pair and rail": (PAIR, RAIL),
    "pair and its member's port": (PAIR, PORT),
    "rail and port": (RAIL, PORT),
    "hung and wrong": (
        Fault(Kind.MEMBER, (C,), effect=Outcome.HUNG),
        Fault(Kind.PAIR, (A, B), effect=Outcome.WRONG),
    ),
}


def concluded(conclusion: Conclusion) -> set[object]:
    return {key(culprit) for culprit in conclusion.culprits}


def run_with(fabric: Fabric, run: Callable[[Round], list[Result]]) -> Conclusion:
    """Bisect, with a runner that changes what the fabric answers."""
    steps = bisect(fabric.members, fabric.rails, fabric.threshold(), deadline_s)
    return conclude(steps, run)


def check(fabric: Fabric, declared: bool) -> Conclusion:
    """Bisect; the culprits are the faults, and the run kept to its schedule."""
    conclusion = fabric.bisect(fabric.threshold(declared))
    assert concluded(conclusion) == {key(fault) for fault in fabric.faults}, conclusion.lines()
    limit = schedule(len(fabric.members), len(fabric.rails), deadline_s)
    assert fabric.rounds == conclusion.rounds <= limit.rounds
    assert fabric.seconds <= limit.seconds
    return conclusion


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "siblings"])
@pytest.mark.parametrize("effect", EFFECTS, ids=lambda each: each.value)
@pytest.mark.parametrize(
    "fault", [MEMBER, PAIR, NEIGHBOURS, RAIL, PORT], ids=lambda each: each.kind.value
)
def test_one_fault_is_found(fault: Fault, effect: Outcome, declared: bool) -> None:
    found = Fault(fault.kind, fault.members, fault.rail, effect)
    conclusion = check(Fabric(64, faults=[found]), declared)
    assert [culprit.outcome for culprit in conclusion.culprits] == [effect]
    assert conclusion.remainder


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "siblings"])
@pytest.mark.parametrize("faults", TWO.values(), ids=TWO)
def test_two_faults_are_found(faults: tuple[Fault, Fault], declared: bool) -> None:
    check(Fabric(64, faults=faults), declared)


def test_a_member_that_is_slow_only_with_all_rails_is_found() -> None:
    check(Fabric(64, faults=[CAPPED]), True)


def test_a_healthy_group_takes_one_round_and_blames_nobody() -> None:
    fabric = Fabric(64)
    conclusion = check(fabric, True)
    assert (fabric.rounds, conclusion.unknown) == (1, ())
    assert "all members pass together in test 1" in conclusion.lines()


def test_a_healthy_group_without_a_figure_is_compared_with_siblings_and_says_so() -> None:
    conclusion = check(Fabric(64), False)
    assert ["no figure is declared" in text for text in conclusion.unknown] == [True]
    assert any("compared with the median of siblings" in line for line in conclusion.lines())


def test_a_hung_member_costs_each_of_its_rounds_the_deadline_and_no_more() -> None:
    fabric = Fabric(1000, faults=[Fault(Kind.MEMBER, (A,), effect=Outcome.HUNG)])
    conclusion = check(fabric, True)
    hung = {seen.round for seen in conclusion.observations if seen.outcome is Outcome.HUNG}
    most = deadline_s(1000) + (len(hung) - 1) * deadline_s(2)
    rest = (conclusion.rounds - len(hung)) * deadline_s(2) + deadline_s(1000)
    assert fabric.seconds < most + rest


@pytest.mark.parametrize("members", [64, 1000, 4096])
def test_a_slow_link_takes_rounds_like_the_logarithm(members: int) -> None:
    fabric = Fabric(members, faults=[PAIR])
    check(fabric, True)
    assert fabric.rounds <= 8 + (members - 1).bit_length()


def test_a_ring_shows_a_slow_link_of_neighbours_without_a_search() -> None:
    fabric = Fabric(4096, faults=[NEIGHBOURS], ring=True)
    check(fabric, True)
    assert fabric.rounds <= 7


def test_a_culprit_has_the_tests_that_prove_it() -> None:
    (culprit,) = check(Fabric(64, faults=[MEMBER]), True).culprits
    assert len(culprit.failing) == 3
    assert all(A in seen.test.members and seen.failed for seen in culprit.failing)
    partners = {seen.partner(A) for seen in culprit.failing}
    assert len(partners) == 3
    assert all(seen.passed and A not in seen.test.members for seen in culprit.clearing)
    assert partners <= {member for seen in culprit.clearing for member in seen.test.members}


def test_a_bad_partner_is_not_blamed_on_a_member() -> None:
    # Both neighbours of a healthy member are bad: it fails twice before it meets a good one.
    faults = [Fault(Kind.MEMBER, (name,)) for name in ("gpu0006", "gpu0008")]
    conclusion = check(Fabric(64, faults=faults), True)
    failed = [seen for seen in conclusion.observations if seen.failed and A in seen.test.members]
    assert len(failed) >= 3


def test_a_member_whose_tests_do_not_run_is_unknown_and_never_healthy() -> None:
    fabric = Fabric(64, faults=[PAIR], absent=["gpu0003"])
    conclusion = check(fabric, True)
    assert any("gpu0003 is healthy: no test" in text for text in conclusion.unknown)
    assert all("gpu0003" not in seen.test.members for seen in conclusion.remainder)


def test_a_group_that_never_runs_ends_without_a_culprit() -> None:
    conclusion = check(Fabric(64, absent=names(64)), True)
    assert any("(64 members) are healthy: no test" in text for text in conclusion.unknown)


@pytest.mark.parametrize("faults", [(MEMBER,), (PAIR,), (PORT,), (RAIL,)], ids=str)
@pytest.mark.parametrize("turn", range(4))
def test_tests_that_fail_to_run_now_and_then_do_not_blame_the_innocent(
    faults: tuple[Fault, ...], turn: int
) -> None:
    fabric = Fabric(64, faults=faults, seed=turn)

    def run(planned: Round) -> list[Result]:
        return [
            Result(Outcome.NOT_RUN) if fabric.chance.random() < 0.1 else result
            for result in fabric.run(planned)
        ]

    conclusion = run_with(fabric, run)
    assert concluded(conclusion) <= {key(fault) for fault in faults}
    assert conclusion.culprits or conclusion.unknown


@pytest.mark.parametrize("members", [2, 3, 64])
@pytest.mark.parametrize("rails", [1, 8])
def test_where_every_pair_fails_nobody_is_blamed(members: int, rails: int) -> None:
    faults = [Fault(Kind.MEMBER, (name,)) for name in names(members)]
    fabric = Fabric(members, rails, faults)
    conclusion = fabric.bisect()
    assert not conclusion.culprits
    assert conclusion.unknown


def test_two_members_name_the_rail_that_fails_between_them() -> None:
    fabric = Fabric(2, 8, [Fault(Kind.PORT, ("gpu0001",), 3)])
    conclusion = fabric.bisect()
    assert not conclusion.culprits
    assert any(
        "which part of rail 3 between gpu0000 and gpu0001" in text for text in conclusion.unknown
    )


def test_three_members_find_one_fault_and_say_what_looks_the_same() -> None:
    conclusion = check(Fabric(3, 8, [Fault(Kind.MEMBER, ("gpu0001",))]), True)
    assert any("cannot tell a member from its two links" in text for text in conclusion.unknown)


def test_a_failure_that_does_not_come_back_is_said_and_blames_nobody() -> None:
    fabric = Fabric(64)

    def run(planned: Round) -> list[Result]:
        return [Result(Outcome.HUNG)] if planned.number == 1 else fabric.run(planned)

    conclusion = run_with(fabric, run)
    assert not conclusion.culprits
    assert any("comes and goes" in text for text in conclusion.unknown)


def test_more_faulty_links_than_searches_are_said_to_be_left() -> None:
    members = names(64)
    pairs = [Fault(Kind.PAIR, (members[0], members[number])) for number in (3, 13, 22, 45, 62)]
    conclusion = Fabric(64, faults=pairs).bisect(pair_searches=1)
    assert concluded(conclusion) <= {key(fault) for fault in pairs}
    assert any("schedule has no further one" in text for text in conclusion.unknown)


def test_further_searches_find_further_links() -> None:
    members = names(64)
    pairs = [Fault(Kind.PAIR, (members[0], members[number])) for number in (3, 13, 22, 45, 62)]
    conclusion = Fabric(64, faults=pairs).bisect(pair_searches=5)
    assert concluded(conclusion) == {key(fault) for fault in pairs}


@pytest.mark.parametrize(
    ("members", "rails", "message"),
    [
        (["a"], [0], "two or more members"),
        (["a", "a"], [0], "each once"),
        (["a", "b"], [], "one or more rails"),
        (["a", "b"], [1, 1], "each once"),
    ],
)
def test_a_group_that_is_none_is_refused(
    members: list[str], rails: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        next(bisect(members, rails, Threshold(0.1, "test"), deadline_s))


def test_results_that_are_missing_are_refused() -> None:
    steps = bisect(["a", "b"], [0], Threshold(0.1, "test"), deadline_s)
    next(steps)
    with pytest.raises(ValueError, match="1 tests have 0 results"):
        steps.send([])


def test_a_runner_that_judges_by_itself_needs_no_rate() -> None:
    fabric = Fabric(64, faults=[MEMBER])

    def run(planned: Round) -> list[Result]:
        judged = []
        for test, result in zip(planned.tests, fabric.run(planned), strict=True):
            slow = result.bus_bandwidth_gb_s < 0.9 * fabric.declared[len(test.rails)]
            judged.append(Result(Outcome.SLOW if slow else Outcome.PASSED))
        return judged

    steps = bisect(fabric.members, fabric.rails, Threshold(0.1, "the runner"), deadline_s)
    assert concluded(conclude(steps, run)) == {key(MEMBER)}


def test_half_of_the_ports_of_a_member_are_named_one_by_one() -> None:
    ports = [Fault(Kind.PORT, (A,), rail) for rail in (4, 5, 6, 7)]
    check(Fabric(64, faults=ports), True)


def test_a_rack_of_bad_members_is_named_member_by_member() -> None:
    rack = [Fault(Kind.MEMBER, (name,)) for name in names(256)[32:64]]
    check(Fabric(256, faults=rack), True)


def test_the_gpus_of_a_host_have_no_rails() -> None:
    link = Fault(Kind.PAIR, ("gpu0002", "gpu0005"))
    conclusion = check(Fabric(8, 1, [link]), True)
    assert conclusion.culprits[0].name == "the link between gpu0002 and gpu0005"
