"""Finds the culprits of a group that is slow, wrong or hung, by rounds of tests.

    def run(planned: Round) -> list[Result]: ...
        # Run planned.tests at the same time, and stop them at planned.deadline_s.

    conclusion = conclude(bisect(members, rails, threshold, deadline_s), run)

The steps, and what can be concluded from each:

1. The whole group, and where rails are asked for, on each rail alone. If all pass there is nothing
   to find.
2. Pairs of neighbours, all at the same time, each member with two others. A member that fails with
   three known-good ones and passes with nobody is at fault.
3. Where no pair passes: each rail alone, different rails by different pairs. A rail on which every
   pair fails is at fault, and is left out from here on.
4. A suspect's ports, one by one, with known-good partners: some fail (ports), or all do (member).
5. A pair that fails three times, while both members pass with others, is at fault.
6. The group without the culprits. If it still fails, faulty pairs are searched by halves, and so
   on until it passes or the schedule ends.

Whoever is in a failing test is a suspect and no more. Failures of a test count only if everybody
else in it is known to be good, and a test that was not run counts for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .conclusion import Conclusion, Kind, culprits, unknown
from .evidence import Rails
from .links import cover, examine
from .rounds import Deadline, GroupTest, Observation, Outcome, Result, Round
from .schedule import PAIR_SEARCHES, Step
from .screening import Partners, bad_pairs, neighbours, repeat_pairs, screen, single
from .search import Search, Steps
from .threshold import Threshold


def bisect(
    members: Sequence[str],
    rails: Sequence[int],
    threshold: Threshold,
    deadline_s: Deadline,
    pair_searches: int = PAIR_SEARCHES,
    *,
    each_rail: bool = False,
) -> Steps[Conclusion]:
    """Yield rounds of tests and be sent their results; return the conclusion.

    `members` are in the order of the ring whose collective failed. `rails` are the numbers of the
    ports that each member has. `deadline_s` says after how many seconds a test of so many members
    is stopped; it must not fall with their number. `schedule.schedule` has the limits of the run.
    `each_rail`: also where all rails together pass, the whole group is tested on each of them.
    """
    search = Search(members, rails, threshold, deadline_s, pair_searches, each_rail=each_rail)
    (group,) = yield from search.run(Step.GROUP, [GroupTest(search.members, search.all_rails)])
    if each_rail and len(rails) > 1 and group.outcome is not Outcome.HUNG:
        yield from _each_rail(search)
    remainder: list[Observation] = []
    passed = all(seen.passed for seen in search.evidence.observations)
    if not passed:
        yield from screen(search)
        remainder = yield from _remainder(search)
    found = culprits(search) if not passed else []
    return Conclusion(
        tuple(found),
        tuple(dict.fromkeys(unknown(search, found))) if not passed else (),
        group,
        tuple(remainder),
        tuple(search.evidence.observations),
        search.rounds,
        search.judge.source,
    )


def _each_rail(search: Search) -> Steps[None]:
    """Test the whole group on each rail alone, until one hangs: then the search is shorter.

    Too few members for a median of pairs have that of the rails.
    """
    rows: list[tuple[int, GroupTest, Result]] = []
    for rail in search.all_rails:
        test = GroupTest(search.members, (rail,))
        (result,) = yield from search.ask(Step.GROUP, [test])
        rows.append((search.rounds, test, result))
        if result.outcome is Outcome.HUNG:
            break
    if not search.judge.awaits_siblings:
        tests, results = [test for _, test, _ in rows], [result for *_, result in rows]
        search.judge.calibrate(tests, results, single(search.all_rails))
    search.enter(rows)


def conclude(steps: Steps[Conclusion], run: Callable[[Round], Sequence[Result]]) -> Conclusion:
    """Run the rounds one after the other: `run` returns the results in the order of the tests."""
    try:
        planned = next(steps)
        while True:
            planned = steps.send(run(planned))
    except StopIteration as end:
        conclusion: Conclusion = end.value
        return conclusion


def _remainder(search: Search) -> Steps[list[Observation]]:
    """Test the group without the culprits, and find faulty pairs in it."""
    good = search.good() if search.rails else []
    if len(good) < 2:
        return []
    passed = yield from examine(search, good, search.rails)
    ports = [each for each in culprits(search) if each.kind is Kind.PORT]
    if ports:
        holders = {each.members[0] for each in ports}
        bad = {each.rails[0] for each in ports}
        passed = [*passed, *(yield from _holders(search, holders, bad))]
    yield from _crossing(search, passed)
    yield from repeat_pairs(search, 2)
    return passed


def _holders(search: Search, holders: set[str], bad: set[int]) -> Steps[list[Observation]]:
    """Examine members with a bad port together with the others, on the rails without such ports."""
    rails: Rails = tuple(rail for rail in search.rails if rail not in bad)
    search.sound_rails = rails
    names = ", ".join(sorted(holders))
    if not rails:
        search.unknown.append(f"whether links of {names} are healthy: no rail is free of bad ports")
        return []
    if not search.judge.has_figure(len(rails)):
        group = [each for each in search.members if each in holders or search.is_good(each)]
        pairs = [GroupTest(pair, rails) for pair in neighbours(group)[0]]
        yield from search.run(Step.REPEATS, pairs, siblings=[rails])
    tried: dict[str, set[str]] = {holder: set() for holder in holders}
    for turn in range(1, 3):
        # The first partner may be the other end of a faulty link.
        partners = Partners(search, turn)
        tests = []
        for member in sorted(holders):
            other = None
            if not search.evidence.is_good(member, rails):
                other = partners.take(member, tried[member])
            if other:
                tried[member].add(other)
                tests.append(GroupTest((member, other), rails))
        yield from search.run(Step.REPEATS, tests)
    members = [each for each in search.members if search.evidence.is_good(each, rails)]
    missing = holders - set(members)
    if missing:
        search.unknown.append(
            f"whether links of {', '.join(sorted(missing))} on other rails are healthy:"
            f" no test on rails {', '.join(map(str, rails))} together passed"
        )
    if not holders & set(members):
        return []
    return (yield from examine(search, members, rails))


def _crossing(search: Search, passed: Sequence[Observation]) -> Steps[None]:
    """Test pairs of members of different faulty pairs, which no passing group held."""
    removed, ends = cover([pair for pair, _ in bad_pairs(search)], search.members)
    together = [set(seen.test.members) for seen in passed]
    used: set[str] = set()
    tests, missed = [], []
    for first in sorted(removed):
        for second in sorted(ends):
            pair = frozenset((first, second))
            if (
                pair in search.evidence.pairs_failed
                or search.evidence.pair_is_good(pair, search.rails)
                or any(pair <= group for group in together)
            ):
                continue
            if used & pair:
                missed.append(f"{first} and {second}")
                continue
            used |= pair
            tests.append(GroupTest((first, second), search.rails))
    yield from search.run(Step.REPEATS, tests)
    if missed:
        search.unknown.append(f"whether the links between {'; '.join(missed[:4])} are healthy")
