"""The documents of a bisection: a round of tests, their results, and what was observed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """How a test ended, from harmless to grave."""

    PASSED = "passed"
    # The test did not start, or ended for a reason that is not the fabric's.
    NOT_RUN = "not run"
    # The test ran and its sums are right, but nothing says how fast it should be.
    NOT_JUDGED = "not judged"
    SLOW = "slow"
    WRONG = "wrong"
    HUNG = "hung"


FAILING = frozenset({Outcome.SLOW, Outcome.WRONG, Outcome.HUNG})
GRAVITY = {outcome: number for number, outcome in enumerate(Outcome)}


@dataclass(frozen=True)
class GroupTest:
    """One collective of these members over these rails, by the numbers of their ports.

    The members form the ring in this order. Its bandwidth is that of the slowest exchange between
    two of its members. Where a program reports only a ring's total, a slow pair shows in it only if
    its members are neighbours: the first rounds therefore test all neighbours, as pairs.
    """

    members: tuple[str, ...]
    rails: tuple[int, ...]


@dataclass(frozen=True)
class Round:
    """Tests that run at the same time, on disjoint members, and are stopped at the deadline."""

    number: int
    step: str
    tests: tuple[GroupTest, ...]
    deadline_s: float


@dataclass(frozen=True)
class Result:
    """The runner's result of a test: PASSED, SLOW, WRONG, HUNG or NOT_RUN, and its speed.

    A test that passed with a bandwidth is still compared with the threshold. Without a bandwidth,
    PASSED says that the runner itself found the test fast enough.
    """

    outcome: Outcome
    bus_bandwidth_gb_s: float | None = None


@dataclass(frozen=True)
class Observation:
    """A test that was asked for, how it was judged, and the figure that it was compared with."""

    number: int
    round: int
    test: GroupTest
    outcome: Outcome
    bus_bandwidth_gb_s: float | None
    least_gb_s: float | None

    @property
    def failed(self) -> bool:
        """True if the test was slow, wrong or hung."""
        return self.outcome in FAILING

    @property
    def passed(self) -> bool:
        """True if the test ran, was right, and was fast enough."""
        return self.outcome is Outcome.PASSED

    @property
    def is_pair(self) -> bool:
        """True if two members took part, so that nobody else can be at fault."""
        return len(self.test.members) == 2

    def partner(self, member: str) -> str:
        """The other member of a pair's test."""
        first, second = self.test.members
        return second if member == first else first


# The seconds after which a test of so many members is stopped. It never falls with their number.
Deadline = Callable[[int], float]


def worst(outcomes: Sequence[Outcome]) -> Outcome:
    """The gravest of some outcomes."""
    return max(outcomes, key=GRAVITY.__getitem__)
