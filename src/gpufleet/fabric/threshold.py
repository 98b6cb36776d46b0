"""Which bandwidth is slow: below a declared figure, else what is usual, else a floor.

The caller passes every figure and its source; this module has none. A declared figure is one for
each number of rails, since eight ports do not reach eight times the rate of one. Where none is
declared, two figures say what is usual, and a bandwidth is slow below either: the median of a round
in which every member takes part, for that number of rails, if the round has four pairs or more; and
the median of what the same group reached in earlier tests. Later rounds are made of suspects and
give no figure: the median of broken hosts is broken. Where neither exists, the floor of this kind
of machine decides.

One figure serves pairs and groups: nccl-tests defines bus bandwidth so that it does not depend on
the number of members (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). Where a
large group is slower all the same, the search ends without a culprit, since only tests of pairs
blame anybody.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .rounds import GroupTest, Outcome, Result

# The upper median of four is not slow unless three of them are.
LEAST_SIBLINGS = 4
# A rail counts as tried when two pairs failed on it without a bandwidth: one may have hung alone.
TRIES = 2


@dataclass(frozen=True)
class Floor:
    """A bus bandwidth in GB/s below which a test is slow, and where the figure comes from."""

    gb_s: float
    because: str


@dataclass(frozen=True)
class Past:
    """The rates of groups in earlier tests: `reached` has the GB/s of this test's group.

    From `tests` earlier ones on a test is slow below `share` of their median.
    """

    reached: Callable[[GroupTest], Sequence[float]]
    tests: int
    share: float

    def floor(self, test: GroupTest) -> Floor | None:
        """The least that is usual for a test's group; None where too few tests are known."""
        rates = self.reached(test)
        if len(rates) < self.tests:
            return None
        because = f"more than {1 - self.share:.0%} below the median of the same hosts' own past"
        return Floor(statistics.median(rates) * self.share, because)


@dataclass(frozen=True)
class Threshold:
    """How far below its figure a bandwidth is slow.

    `tolerance` is a share: 0.1 accepts nine tenths of the figure. It is several times the scatter
    of repeated tests: at three standard deviations a healthy link fails now and then. `source` says
    where tolerance and figures come from, and is shown with the conclusion. `declared_gb_s` has the
    bus bandwidth by the number of rails that a test uses. `past` and `floor` have what is known of
    a test's group and of its kind of machine.
    """

    tolerance: float
    source: str
    declared_gb_s: Mapping[int, float] = field(default_factory=dict)
    past: Past | None = None
    floor: Callable[[GroupTest], Floor | None] = lambda test: None

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise ValueError(f"a tolerance is a share between 0 and 1, not {self.tolerance}")


class Judge:
    """Judges the results of a bisection by its threshold, and remembers the siblings' medians.

    `awaits_siblings`: pairs are tested later, so that a group above its floor is not judged yet.
    """

    def __init__(self, threshold: Threshold, *, awaits_siblings: bool = False) -> None:
        self.threshold, self.awaits_siblings = threshold, awaits_siblings
        self.medians: dict[int, float] = {}
        # The bandwidths of the siblings, by the rails that they used; None where a test had none.
        self._measured: dict[tuple[int, ...], list[float | None]] = {}
        # Why each figure counts that was used so far, in that order.
        self._compared: dict[str, None] = {}

    def has_figure(self, rails: int) -> bool:
        """Return whether tests on so many rails can be judged before siblings were measured."""
        return rails in self.threshold.declared_gb_s or rails in self.medians

    def calibrate(
        self,
        tests: Sequence[GroupTest],
        results: Sequence[Result],
        rail_sets: Sequence[tuple[int, ...]],
    ) -> None:
        """Take the median of rounds in which every member takes part, of at least four pairs each.

        Each of the rail sets has to be measured before: half of the rails may be slow.
        """
        if len(tests) < LEAST_SIBLINGS:
            return
        for test, result in zip(tests, results, strict=True):
            if result.outcome is not Outcome.NOT_RUN:
                measured = result.outcome in {Outcome.PASSED, Outcome.SLOW}
                rate = result.bus_bandwidth_gb_s if measured else None
                self._measured.setdefault(test.rails, []).append(rate)
        siblings = [self._measured.get(rails, []) for rails in rail_sets]
        rates = [[rate for rate in each if rate is not None] for each in siblings]
        complete = all(
            rate or len(each) >= TRIES for rate, each in zip(rates, siblings, strict=True)
        )
        if complete and sum(map(len, rates)) >= LEAST_SIBLINGS:
            # Each rail counts once, however many tests it has.
            self.medians.setdefault(
                len(rail_sets[0]),
                statistics.median_high(statistics.median_high(rate) for rate in rates if rate),
            )

    @property
    def source(self) -> str:
        """The source of the limit: the figures that the results were compared with."""
        return "; or ".join(self._compared) or self.threshold.source

    def least_gb_s(self, test: GroupTest) -> float | None:
        """The lowest bandwidth that is not slow; None where there is no figure."""
        found = self._usual(test) or [floor for floor in [self.threshold.floor(test)] if floor]
        return max((floor.gb_s for floor in found), default=None)

    def _usual(self, test: GroupTest) -> list[Floor]:
        """The figure that is declared, else those that say what is usual."""
        rails, threshold = len(test.rails), self.threshold
        declared = threshold.declared_gb_s.get(rails)
        figure = self.medians.get(rails) if declared is None else declared
        found = []
        if figure is not None:
            found.append(Floor(figure * (1 - threshold.tolerance), threshold.source))
        if declared is None and threshold.past and (past := threshold.past.floor(test)):
            found.append(past)
        return found

    def outcome(self, test: GroupTest, result: Result) -> Outcome:
        """How a test ended, with its bandwidth taken into account."""
        rate = result.bus_bandwidth_gb_s
        if result.outcome is not Outcome.PASSED or rate is None:
            return result.outcome
        found, passed = self._usual(test), Outcome.PASSED
        if not found:
            floor = self.threshold.floor(test)
            if floor is None:
                return Outcome.NOT_JUDGED
            found = [floor]
            if self.awaits_siblings:
                passed = Outcome.NOT_JUDGED
        self._compared.update(dict.fromkeys(floor.because for floor in found))
        # Written so that a bandwidth that is not a number is slow.
        return passed if all(rate >= floor.gb_s for floor in found) else Outcome.SLOW
