"""Finds faulty pairs of members that are fine with others, in a number of rounds like log2.

Members get numbers, and a failing group is split by one bit of them. If a half fails, it goes on
alone. If neither fails, each faulty pair has a member in either half: the group stays whole, and
the bit is noted. After the last bit all faulty pairs of the group differ in exactly the noted bits,
so that each member has one possible partner: one round tests all of them, disjoint as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .evidence import Rails
from .rounds import GroupTest, Observation
from .schedule import Step, bits
from .screening import bad_pairs, repeat_pairs
from .search import Search, Steps

Numbered = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class FailingGroup:
    """Members with their numbers, and the bits in which the two of each faulty pair differ."""

    members: Numbered
    differing: int = 0


def examine(search: Search, members: Sequence[str], rails: Rails) -> Steps[list[Observation]]:
    """Test that these members pass together, and find the pairs for which they do not.

    Returns the passing tests of the last groups; nothing where a group did not pass.
    """
    while True:
        removed, ends = cover([pair for pair, _ in bad_pairs(search)], members)
        groups = [[each for each in members if each not in removed]]
        if removed:
            groups.append([each for each in members if each not in ends])
        passed, failing = [], None
        for group in groups:
            if len(group) < 2:
                continue
            seen = yield from _together(search, group, rails)
            if seen is None:
                return []
            if seen.failed:
                failing = group
                break
            if not seen.passed:
                search.unknown.append(
                    f"whether {listed(group)} pass together: test {seen.number}"
                    f" {'was not judged' if seen.bus_bandwidth_gb_s else 'was not run'}"
                )
            else:
                passed.append(seen)
        if failing is None:
            return passed
        before = len(bad_pairs(search))
        yield from _split(search, failing, rails)
        if len(bad_pairs(search)) == before:
            return []


def cover(pairs: Sequence[frozenset[str]], members: Sequence[str]) -> tuple[set[str], set[str]]:
    """Few members that are in every faulty pair, and the other members of those pairs.

    A group without the former holds no faulty pair. A group without the latter holds the former.
    """
    open_pairs = [pair for pair in pairs if pair <= set(members)]
    ends = {member for pair in open_pairs for member in pair}
    removed: set[str] = set()
    while open_pairs:
        counts = Counter(member for pair in open_pairs for member in pair)
        most = max(sorted(counts), key=counts.__getitem__)
        removed.add(most)
        open_pairs = [pair for pair in open_pairs if most not in pair]
    return removed, ends - removed


def listed(members: Sequence[str]) -> str:
    """A few names, or the first, the last and their number."""
    if len(members) <= 4:
        return ", ".join(members)
    return f"{members[0]} to {members[-1]} ({len(members)} members)"


def _together(search: Search, group: Sequence[str], rails: Rails) -> Steps[Observation | None]:
    first = search.evidence.observations[0]
    test = GroupTest(tuple(group), rails)
    if first.test == test and first.failed:
        # Nobody was found at fault so far: the group that started the search is the one to split.
        return first
    again = next((seen for seen in search.evidence.groups if seen.test == test), None)
    if again:
        return again
    seen_now = yield from search.run(Step.REMAINDER, [test])
    if not seen_now:
        search.unknown.append(
            f"whether {listed(group)} pass together: the schedule has no round left for them"
        )
        return None
    return seen_now[0]


def _split(search: Search, group: Sequence[str], rails: Rails) -> Steps[None]:
    """Split a failing group until its faulty pairs are known, and test these again."""
    width = bits(len(group))
    if search.left(Step.HALVES) < width:
        search.unknown.append(
            f"why {listed(group)} fail together: {search.pair_searches} searches for faulty pairs"
            " are done, and the schedule has no further one"
        )
        return
    groups = [FailingGroup(tuple(enumerate(group)))]
    for bit in reversed(range(width)):
        halves = [
            tuple(
                tuple(each for each in failing.members if each[0] >> bit & 1 == value)
                for value in (0, 1)
            )
            for failing in groups
        ]
        planned = [half for pair in halves for half in pair if len(half) > 1]
        seen = yield from search.run(
            Step.HALVES, [GroupTest(tuple(name for _, name in half), rails) for half in planned]
        )
        outcomes = dict(zip(planned, seen, strict=True))
        groups = [
            narrowed
            for failing, pair in zip(groups, halves, strict=True)
            for narrowed in _narrowed(search, failing, pair, bit, outcomes)
        ]
    tests = []
    for failing in groups:
        names = dict(failing.members)
        tests += [
            GroupTest((name, names[other]), rails)
            for number, name in failing.members
            if number < (other := number ^ failing.differing) and other in names
        ]
    seen = yield from search.run(Step.REPEATS, tests)
    if groups and not any(each.failed for each in seen):
        search.unknown.append(
            f"why {listed(group)} fail together: {len(seen)} pairs that the halves point to pass"
            " alone; the fault comes and goes, or shows in large groups only"
        )
    yield from repeat_pairs(search, 2)


def _narrowed(
    search: Search,
    failing: FailingGroup,
    halves: Sequence[Numbered],
    bit: int,
    outcomes: dict[Numbered, Observation],
) -> list[FailingGroup]:
    seen = [outcomes[half] for half in halves if half in outcomes]
    worse = [
        FailingGroup(half, failing.differing)
        for half in halves
        if half in outcomes and outcomes[half].failed
    ]
    if worse:
        return worse
    if all(each.passed for each in seen):
        return [FailingGroup(failing.members, failing.differing | 1 << bit)]
    open_tests = [each for each in seen if not each.passed]
    search.unknown.append(
        f"which pair of {listed([name for _, name in failing.members])} is at fault:"
        f" test {open_tests[0].number} of one half was not run or not judged"
    )
    return []
