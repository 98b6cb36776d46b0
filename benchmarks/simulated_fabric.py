# Apache-2.0, see LICENSE
"""A simulated fabric: members with ports on rails, planted faults, noise, and a clock.

Used by the benchmark of the bisection and by its tests. Every duration and rate is an assumption of
the simulation. Nothing here was measured.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.fabric.bisection import bisect, conclude
from gpufleet.fabric.conclusion import Conclusion, Culprit, Kind
from gpufleet.fabric.rounds import GroupTest, Outcome, Result, Round, worst
from gpufleet.fabric.schedule import PAIR_SEARCHES
from gpufleet.fabric.threshold import Threshold

RAIL_GB_S = 46.0
START_S, START_PER_MEMBER_S, DATA_GB = 5.0, 0.01, 40.0


@dataclass(frozen=True)
class Fault:
    """A simulated fault, and its effect.

    A slow fault leaves `share` of the bandwidth. A member that is `capped` is slow only when its
    rails work together: each of them alone is faster than the cap.
    """

    kind: Kind
    members: tuple[str, ...] = ()
    rail: int | None = None
    effect: Outcome = Outcome.SLOW
    share: float = 0.5
    capped: bool = False


def is_ring_neighbour(pair: tuple[str, ...], members: Sequence[str]) -> bool:
    """Return whether the two of a pair are neighbours in the ring of a test."""
    first, second = (members.index(member) for member in pair)
    return abs(first - second) in {1, len(members) - 1}


class Fabric:
    """Members and rails, some at fault. `ring`: a slow pair shows only between neighbours."""

    def __init__(
        self,
        members: int,
        rails: int = 8,
        faults: Sequence[Fault] = (),
        *,
        noise: float = 0.01,
        seed: int = 1,
        ring: bool = False,
        absent: Sequence[str] = (),
    ) -> None:
        self.members = names(members)
        self.rails = tuple(range(rails))
        self.faults, self.noise, self.ring = tuple(faults), noise, ring
        self.absent = frozenset(absent)
        self.chance = random.Random(seed)
        self.seconds, self.rounds, self.tests = 0.0, 0, 0

    @property
    def declared(self) -> dict[int, float]:
        """The bandwidth of a healthy group, by the number of its rails."""
        return {count: RAIL_GB_S * count for count in range(1, len(self.rails) + 1)}

    def run(self, planned: Round) -> list[Result]:
        """Run a round: its tests at the same time, on disjoint members."""
        taking_part = [member for test in planned.tests for member in test.members]
        assert len(set(taking_part)) == len(taking_part), "a member is in two tests of a round"
        found = [self.test(test) for test in planned.tests]
        durations = [
            planned.deadline_s
            if result.outcome is Outcome.HUNG
            else duration_s(test, result.bus_bandwidth_gb_s)
            for test, result in zip(planned.tests, found, strict=True)
        ]
        self.seconds += min(planned.deadline_s, max(durations))
        self.rounds += 1
        self.tests += len(planned.tests)
        return found

    def test(self, test: GroupTest) -> Result:
        """One test."""
        if self.absent.intersection(test.members):
            return Result(Outcome.NOT_RUN)
        acting = [fault for fault in self.faults if self.acts(fault, test)]
        effects = [fault.effect for fault in acting]
        if Outcome.HUNG in effects:
            return Result(Outcome.HUNG)
        rate = RAIL_GB_S * len(test.rails)
        for fault in acting:
            if fault.effect is Outcome.SLOW:
                whole = RAIL_GB_S * (len(self.rails) if fault.capped else len(test.rails))
                rate = min(rate, whole * fault.share)
        rate *= self.chance.gauss(1, self.noise)
        # Slowness is for the bisection to judge, by the bandwidth.
        effect = worst([Outcome.PASSED, *effects])
        return Result(Outcome.PASSED if effect is Outcome.SLOW else effect, rate)

    def acts(self, fault: Fault, test: GroupTest) -> bool:
        """Return whether a fault has its effect in a test."""
        if fault.rail is not None and fault.rail not in test.rails:
            return False
        if not all(member in test.members for member in fault.members):
            return False
        return (
            fault.kind is not Kind.PAIR
            or not self.ring
            or is_ring_neighbour(fault.members, test.members)
        )

    def threshold(self, declared: bool = True, tolerance: float = 0.1) -> Threshold:
        """A threshold well below the noise: ten of its standard deviations."""
        return Threshold(tolerance, "the simulation", self.declared if declared else {})

    def bisect(
        self, threshold: Threshold | None = None, pair_searches: int = PAIR_SEARCHES
    ) -> Conclusion:
        """Run a whole bisection."""
        steps = bisect(
            self.members, self.rails, threshold or self.threshold(), deadline_s, pair_searches
        )
        return conclude(steps, self.run)


def names(members: int) -> tuple[str, ...]:
    """The names of members, in the order of their ring."""
    return tuple(f"gpu{number:04}" for number in range(members))


def duration_s(test: GroupTest, rate_gb_s: float | None) -> float:
    """The seconds of a test: its processes start and meet, and the data passes each port."""
    data_s = DATA_GB / rate_gb_s if rate_gb_s else 0.0
    return START_S + START_PER_MEMBER_S * len(test.members) + data_s


def deadline_s(members: int) -> float:
    """Twice the seconds of a healthy test on one rail."""
    return 2 * (START_S + START_PER_MEMBER_S * members + DATA_GB / RAIL_GB_S)


def key(found: Fault | Culprit) -> tuple[Kind, frozenset[str], int | None]:
    """The key that a fault and the culprit concluded from it have in common."""
    if isinstance(found, Fault):
        return found.kind, frozenset(found.members), found.rail
    rail = found.rails[0] if found.kind in {Kind.PORT, Kind.RAIL} else None
    return found.kind, frozenset(found.members), rail
