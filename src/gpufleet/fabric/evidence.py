"""The evidence of a bisection's tests: good members, and failures that a good member saw.

A passing test clears its members and their ports on its rails, and a test of two also the pair: a
larger one may not have used every link. A failing test blames nobody by itself. A test that was not
run, or not judged, proves nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from .rounds import Observation

Rails = tuple[int, ...]


class Evidence:
    """All observations so far, indexed by member."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        # The good members by the rails that were asked for.
        self._good: dict[Rails, set[str]] = {}
        self._passing_pairs: dict[str, list[Observation]] = defaultdict(list)
        self._pair_passed: dict[frozenset[str], set[frozenset[int]]] = defaultdict(set)
        self._failed: dict[str, list[Observation]] = defaultdict(list)
        self.pairs_failed: dict[frozenset[str], list[Observation]] = defaultdict(list)
        self.partners: dict[str, set[str]] = defaultdict(set)
        self.ran: set[str] = set()
        # Passing tests of three members or more.
        self.groups: list[Observation] = []

    def add(self, seen: Observation) -> None:
        """Enter an observation."""
        self.observations.append(seen)
        members, rails = seen.test.members, frozenset(seen.test.rails)
        if seen.is_pair:
            for member in members:
                self.partners[member].add(seen.partner(member))
        if seen.passed or seen.failed:
            self.ran.update(members)
        if seen.passed:
            for wanted, good in self._good.items():
                if rails.issuperset(wanted):
                    good.update(members)
            if not seen.is_pair:
                self.groups.append(seen)
            else:
                for member in members:
                    self._passing_pairs[member].append(seen)
                self._pair_passed[frozenset(members)].add(rails)
        elif seen.failed and seen.is_pair:
            for member in members:
                self._failed[member].append(seen)
            self.pairs_failed[frozenset(members)].append(seen)

    def is_good(self, member: str, rails: Rails) -> bool:
        """Return whether the member passed a test that used at least these rails at once."""
        return member in self.good(rails)

    def good(self, rails: Rails) -> set[str]:
        """The members that passed a test that used at least these rails at once."""
        if rails not in self._good:
            wanted = set(rails)
            self._good[rails] = {
                member
                for seen in self.observations
                if seen.passed and wanted <= set(seen.test.rails)
                for member in seen.test.members
            }
        return self._good[rails]

    def pair_is_good(self, pair: frozenset[str], rails: Iterable[int]) -> bool:
        """Return whether the two passed a test of their own on at least these rails."""
        wanted = frozenset(rails)
        return any(wanted <= used for used in self._pair_passed.get(pair, ()))

    def failures(self, member: str, rails: Rails) -> list[Observation]:
        """The failing pairs of a member on exactly these rails whose partner is good on them."""
        return [
            seen
            for seen in self._failed.get(member, ())
            if seen.test.rails == rails and self.is_good(seen.partner(member), rails)
        ]

    def good_partners(self, member: str, rails: Rails) -> set[str]:
        """The known-good members with which a member failed on exactly these rails."""
        return {seen.partner(member) for seen in self.failures(member, rails)}

    def clearing(self, members: Iterable[str], rails: Rails) -> list[Observation]:
        """For each member, the first test of a pair on these rails that it passed."""
        wanted, found = set(rails), {}
        for member in members:
            for seen in self._passing_pairs.get(member, ()):
                if wanted <= set(seen.test.rails):
                    found[seen.number] = seen
                    break
        return [found[number] for number in sorted(found)]

    def on_rail(self, rail: int) -> list[Observation]:
        """The tests that used this rail alone: those that passed, and the pairs that failed.

        A failing group that is larger says nothing about the rail: one of its ports is enough.
        """
        return [
            seen
            for seen in self.observations
            if seen.test.rails == (rail,) and (seen.passed or (seen.failed and seen.is_pair))
        ]


def disjoint(failures: Iterable[Observation], enough: int) -> list[Observation]:
    """Failing tests that share no member, up to `enough` of them."""
    used: set[str] = set()
    found: list[Observation] = []
    for seen in failures:
        if len(found) < enough and not used.intersection(seen.test.members):
            used.update(seen.test.members)
            found.append(seen)
    return found
