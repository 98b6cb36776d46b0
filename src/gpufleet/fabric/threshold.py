"""Which bandwidth is slow: below a declared figure, or below the median of the siblings.

The caller passes every figure and its source; this module has none. A declared figure is one for
each number of rails, since eight ports do not reach eight times the rate of one. Where none is
declared, the median of a round in which every member takes part is the figure for that number of
rails. Later rounds are made of suspects and give no figure: the median of broken hosts is broken.
Bus bandwidth hardly depends on the number of members, for which nccl-tests defines it
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md), so that one figure serves
pairs and groups. Where a large group is slower all the same, the search ends without a culprit:
only tests of pairs blame anybody.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .rounds import GroupTest, Outcome, Result

# A median of two is the mean of both: with three, one of them may be slow.
LEAST_SIBLINGS = 3


@dataclass(frozen=True)
class Threshold:
    """How far below its figure a bandwidth is slow.

    `tolerance` is a share: 0.1 accepts nine tenths of the figure. It is larger than the scatter of
    repeated tests. `source` says where tolerance and figures come from; it is shown with the
    conclusion. `declared_gb_s` has the bus bandwidth by the number of rails that a test uses.
    """

    tolerance: float
    source: str
    declared_gb_s: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise ValueError(f"a tolerance is a share between 0 and 1, not {self.tolerance}")


class Judge:
    """Judges the results of a bisection by its threshold, and remembers the siblings' medians."""

    def __init__(self, threshold: Threshold) -> None:
        self.threshold = threshold
        self.medians: dict[int, float] = {}

    def has_figure(self, rails: int) -> bool:
        """Whether tests on so many rails can be judged before siblings were measured."""
        return rails in self.threshold.declared_gb_s or rails in self.medians

    def calibrate(self, tests: Sequence[GroupTest], results: Sequence[Result]) -> None:
        """Take the medians of a round in which every member takes part."""
        measured: dict[int, dict[tuple[int, ...], list[float]]] = {}
        for test, result in zip(tests, results, strict=True):
            if result.bus_bandwidth_gb_s is not None and result.outcome in {
                Outcome.PASSED,
                Outcome.SLOW,
            }:
                siblings = measured.setdefault(len(test.rails), {})
                siblings.setdefault(test.rails, []).append(result.bus_bandwidth_gb_s)
        for count, siblings in measured.items():
            if sum(map(len, siblings.values())) >= LEAST_SIBLINGS and count not in self.medians:
                # Each rail counts once, however many tests it has, and of two middle values the
                # upper one: half of the tests may be slow, and half of the rails.
                self.medians[count] = statistics.median_high(
                    statistics.median_high(rates) for rates in siblings.values()
                )

    def least_gb_s(self, test: GroupTest) -> float | None:
        """The lowest bandwidth that is not slow; None where there is no figure."""
        rails = len(test.rails)
        figure = self.threshold.declared_gb_s.get(rails, self.medians.get(rails))
        return None if figure is None else figure * (1 - self.threshold.tolerance)

    def outcome(self, test: GroupTest, result: Result) -> Outcome:
        """How a test ended, with its bandwidth taken into account."""
        rate = result.bus_bandwidth_gb_s
        if result.outcome is not Outcome.PASSED or rate is None:
            return result.outcome
        least = self.least_gb_s(test)
        if least is None:
            return Outcome.NOT_JUDGED
        # Written so that a bandwidth that is not a number is slow.
        return Outcome.PASSED if rate >= least else Outcome.SLOW
