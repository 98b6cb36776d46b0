"""The most that a bisection can cost, known before it starts: rounds and seconds of each step.

The run counts its rounds against the same limits, so that it cannot exceed them. Only the search
for links grows with the number of members, and with its logarithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from .rounds import Deadline
from .threshold import TRIES

# How many faulty links the search looks for, one after the other, unless the caller says otherwise.
PAIR_SEARCHES = 2
# A rail is at fault if this many pairs that share no member fail on it and none passes. Three
# members with a bad port each on one rail spoil three such pairs at most.
PAIRS_OF_A_BAD_RAIL: Final = 4
# With fewer pairs than this at once, two faults can spoil every pair of a round.
FEW_PAIRS: Final = 3
# How many known-good partners a failing member has to fail with, where there are so many. With two,
# two faulty links of a healthy member look the same.
PARTNERS: Final = 3
# How many known-good partners a failing port has to fail with: its member fails with more.
PORT_PARTNERS: Final = 2
# How often a faulty pair has to fail: no other partner can be asked, and noise may fail twice.
PAIR_FAILURES: Final = 3


class Step(Enum):
    """The steps of a bisection, in their order."""

    GROUP = "the whole group"
    PAIRS = "pairs of neighbours"
    RAILS = "each rail alone"
    PORTS = "ports of suspects"
    REPEATS = "suspected pairs again"
    REMAINDER = "the group without culprits"
    HALVES = "halves of a failing group"


@dataclass(frozen=True)
class StepLimit:
    """The most rounds of a step, and the size of its largest test."""

    step: Step
    rounds: int
    members: int
    seconds: float


@dataclass(frozen=True)
class Schedule:
    """The limits of all steps."""

    members: int
    rails: int
    steps: tuple[StepLimit, ...]

    @property
    def rounds(self) -> int:
        """The most rounds of a run."""
        return sum(step.rounds for step in self.steps)

    @property
    def seconds(self) -> float:
        """The most seconds of a run: every round ends at its deadline."""
        return sum(step.seconds for step in self.steps)

    def lines(self) -> list[str]:
        """The schedule as text, to be printed before the first round."""
        return [
            *(
                f"{step.step.value}: at most {step.rounds} rounds of tests with"
                f" up to {step.members} members, {step.seconds:.0f} s"
                for step in self.steps
            ),
            f"all steps: at most {self.rounds} rounds, {self.seconds:.0f} s",
        ]


def bits(members: int) -> int:
    """How often a group is halved until its parts have one member."""
    return max(0, members - 1).bit_length()


def rounds_of_rails(members: int, rails: int) -> int:
    """The most rounds that test each rail alone, by all members."""
    if rails == 1:
        return 0
    pairs = members // 2
    if pairs < FEW_PAIRS:
        # Each pair of members that there is, on each rail; and a round for the siblings' median.
        return members * rails + 1
    # The pairs of a round share the rails. Before, two pairs measure each for the siblings' median.
    measured = -(-TRIES * rails // pairs)
    return min(rails, -(-PAIRS_OF_A_BAD_RAIL * rails // pairs) + 1) + measured + 1


def step_rounds(
    members: int, rails: int, pair_searches: int, *, each_rail: bool = False
) -> Mapping[Step, int]:
    """The most rounds of each step; `each_rail`: the whole group is tested on each rail, too."""
    # Neighbours: even pairs, odd pairs, and with an odd number of members the two ends. Three more
    # rounds test suspects with other partners. The same number again where a rail is left out.
    neighbours = 6
    return {
        Step.GROUP: 1 + (rails if each_rail and rails > 1 else 0),
        Step.PAIRS: 2 * neighbours,
        Step.RAILS: rounds_of_rails(members, rails),
        # Each port with two partners; with few members a round has not enough of them for all.
        Step.PORTS: 0 if rails == 1 else 2 * rails + 2,
        # Four rounds after the pairs, since two of them may share a member; three in each search;
        # three for members with a bad port, on their other rails; three for pairs of members of
        # different faulty pairs.
        Step.REPEATS: 4 + 3 * pair_searches + 6,
        # Each search ends with two groups that cover all pairs but the faulty ones; members with a
        # bad port are examined on the other rails, in groups of their own.
        Step.REMAINDER: 2 * (pair_searches + 2),
        Step.HALVES: pair_searches * bits(members),
    }


def schedule(
    members: int,
    rails: int,
    deadline_s: Deadline,
    pair_searches: int = PAIR_SEARCHES,
    *,
    each_rail: bool = False,
) -> Schedule:
    """The most rounds and seconds that a bisection of so many members takes."""
    sizes = {
        Step.GROUP: members,
        Step.REMAINDER: members,
        Step.HALVES: max(2, -(-members // 2)),
    }
    return Schedule(
        members,
        rails,
        tuple(
            StepLimit(step, rounds, size := sizes.get(step, 2), rounds * deadline_s(size))
            for step, rounds in step_rounds(
                members, rails, pair_searches, each_rail=each_rail
            ).items()
            if rounds
        ),
    )
