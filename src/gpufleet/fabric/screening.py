"""Finds faulty members, rails and ports by tests of pairs, all members at the same time.

One round of pairs tests every member. A member that fails is tested again, with partners that are
known to be good by then, so that a bad partner is not blamed on it. Where no pair passes, what all
of them share is suspected: each rail is tested alone. Suspects are then tested port by port.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise

from .evidence import Rails, disjoint
from .rounds import GroupTest
from .schedule import FEW_PAIRS, PAIR_FAILURES, PAIRS_OF_A_BAD_RAIL, PARTNERS, PORT_PARTNERS, Step
from .search import Search, Steps

Pair = tuple[str, str]


def neighbours(members: Sequence[str]) -> list[list[Pair]]:
    """All neighbours of the ring, in rounds of disjoint pairs."""
    ring = list(pairwise(members))
    closing = [(members[0], members[-1])] if len(members) > 2 else []
    if len(members) % 2:
        return [each for each in (ring[::2], ring[1::2], closing) if each]
    return [each for each in (ring[::2], ring[1::2] + closing) if each]


def all_pairs(members: Sequence[str]) -> list[list[Pair]]:
    """All pairs of a few members, in rounds of disjoint pairs."""
    rounds: list[list[Pair]] = []
    for pair in combinations(members, 2):
        for each in rounds:
            if not any(set(pair) & set(other) for other in each):
                each.append(pair)
                break
        else:
            rounds.append([pair])
    return rounds


def screen(search: Search) -> Steps[None]:
    """Test all members in pairs, then the rails where no pair passes, then the suspects' ports."""
    sampled = False
    if len(search.all_rails) > 1 and not search.judge.has_figure(len(search.all_rails)):
        # A rail that is slow for everybody makes all pairs equally slow: no sibling shows it.
        yield from _rails(search)
        sampled = True
    matchings = neighbours(search.members)
    if len(search.members) // 2 >= FEW_PAIRS and not sampled and len(search.rails) > 1:
        yield from _pairs(search, matchings[:1])
        if not search.good() and search.evidence.ran:
            yield from _rails(search)
            sampled = True
        if search.rails == search.all_rails:
            matchings = matchings[1:]
    if not search.rails:
        return
    yield from _pairs(search, matchings)
    yield from _suspects(search)
    if not search.good() and not sampled and search.evidence.ran and len(search.rails) > 1:
        yield from _rails(search)
        if search.rails != search.all_rails and search.rails:
            yield from _pairs(search, neighbours(search.members))
            yield from _suspects(search)
    yield from _ports(search)
    yield from repeat_pairs(search, 4)


def _pairs(search: Search, matchings: Sequence[Sequence[Pair]]) -> Steps[None]:
    for matching in matchings:
        tests = [GroupTest(pair, search.rails) for pair in matching]
        yield from search.run(Step.PAIRS, tests, siblings=[search.rails])


def _suspects(search: Search) -> Steps[None]:
    """Test each member that passed no test with other partners until two good ones disagree."""
    for turn in range(3):
        pending = [
            member
            for member in search.members
            if not search.is_good(member)
            and len(search.evidence.good_partners(member, search.rails)) < PARTNERS
        ]
        partners = Partners(search, turn, pending)
        tests = []
        for member in pending:
            other = partners.take(member) or partners.among(member)
            if other:
                tests.append(GroupTest((member, other), search.rails))
        yield from search.run(Step.PAIRS, tests)


class Partners:
    """Members for the tests of one round, each of them once: known-good ones, then suspects."""

    def __init__(self, search: Search, turn: int, pending: Sequence[str] = ()) -> None:
        good = search.good()
        shift = turn * 7 % len(good) if good else 0
        self.evidence = search.evidence
        self.free = dict.fromkeys(good[shift:] + good[:shift])
        self.pending = dict.fromkeys(pending)
        self.used: set[str] = set()

    def take(self, member: str, tried: set[str] | None = None) -> str | None:
        """A good member that this one was not tested with; with `tried`, else any not in it."""
        other = self._choose(member, self.free, self.evidence.partners[member])
        if other is None and tried is not None:
            other = self._choose(member, self.free, tried)
        return other

    def among(self, member: str) -> str | None:
        """Another suspect that this one was not tested with, where good members are lacking."""
        return self._choose(member, self.pending, self.evidence.partners[member])

    def _choose(self, member: str, others: Iterable[str], met: set[str]) -> str | None:
        if member in self.used:
            return None
        other = next((each for each in others if each not in met and each != member), None)
        if other is not None:
            for each in (member, other):
                self.used.add(each)
                self.free.pop(each, None)
                self.pending.pop(each, None)
        return other


