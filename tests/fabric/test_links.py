"""Which members are left out so that a group holds no faulty pair, and how pairs are arranged."""

from __future__ import annotations

from itertools import combinations

import pytest

from gpufleet.fabric.links import cover, listed
from gpufleet.fabric.screening import all_pairs, every_rail_fails, neighbours


def pairs(*texts: str) -> list[frozenset[str]]:
    return [frozenset(text) for text in texts]


@pytest.mark.parametrize(
    ("faulty", "removed", "ends"),
    [
        ((), "", ""),
        (("ab",), "a", "b"),
        (("ab", "bc"), "b", "ac"),
        (("ab", "cd"), "ac", "bd"),
        (("ab", "xy"), "a", "b"),
    ],
)
def test_a_cover_has_a_member_of_each_faulty_pair(
    faulty: tuple[str, ...], removed: str, ends: str
) -> None:
    assert cover(pairs(*faulty), "abcdefgh") == (set(removed), set(ends))


@pytest.mark.parametrize("members", range(2, 12))
def test_neighbours_of_a_ring_are_tested_once_in_disjoint_rounds(members: int) -> None:
    ring = [str(number) for number in range(members)]
    rounds = neighbours(ring)
    met = [frozenset(pair) for each in rounds for pair in each]
    expected = {frozenset((ring[at], ring[(at + 1) % members])) for at in range(members)}
    assert len(met) == len(set(met)) and set(met) == expected
    for each in rounds:
        assert len({member for pair in each for member in pair}) == 2 * len(each)
    assert len(rounds) <= 2 + members % 2


@pytest.mark.parametrize("members", range(2, 7))
def test_all_pairs_of_a_few_members_are_disjoint_in_each_round(members: int) -> None:
    few = "abcdef"[:members]
    rounds = all_pairs(few)
    assert sorted(pair for each in rounds for pair in each) == list(combinations(few, 2))
    for each in rounds:
        assert len({member for pair in each for member in pair}) == 2 * len(each)


@pytest.mark.parametrize(
    ("partners", "expected"),
    [([1, 1, 1], True), ([1, 1, 0], False), ([1, 1], False), ([2, 2], True), ([2], True)],
)
def test_a_member_fails_on_every_rail(partners: list[int], expected: bool) -> None:
    assert every_rail_fails(partners) is expected


def test_many_names_are_shortened() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(list("abcde")) == "a to e (5 members)"
