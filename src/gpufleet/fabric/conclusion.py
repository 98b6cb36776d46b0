"""The conclusion of a bisection: culprits with the tests that led to each, and open questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .evidence import Rails, disjoint
from .links import listed
from .rounds import Observation, Outcome, worst
from .schedule import FEW_PAIRS, PAIRS_OF_A_BAD_RAIL, PARTNERS, PORT_PARTNERS
from .screening import bad_pairs, every_rail_fails, pair_failures
from .search import Search


class Kind(Enum):
    """The kind of a culprit."""

    MEMBER = "member"
    PAIR = "pair"
    RAIL = "rail"
    PORT = "port"


@dataclass(frozen=True)
class Culprit:
    """A culprit: how it fails, the failing tests, and those that clear everybody else."""

    kind: Kind
    members: tuple[str, ...]
    rails: Rails
    outcome: Outcome
    failing: tuple[Observation, ...]
    clearing: tuple[Observation, ...]

    @property
    def name(self) -> str:
        """The culprit in a few words."""
        if self.kind is Kind.RAIL:
            return f"rail {self.rails[0]}"
        if self.kind is Kind.PORT:
            return f"port {self.rails[0]} of {self.members[0]}"
        if self.kind is Kind.PAIR:
            return f"the link between {' and '.join(self.members)}"
        return self.members[0]

    def explains(self, seen: Observation) -> bool:
        """Return whether a failing test used the culprit."""
        return set(self.members) <= set(seen.test.members) and (
            self.kind is Kind.MEMBER or not set(self.rails).isdisjoint(seen.test.rails)
        )

    @property
    def statement(self) -> str:
        """The culprit, and by which tests it was found."""
        return f"{self.name} {self.proof}"

    @property
    def proof(self) -> str:
        """How it fails, and by which tests that was found."""
        partners = sorted(
            {each for seen in self.failing for each in seen.test.members} - set(self.members)
        )
        tests = f"{_tests(self.failing)} with {listed(partners)}"
        others = f"these pass without it in {_tests(self.clearing)}"
        if self.kind is Kind.PAIR:
            tests = _tests(self.failing)
            others = f"both pass with others in {_tests(self.clearing)}"
        elif self.kind is Kind.RAIL:
            tests = f"{_tests(self.failing)}, and no pair passes on it"
            others = "the other rails pass" + (
                f" in {_tests(self.clearing)}" if self.clearing else ""
            )
        return f"is {self.outcome.value}: {tests}; {others}"


@dataclass(frozen=True)
class Conclusion:
    """The end of a bisection.

    `group` is the first test, of all members. `remainder` are the tests in which the group without
    the culprits passed. `unknown` are statements about what was not found out.
    """

    culprits: tuple[Culprit, ...]
    unknown: tuple[str, ...]
    group: Observation
    remainder: tuple[Observation, ...]
    observations: tuple[Observation, ...]
    rounds: int
    threshold_source: str

    def lines(self) -> list[str]:
        """The conclusion as text."""
        lines = [f"at fault: {culprit.statement}" for culprit in self.culprits]
        lines += [f"unknown: {text}" for text in self.unknown]
        passing = [self.group] if self.group.passed else self.remainder
        if passing:
            who = "the others" if self.culprits else "all members"
            figure = "" if self.group.least_gb_s else ", compared with the median of siblings"
            lines.append(f"{who} pass together in {_tests(passing)}{figure}")
        return [*lines, f"{self.rounds} rounds; slow means: {self.threshold_source}"]


def _tests(seen: Sequence[Observation]) -> str:
    numbers = [str(each.number) for each in seen]
    return ("test " if len(numbers) == 1 else "tests ") + ", ".join(numbers)


def describe(seen: Observation) -> str:
    """One line for a test of the conclusion's list."""
    rails = ",".join(map(str, seen.test.rails))
    rate = "" if seen.bus_bandwidth_gb_s is None else f", {seen.bus_bandwidth_gb_s:.1f} GB/s"
    least = "" if seen.least_gb_s is None or not rate else f" (at least {seen.least_gb_s:.1f})"
    return (
        f"test {seen.number}, round {seen.round}: {listed(seen.test.members)},"
        f" rails {rails}: {seen.outcome.value}{rate}{least}"
    )


