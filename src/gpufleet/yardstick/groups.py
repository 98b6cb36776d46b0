"""Which groups have become worse as a whole, and which faults many hosts share."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import comb

from .fit import Levels
from .runs import TAIL_POWER
from .shifts import LEAST_REFERENCE, Parts, Shift
from .values import ALL, Budget, Finding, Kind, Line

# A group is worse when so many nights in a row are further below than twice the worst night of the
# reference: nights of a group depend on each other more than those of single cards.
NIGHTS, MARGIN = 3, 2.0
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


def drifts(
    kind: Kind, lines: Sequence[Line], levels: Levels, nights: Parts, budget: Budget
) -> list[Finding]:
    """The groups of one measure that are worse than in the reference nights.

    The cards of a group are followed back: before an upgrade they were another group.
    """
    histories: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for line in lines:
        histories[line.groups[-1]][line.groups] += 1
    found = []
    for group in histories if nights.tested else ():
        past = histories[group].most_common(1)[0][0]
        heights = [levels[night].get(past[night]) for night in range(len(levels))]
        reference = [
            value for value in (heights[night] for night in nights.reference) if value is not None
        ]
        last = [value for value in heights[nights.tested.start :] if value is not None]
        if not group or heights[-1] is None:
            continue
        if len(reference) < LEAST_REFERENCE or len(last) < NIGHTS:
            continue
        centre = statistics.median(reference)
        # So likely are the last nights the lowest of all, where the order of nights is random.
        lowest = 1 / comb(len(reference) + NIGHTS, NIGHTS)
        stretch = max(1.0, lowest / budget.chance("group")) ** (1 / TAIL_POWER)
        bound = max(MARGIN * stretch * (centre - min(reference)), kind.least_loss, kind.resolution)
        below = 0
        for value in reversed(last):
            if centre - value < bound:
                break
            below += 1
        if below >= NIGHTS:
            found.append(
                Finding(
                    "group",
                    kind.name,
                    lines[0].measure,
                    group,
                    kind.change(statistics.median(last[-below:]) - centre),
                    kind.change(-bound),
                    below,
                    sum(histories[group].values()),
                    fails=True,
                )
            )
    return found


def judged(kind: Kind, nights: Sequence[Night]) -> list[Finding]:
    """Each host's or card's finding of the last night, or one of all hosts that share it.

    `nights`: the last one first. A fault that enough hosts of all groups share is a finding of each
    of these groups.
    """
    tonight, before = nights[0], nights[1 : 1 + SHARED_NIGHTS]
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
            and (
                tonight.is_shared_by(one)
                or not any(night.explains(one, ago) for ago, night in enumerate(before, 1))
            )
        ]
    return found


class Night:
    """What is worse in a night, and what of it is shared."""

    def __init__(self, kind: Kind, shifts: Iterable[Shift], sizes: Sizes, own: Sizes) -> None:
        """`sizes`: by group and measure, the cards of each host; `own`: its lines."""
        self.sizes = sizes
        self.members: dict[tuple[str, str], list[tuple[Finding, str]]] = defaultdict(list)
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
            hosts = sum((each for (_, measure), each in own.items() if measure == name), Counter())
            everywhere |= {_key(one) for one in _shared(each, hosts)}
        self.shared: set[_Key] = set()
        # By host and card: the losses that it shares, and for how many nights.
        self._losses: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        for key, members in self.members.items():
            each = [one for one, _ in members]
            alike = _shared(each, own[key])
            if not alike and any(one.fails and _key(one) in everywhere for one in each):
                alike = [one for one in each if _key(one) in everywhere]
            self.shared |= {_key(one) for one in alike}
            if alike:
                loss = statistics.median(abs(one.change) for one in alike)
                nights = statistics.median(one.nights for one in alike)
                for one in alike:
                    self._losses[one.host, one.card].append((loss, nights))

    def is_shared_by(self, one: Finding) -> bool:
        """Whether the host or card shares something, in whichever measure."""
        return (one.host, one.card) in self._losses

    def explains(self, one: Finding, ago: int) -> bool:
        """Whether what was shared in this night explains a loss that is found so many nights later.

        In whichever measure, since fewer hosts are seen to share it where there is more noise; but
        it has to be no larger, and to have begun about then.
        """
        return any(
            abs(one.change) <= loss * ALIKE_LOSS and abs(one.nights - ago - nights) <= ALIKE_NIGHTS
            for loss, nights in self._losses.get((one.host, one.card), ())
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
