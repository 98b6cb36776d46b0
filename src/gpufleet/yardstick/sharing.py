"""What is worse on a card or host by itself, and what many hosts share, such as a hot room."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .shifts import Noises, Shift
from .values import ALL, Finding, Kind

# A fault is shared by at least so many hosts, and by this part of the group's hosts, or of all.
# They lost about as much, since about the same night.
LEAST_SHARING, SHARING = 4, 0.01
ALIKE_LOSS, ALIKE_NIGHTS = 2.0, 3
# What a host shared in one of so many nights before is not its own tonight: a job slows it when its
# room has just recovered, and the run of nights would go on.
SHARED_NIGHTS = 3
# A host shares a loss when so many of its cards have it, or its only one: one card of several that
# is slow may be broken.
CARDS = 2

_Key = tuple[str, str, str]
# By group and measure: how many cards each host has.
Sizes = dict[tuple[str, str], Counter[str]]


class Losses:
    """The lines that are compared, in one of the last nights."""

    def __init__(self, known: Sequence[Noises], dropped: int) -> None:
        """`dropped`: so many of the last nights are left out."""
        self._known, self._dropped = known, dropped
        # How many lines each host has.
        self.sizes: Sizes = defaultdict(Counter)
        for noises in known:
            for line in noises.lines:
                self.sizes[line.groups[-1], line.measure][line.host] += 1

    def median(self, measure: str, cards: Collection[tuple[str, str]]) -> float:
        """How far these cards are from their usual value; 0 where none was measured."""
        found = []
        for noises in self._known:
            nights = noises.tested.shape[1] - self._dropped
            if nights > 0 and noises.lines and noises.lines[0].measure == measure:
                shifts = noises.tested[:, nights - 1] * noises.sigmas
                found += [
                    shift
                    for line, shift in zip(noises.lines, shifts.tolist(), strict=True)
                    if (line.host, line.card) in cards and not math.isnan(shift)
                ]
        return statistics.median(found) if found else 0.0


def judged(kind: Kind, nights: Sequence[Night]) -> list[Finding]:
    """Each host's or card's finding of the last night, or one of all hosts that share it.

    `nights`: the last one first. A fault that enough hosts of all groups share is a finding of each
    of these groups.
    """
    tonight, lately = nights[0], nights[: 1 + SHARED_NIGHTS]
    found: list[Finding] = []
    for (group, measure), members in tonight.members.items():
        alike = [one for one, _ in members if _key(one) in tonight.shared]
        if alike:
            found.append(
                Finding(
                    "shared",
                    kind.name,
                    measure,
                    group,
                    statistics.median(one.change for one in alike),
                    statistics.median(one.bound for one in alike),
                    round(statistics.median(one.nights for one in alike)),
                    tonight.sizes[group, measure].total(),
                    fails=True,
                    hosts=tuple(sorted({one.host for one in alike})),
                )
            )
        found += [
            one
            for one, grade in members
            if grade != "near"
            and _key(one) not in tonight.shared
            and not any(night.explains(one, ago) for ago, night in enumerate(lately))
        ]
    return found


@dataclass(frozen=True)
class _Together:
    """Hosts or cards that share a loss, for so many nights."""

    cards: frozenset[tuple[str, str]]
    loss: float
    nights: float


class Night:
    """What is worse in a night, and what of it is shared."""

    def __init__(self, kind: Kind, shifts: Iterable[Shift], sizes: Sizes, lines: Losses) -> None:
        """`sizes`: by group and measure, the cards of each host."""
        self.sizes = sizes
        self.members: dict[tuple[str, str], list[tuple[Finding, str]]] = defaultdict(list)
        self._kind, self._lines = kind, lines
        for shift in shifts:
            line = shift.noise.line
            size = sizes[line.groups[-1], line.measure]
            siblings = (len(size) if line.card == ALL else size.total()) - 1
            finding = shift.finding(kind, siblings)
            self.members[line.groups[-1], line.measure].append((finding, shift.grade))
        everywhere: set[_Key] = set()
        # A room has cards of several groups.
        for name in {name for _, name in self.members}:
            each = [
                one
                for (_, measure), members in self.members.items()
                if measure == name
                for one, _ in members
            ]
            hosts = sum(
                (own for (_, measure), own in lines.sizes.items() if measure == name), Counter()
            )
            everywhere |= {_key(one) for one in _shared(each, hosts)}
        self.shared: set[_Key] = set()
        self._together: list[_Together] = []
        for key, members in self.members.items():
            each = [one for one, _ in members]
            alike = _shared(each, lines.sizes[key])
            if not alike and any(one.fails and _key(one) in everywhere for one in each):
                alike = [one for one in each if _key(one) in everywhere]
            self.shared |= {_key(one) for one in alike}
            if alike:
                self._together.append(
                    _Together(
                        frozenset((one.host, one.card) for one in alike),
                        statistics.median(abs(one.change) for one in alike),
                        statistics.median(one.nights for one in alike),
                    )
                )

    def explains(self, one: Finding, ago: int) -> bool:
        """Whether what is shared in this night explains a loss that is found so many nights later.

        It is no larger and began about then, and those who share lost about as much in this measure
        too, even if there is too much noise in it for enough of them to be near a limit.
        """
        return any(
            (one.host, one.card) in each.cards
            and abs(one.change) <= each.loss * ALIKE_LOSS
            and abs(one.nights - ago - each.nights) <= ALIKE_NIGHTS
            and abs(self._kind.change(self._lines.median(one.measure, each.cards)))
            >= abs(one.change) / ALIKE_LOSS
            for each in self._together
        )


def _shared(each: Sequence[Finding], hosts: Mapping[str, int]) -> list[Finding]:
    """Those that share a loss: enough hosts have about the usual one since about the same night.

    A card that lost less, or whose run is shorter, is among them: a single better night ends a run.
    `hosts`: how many cards each has.
    """
    own = Counter(one.host for one in each)
    each = [one for one in each if own[one.host] >= min(CARDS, hosts[one.host])]
    if not each:
        return []
    size = statistics.median(abs(one.change) for one in each)
    nights = statistics.median(one.nights for one in each)
    within = [
        one
        for one in each
        if abs(one.change) <= size * ALIKE_LOSS and one.nights <= nights + ALIKE_NIGHTS
    ]
    alike = {
        one.host
        for one in within
        if abs(one.change) >= size / ALIKE_LOSS and one.nights >= nights - ALIKE_NIGHTS
    }
    enough = len(alike) >= max(LEAST_SHARING, SHARING * len(hosts))
    return within if enough and any(one.fails for one in within) else []


def _key(each: Finding) -> _Key:
    return each.host, each.card, each.measure