def culprits(search: Search) -> list[Culprit]:
    """All that the evidence proves to be at fault."""
    found = [*_rails(search)]
    needed = min(PARTNERS, max(PORT_PARTNERS, len(search.good())))
    for member in search.suspects():
        found += _member(search, member, needed)
    for pair, rails in bad_pairs(search):
        numbers = pair_failures(search, pair, rails)
        failing = [search.evidence.observations[number - 1] for number in numbers]
        clearing = search.evidence.clearing(sorted(pair), rails)
        found.append(_culprit(Kind.PAIR, tuple(sorted(pair)), rails, failing, clearing))
    return found


def _culprit(
    kind: Kind,
    members: tuple[str, ...],
    rails: Rails,
    failing: Sequence[Observation],
    clearing: Sequence[Observation],
) -> Culprit:
    outcome = worst([seen.outcome for seen in failing])
    return Culprit(kind, members, rails, outcome, tuple(failing), tuple(clearing))


def _partners(member: str, failing: Sequence[Observation]) -> list[str]:
    return sorted({seen.partner(member) for seen in failing})


def _rails(search: Search) -> list[Culprit]:
    """Rails on which pairs fail that pass on the others, if no single port explains that."""
    if not search.rails:
        # All rails fail alike: that is no finding about any one of them.
        return []
    found = []
    for rail in search.all_rails:
        if rail in search.rails:
            continue
        failing = [
            seen
            for seen in search.evidence.on_rail(rail)
            if seen.failed and _passes_elsewhere(search, seen)
        ]
        apart = disjoint(failing, PAIRS_OF_A_BAD_RAIL)
        if len(apart) < 2:
            apart = failing
        if not apart or set.intersection(*(set(seen.test.members) for seen in apart)):
            continue
        members = {member for seen in apart for member in seen.test.members}
        clearing = search.evidence.clearing(sorted(members), search.rails)
        found.append(_culprit(Kind.RAIL, (), (rail,), apart, clearing))
    return found


def _passes_elsewhere(search: Search, seen: Observation) -> bool:
    """Return whether the members of a failing pair are fine on the rails that are not at fault."""
    if len(search.members) // 2 >= FEW_PAIRS:
        return all(map(search.is_good, seen.test.members))
    # Few members are seldom all good: what counts is that these two pass together.
    return search.evidence.pair_is_good(frozenset(seen.test.members), search.rails)


def _member(search: Search, member: str, needed: int) -> list[Culprit]:
    """A suspect: at fault as a whole, or by some of its ports; nothing where that is not proven."""
    evidence, rails = search.evidence, search.rails
    together = evidence.failures(member, rails)
    partners = _partners(member, together)
    if len(partners) < needed:
        return []
    alone = {rail: evidence.failures(member, (rail,)) for rail in rails}
    good = [rail for rail in rails if evidence.is_good(member, (rail,))]
    failing_with = [len(_partners(member, failing)) for failing in alone.values()]
    if len(rails) == 1 or every_rail_fails(failing_with) or len(good) in {0, len(rails)}:
        # No rail passes; or each is fine alone, and all of them together are too much for it.
        clearing = evidence.clearing(partners, rails)
        return [_culprit(Kind.MEMBER, (member,), rails, together, clearing)]
    found = []
    for rail, failing in alone.items():
        partners = _partners(member, failing)
        if len(partners) >= PORT_PARTNERS and rail not in good:
            clearing = evidence.clearing(partners, (rail,))
            found.append(_culprit(Kind.PORT, (member,), (rail,), failing, clearing))
    return found