def _rails(search: Search) -> Steps[None]:
    """Test each rail alone, different rails by different pairs, and drop those at fault."""
    members, rails = search.members, search.all_rails
    few = len(members) // 2 < FEW_PAIRS
    matchings = all_pairs(members) if few else neighbours(members)[:2]
    for turn in range(search.left(Step.RAILS)):
        open_rails = [
            rail
            for rail in rails
            if not rail_is_good(search, rail) and not rail_is_bad(search, rail)
        ]
        if not open_rails and search.judge.has_figure(1):
            break
        matching = matchings[turn // len(rails) % len(matchings)]
        rotation = open_rails or rails
        tests = [
            GroupTest(pair, (rotation[(number + turn) % len(rotation)],))
            for number, pair in enumerate(matching)
        ]
        yield from search.run(Step.RAILS, tests, siblings=single(rails))
    search.rails = tuple(rail for rail in rails if not rail_is_bad(search, rail))


def single(rails: Rails) -> list[Rails]:
    """Each rail alone."""
    return [(rail,) for rail in rails]


def rail_is_good(search: Search, rail: int) -> bool:
    """Return whether a pair passed on this rail alone."""
    return any(seen.passed for seen in search.evidence.on_rail(rail))


def rail_is_bad(search: Search, rail: int) -> bool:
    """Return whether every pair on this rail alone failed, and no few ports can explain it."""
    seen = search.evidence.on_rail(rail)
    if not seen or any(each.passed for each in seen) or len(search.members) < 3:
        return False
    pairs = len(search.members) // 2
    if pairs >= FEW_PAIRS:
        needed = min(pairs, PAIRS_OF_A_BAD_RAIL)
        return len(disjoint(seen, needed)) == needed
    tested = {frozenset(each.test.members) for each in seen}
    return len(tested) == len(search.members) * (len(search.members) - 1) // 2


def _ports(search: Search) -> Steps[None]:
    """Test each suspect on each rail alone, with known-good partners."""
    if len(search.rails) < 2 or not search.suspects() or not search.good():
        return
    while not search.judge.has_figure(1) and (turn := search.left(Step.RAILS)):
        tests = [
            GroupTest(pair, (search.rails[(number + turn) % len(search.rails)],))
            for number, pair in enumerate(neighbours(search.members)[0])
        ]
        yield from search.run(Step.RAILS, tests, siblings=single(search.rails))
    tried: dict[tuple[str, int], set[str]] = {}
    for turn in range(search.left(Step.PORTS)):
        partners = Partners(search, turn)
        tests = []
        for number, member in enumerate(search.suspects()):
            open_rails = _open_ports(search, member, tried)
            if not open_rails or not partners.free:
                continue
            rail = open_rails[(turn + number) % len(open_rails)]
            met = tried.setdefault((member, rail), set())
            other = partners.take(member, met)
            if other:
                met.add(other)
                tests.append(GroupTest((member, other), (rail,)))
        if not tests:
            break
        yield from search.run(Step.PORTS, tests)


def _open_ports(search: Search, member: str, tried: dict[tuple[str, int], set[str]]) -> list[int]:
    """The rails on which another test of a suspect can change what is known about it."""
    failing = {rail: len(search.evidence.good_partners(member, (rail,))) for rail in search.rails}
    untested = [
        rail
        for rail, partners in failing.items()
        if not partners
        and not search.evidence.is_good(member, (rail,))
        and len(tried.get((member, rail), ())) < PORT_PARTNERS
    ]
    if untested or every_rail_fails(list(failing.values())):
        return untested
    return [
        rail
        for rail, partners in failing.items()
        if 0 < partners < PORT_PARTNERS and len(tried.get((member, rail), ())) <= PORT_PARTNERS
    ]


def every_rail_fails(partners: Sequence[int]) -> bool:
    """Return whether a member fails on each rail, by its number of good partners on each.

    With three rails or more, one partner on each will do: a bad port and a bad link to one of the
    partners spoil two rails. With less, each rail needs a second partner.
    """
    return min(partners) >= (1 if len(partners) > PORT_PARTNERS else PORT_PARTNERS)


def repeat_pairs(search: Search, rounds: int) -> Steps[None]:
    """Test pairs again that failed although both members are good with others."""
    for _ in range(rounds):
        used: set[str] = set()
        tests = []
        for pair, rails in suspected_pairs(search):
            if not used & pair and len(pair_failures(search, pair, rails)) < PAIR_FAILURES:
                used |= pair
                tests.append(GroupTest(tuple(sorted(pair)), rails))
        yield from search.run(Step.REPEATS, tests)


def suspected_pairs(search: Search) -> list[tuple[frozenset[str], Rails]]:
    """Pairs that failed on rails on which both members passed, and never passed on them.

    The rails are all that are not at fault, or those without bad ports. On fewer of them a member
    that is itself at fault can pass with one and fail with another.
    """
    found = []
    for pair, failures in search.evidence.pairs_failed.items():
        for rails in sorted({seen.test.rails for seen in failures}, key=len, reverse=True):
            if (
                rails in {search.rails, search.sound_rails}
                and all(search.evidence.is_good(member, rails) for member in pair)
                and not search.evidence.pair_is_good(pair, rails)
            ):
                found.append((pair, rails))
                break
    return found


def pair_failures(search: Search, pair: frozenset[str], rails: Rails) -> list[int]:
    """The numbers of a pair's failing tests on these rails."""
    failures = search.evidence.pairs_failed[pair]
    return [seen.number for seen in failures if seen.test.rails == rails]


def bad_pairs(search: Search) -> list[tuple[frozenset[str], Rails]]:
    """Suspected pairs that failed as often as a faulty pair has to."""
    return [
        (pair, rails)
        for pair, rails in suspected_pairs(search)
        if len(pair_failures(search, pair, rails)) >= PAIR_FAILURES
    ]
