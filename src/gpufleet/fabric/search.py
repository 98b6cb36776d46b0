"""The state of a bisection that all of its steps share: members, rails, evidence, limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from typing import TypeVar

from .evidence import Evidence, Rails
from .rounds import Deadline, GroupTest, Observation, Result, Round
from .schedule import PAIR_SEARCHES, Step, step_rounds
from .threshold import LEAST_SIBLINGS, Judge, Threshold

T = TypeVar("T")
Steps = Generator[Round, Sequence[Result], T]


class Search:
    """Yields rounds, enters their results into the evidence, and keeps to the schedule."""

    def __init__(
        self,
        members: Sequence[str],
        rails: Sequence[int],
        threshold: Threshold,
        deadline_s: Deadline,
        pair_searches: int = PAIR_SEARCHES,
        *,
        each_rail: bool = False,
    ) -> None:
        if len(members) < 2 or len(set(members)) != len(members):
            raise ValueError("a group has two or more members, each once")
        if not rails or len(set(rails)) != len(rails):
            raise ValueError("a group has one or more rails, each once")
        self.members, self.all_rails = tuple(members), tuple(sorted(rails))
        # The rails that are not at fault: the tests after the search for bad rails use these.
        self.rails: Rails = self.all_rails
        # The rails on which no member has a bad port, once these are known.
        self.sound_rails: Rails = ()
        self.judge = Judge(threshold, awaits_siblings=len(members) // 2 >= LEAST_SIBLINGS)
        self.deadline_s = deadline_s
        self.evidence = Evidence()
        self.pair_searches = pair_searches
        self.limits = step_rounds(len(members), len(rails), pair_searches, each_rail=each_rail)
        self.used: Counter[Step] = Counter()
        self.rounds = 0
        self.unknown: list[str] = []

    def left(self, step: Step) -> int:
        """How many more rounds the schedule has for a step."""
        return self.limits[step] - self.used[step]

    def run(
        self,
        step: Step,
        tests: Iterable[GroupTest],
        siblings: Sequence[Rails] = (),
    ) -> Steps[list[Observation]]:
        """One round; nothing where there is no test, or the schedule has no round left.

        `siblings`: all members take part, and the median of the tests on these rails, each set of
        them as good as the other, is a figure from then on.
        """
        planned = tuple(tests)
        results = yield from self.ask(step, planned)
        if siblings and results:
            self.judge.calibrate(planned, results, siblings)
        return self.enter([(self.rounds, *each) for each in zip(planned, results, strict=True)])

    def ask(self, step: Step, planned: Sequence[GroupTest]) -> Steps[Sequence[Result]]:
        """The results of one round, before they are judged."""
        if not planned or self.left(step) <= 0:
            return []
        self.used[step] += 1
        self.rounds += 1
        deadline = max(self.deadline_s(len(test.members)) for test in planned)
        results = yield Round(self.rounds, step.value, tuple(planned), deadline)
        if len(results) != len(planned):
            raise ValueError(f"{len(planned)} tests have {len(results)} results")
        return results

    def enter(self, rows: Sequence[tuple[int, GroupTest, Result]]) -> list[Observation]:
        """Judge the results of tests, each with the number of its round, and keep them."""
        seen = [
            Observation(
                len(self.evidence.observations) + number,
                round_number,
                test,
                self.judge.outcome(test, result),
                result.bus_bandwidth_gb_s,
                self.judge.least_gb_s(test),
            )
            for number, (round_number, test, result) in enumerate(rows, 1)
        ]
        for each in seen:
            self.evidence.add(each)
        return seen

    def is_good(self, member: str) -> bool:
        """Return whether a member passed a test on all rails that are not at fault."""
        return self.evidence.is_good(member, self.rails)

    def good(self) -> list[str]:
        """The members that passed a test on all rails that are not at fault."""
        good = self.evidence.good(self.rails)
        return [member for member in self.members if member in good]

    def suspects(self) -> list[str]:
        """The members that took part in tests and passed none on these rails."""
        suspected = self.evidence.ran - self.evidence.good(self.rails)
        return [member for member in self.members if member in suspected]