def unknown(search: Search, found: Sequence[Culprit]) -> list[str]:
    """Questions that the tests leave open: members not judged, failures without a culprit."""
    evidence = search.evidence
    lines = list(search.unknown)
    group = evidence.observations[0]
    if group.outcome is Outcome.NOT_JUDGED and not search.judge.threshold.floor(group.test):
        lines.append(
            "whether the group is as fast as it should be: no figure is declared for it, and its"
            " members were compared with each other alone"
        )
    absent = [member for member in search.members if member not in evidence.ran]
    if absent:
        lines.append(f"whether {_are(absent)} healthy: no test with them was run and judged")
    if not search.rails:
        lines.append(
            "which rail is at fault: no pair passes on any; what all members share is at fault,"
            " or most members are"
        )
        return lines
    if len(search.members) == 3 and found:
        lines.append(
            "whether two faults look like this one: three members cannot tell a member from its two"
            " links, nor a rail from two of its ports"
        )
    # A member with a bad link may still be at fault itself.
    blamed = {each.members[0] for each in found if each.kind in {Kind.MEMBER, Kind.PORT}}
    open_members = [each for each in search.suspects() if each not in blamed]
    if open_members:
        lines.append(
            f"whether {_are(open_members)} at fault: no test on all rails passed, and too few"
            " failed with members that are known to be good"
        )
        lines += _narrow(search, open_members)
    proven = {each.rails[0] for each in found if each.kind is Kind.RAIL}
    for rail in search.all_rails:
        if rail not in search.rails and rail not in proven:
            lines.append(
                f"whether rail {rail} is at fault, or ports and links on it: every pair on it"
                " fails, and too few members are known to be good"
            )
    lines += _unexplained(search, found, open_members)
    lines += _half_known(search, found)
    whole = [each.members[0] for each in found if each.kind is Kind.MEMBER]
    if whole and len(search.rails) == 1 < len(search.all_rails):
        lines.append(
            f"whether all of {listed(whole)} or only port {search.rails[0]} is at fault: the other"
            " rails are"
        )
    if whole:
        lines.append(f"whether links of {listed(whole)} are at fault too: they were not judged")
    return lines


def _are(members: Sequence[str]) -> str:
    return f"{listed(members)} {'is' if len(members) == 1 else 'are'}"


def _unexplained(
    search: Search, found: Sequence[Culprit], open_members: Sequence[str]
) -> list[str]:
    """Failing tests that hold neither a culprit nor a member that may be one."""
    named = {*open_members, *(each.members[0] for each in found if each.kind is Kind.MEMBER)}
    rest = [each for each in found if each.kind is not Kind.MEMBER]
    # A failure on these rails has a line of its own.
    dropped = set(search.all_rails) - set(search.rails)
    numbers = [
        seen
        for seen in search.evidence.observations
        if seen.failed
        and named.isdisjoint(seen.test.members)
        and not any(culprit.explains(seen) for culprit in rest)
        and not dropped & set(seen.test.rails)
    ]
    lines = []
    for seen in list(numbers):
        if len(seen.test.rails) == 1 < len(search.all_rails) and (
            len(seen.test.members) == len(search.members)
        ):
            numbers.remove(seen)
            lines.append(
                f"what is at fault on rail {seen.test.rails[0]}: {_tests([seen])} of all members on"
                f" it alone is {seen.outcome.value}, and they pass other tests"
            )
    if not numbers:
        return lines
    more = f" (and {len(numbers) - 4} more)" if len(numbers) > 4 else ""
    return [
        *lines,
        f"why {_tests(numbers[:4])}{more} failed: the members pass other tests; the fault comes and"
        " goes, or shows in some groups only",
    ]


def _narrow(search: Search, members: Sequence[str]) -> list[str]:
    """With two members nobody is known to be good, but the rails can be distinguished."""
    if len(search.members) > 2 or len(search.all_rails) == 1:
        return []
    outcomes = {rail: search.evidence.on_rail(rail) for rail in search.all_rails}
    bad = [str(rail) for rail, seen in outcomes.items() if seen and all(s.failed for s in seen)]
    if not bad or len(bad) == len(outcomes):
        return []
    return [
        f"which part of rail {', '.join(bad)} between {' and '.join(members)} is at fault:"
        " the other rails pass, and no third member can tell port, link and rail apart"
    ]


def _half_known(search: Search, found: Sequence[Culprit]) -> list[str]:
    """Ports of members with a proven bad port that were neither cleared nor proven bad."""
    lines = []
    ports = {(each.members[0], each.rails[0]) for each in found if each.kind is Kind.PORT}
    for member in sorted({name for name, _ in ports}):
        rest = [
            str(rail)
            for rail in search.rails
            if (member, rail) not in ports and not search.evidence.is_good(member, (rail,))
        ]
        if rest:
            lines.append(f"whether ports {', '.join(rest)} of {member} are healthy")
    for rail in search.all_rails:
        if rail not in search.rails:
            lines.append(f"whether single ports on rail {rail} are healthy: all of it fails")
    return lines
