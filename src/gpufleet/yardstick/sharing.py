"""Losses of a card or host by itself, and losses that many hosts share, such as by a hot room."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from . import votes
from .fit import Rows
from .shifts import Noises, Shift
from .values import ALL, Finding, Kind

# A fault is shared by at least so many hosts, and by this part of the group's hosts, or of all.
# They lost about as much, since about the same night.
LEAST_SHARING, SHARING = 4, 0.01
ALIKE_LOSS, ALIKE_NIGHTS = 2.0, 3
# A loss that a host shared in one of so many nights before is not its own: a job slows it when its
# room has just recovered, and the run of nights would go on.
SHARED_NIGHTS = 3
# A run of so many nights near a limit is no chance where enough hosts have it.
LONG = 5
# For so many nights that neighbours hide, what was found of a card before holds on.
HIDDEN_NIGHTS = 3
# This part of those who share a loss lost about as much in another measure, where it explains that.
MOST = 0.6
# A host shares a loss when so many of its cards have it, or its only one: one card of several that
# is slow may be broken.
CARDS = 2

_Key = tuple[str, str, str]
# By group and measure: how many cards each host has.
Sizes = dict[tuple[str, str], Counter[str]]


def line_counts(known: Iterable[Noises]) -> Sizes:
    """How many lines each host has of each group and measure."""
    found: Sizes = defaultdict(Counter)
    for noises in known:
        for line in noises.lines:
            found[line.groups[-1], line.measure][line.host] += 1
    return found


class Losses:
    """The lines that are compared, in one of the last nights."""

    def __init__(self, known: Sequence[Noises], sizes: Sizes, dropped: int) -> None:
        """`sizes`: their `line_counts`. `dropped`: so many of the last nights are left out."""
        self._known, self.sizes, self._dropped = known, sizes, dropped
        self._shifts: dict[str, dict[tuple[str, str], float]] = {}

    def shifts(self, measure: str) -> dict[tuple[str, str], float]:
        """By host and card, how far it is from its usual value, where it was measured."""
        if measure not in self._shifts:
            found = self._shifts[measure] = {}
            for noises, night in self._nights():
                if noises.lines and noises.lines[0].measure == measure:
                    found |= {
                        (line.host, line.card): value
                        for line, value in zip(
                            noises.lines, (night * noises.sigmas).tolist(), strict=True
                        )
                        if not math.isnan(value)
                    }
        return self._shifts[measure]

    def judged(self) -> set[_Key]:
        """The host, card and measure of which this night tells whether they are worse."""
        return {
            (line.host, line.card, line.measure)
            for noises, night in self._nights()
            for line, value in zip(noises.lines, night.tolist(), strict=True)
            if not math.isnan(value)
        }

    def _nights(self) -> Iterator[tuple[Noises, Rows]]:
        """The lines of each measure, and their values in the night."""
        for noises in self._known:
            tested = noises.tested(self._dropped)
            if tested.shape[1]:
                yield noises, tested[:, -1]


def judged(kind: Kind, nights: Sequence[Night]) -> list[Finding]:
    """Each host's or card's finding of the last night, or one of all hosts that share it.

    `nights`: the last one first. A fault that enough hosts of all groups share is a finding of each
    of these groups. It holds on for hosts that are as slow when most of them have just recovered.
    """
    tonight = nights[0]
    found: list[Finding] = []
    for (group, measure), members in tonight.members.items():
        alike = [one for one, _ in members if _key(one) in tonight.shared]
        for one, grade in members:
            if grade != "near" and _key(one) not in tonight.shared:
                ago, room = _explained(one, nights)
                if room is None:
                    found.append(one)
                elif ago and room.found:
                    alike.append(one)
        if any(_key(one) in tonight.clear for one in alike):
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
                    card=ALL if alike[0].card == ALL else "",
                    hosts=tuple(sorted({one.host for one in alike})),
                )
            )
    return found


def _explained(one: Finding, nights: Sequence[Night]) -> tuple[int, _Together | None]:
    """The group that shared tonight's loss, and how many nights ago; None: none did lately."""
    for ago, night in enumerate(nights[: 1 + SHARED_NIGHTS]):
        if room := night.explains(one, ago, nights[0]):
            return ago, room
    return 0, None


def standing(
    kind: Kind, nights: Sequence[Night], measured: Container[tuple[str, str]] | None
) -> list[Finding]:
    """Findings of the last night, and earlier ones of a card that its neighbours hide now.

    `measured`: the hosts and cards that were measured in the last night; None: what is known of the
    others counts as well. What was found `HIDDEN_NIGHTS` before holds on while no night tells of
    it.
    """
    found = judged(kind, nights)
    known = nights[0].judged | {_key(each) for each in found}
    for ago in range(1, 1 + HIDDEN_NIGHTS):
        found += [
            each
            for each in judged(kind, nights[ago:])
            if each.fails
            and _key(each) not in known
            and (
                (each.host, each.card) in measured
                if measured is not None
                else not _is_known(each, known)
            )
        ]
        known |= nights[ago].judged | {_key(each) for each in found}
    return found


def _is_known(finding: Finding, known: Collection[_Key]) -> bool:
    """Return whether later nights tell of most of the hosts that shared a finding."""
    judged = {host for host, _, _ in known} & set(finding.hosts)
    return 2 * len(judged) > len(finding.hosts) if finding.hosts else False


@dataclass(frozen=True)
class _Together:
    """Hosts or cards that share a loss, for so many nights; `found`: it is a finding."""

    found: bool
    cards: frozenset[tuple[str, str]]
    loss: float
    # How many nights the usual one and the longest one lasts.
    nights: float
    most_nights: float


class Night:
    """The losses of a night, and those among them that are shared."""

    def __init__(self, kind: Kind, shifts: Iterable[Shift], sizes: Sizes, lines: Losses) -> None:
        """`sizes`: by group and measure, the cards of each host."""
        self.sizes = sizes
        self.members: dict[tuple[str, str], list[tuple[Finding, str]]] = defaultdict(list)
        # Losses that fail by themselves, or where enough others lost as much.
        self.clear: set[_Key] = set()
        self._kind, self._lines = kind, lines
        self._losses: dict[_Key, list[tuple[float, float]]] = {}
        for shift in shifts:
            line = shift.noise.line
            size = sizes[line.groups[-1], line.measure]
            siblings = (len(size) if line.card == ALL else size.total()) - 1
            finding = shift.finding(kind, siblings)
            self._losses[_key(finding)] = shift.losses(kind)
            self.members[line.groups[-1], line.measure].append((finding, shift.grade))
            if shift.grade in ("fails", "shared"):
                self.clear.add(_key(finding))
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
            clear = [one for one in each if _key(one) in self.clear]
            everywhere |= {_key(one) for one in _shared(each, hosts, clear, self._more_than)}
        self._worse = {
            (one.host, one.card) for members in self.members.values() for one, _ in members
        }
        self.shared: set[_Key] = set()
        self._together: list[_Together] = []
        for key, members in self.members.items():
            each = [one for one, _ in members]
            clear = [one for one in each if _key(one) in self.clear]
            alike = _shared(each, lines.sizes[key], clear, self._more_than)
            if not alike and any(_key(one) in everywhere for one in clear):
                alike = [one for one in each if _key(one) in everywhere]
            self.shared |= {_key(one) for one in alike}
            # A room may be hot for long and no host of it beyond a limit, but for a loaded one.
            room = alike or _shared(
                each, lines.sizes[key], [one for one in each if _is_long(one)], self._more_than
            )
            if room:
                runs = [one.nights for one in room if _key(one) in self.clear or _is_long(one)]
                self._together.append(
                    _Together(
                        bool(alike),
                        frozenset((one.host, one.card) for one in room),
                        _usual(room),
                        statistics.median(runs),
                        max(runs),
                    )
                )

    @cached_property
    def judged(self) -> set[_Key]:
        """The host, card and measure of which this night tells whether they are worse."""
        return self._lines.judged()

    def explains(self, one: Finding, ago: int, tonight: Night) -> _Together | None:
        """The hosts that share in this night the cause of a loss found so many nights later.

        What is beyond it is no fault by itself, it began about then, and most of the others lost
        about as much in this measure too, even if there is too much noise in it for enough of them
        to be near a limit. Later it does so only when most of them have recovered.
        """
        explaining = (
            each
            for each in self._together
            if (one.host, one.card) in each.cards
            and not tonight._more_than(one, each.loss)
            and each.nights - ALIKE_NIGHTS <= one.nights - ago <= each.most_nights + ALIKE_NIGHTS
            and not (ago and len(each.cards & tonight._worse) > len(each.cards) / 2)
            and self._lost_too(one, each.cards)
        )
        return next(explaining, None)

    def _more_than(self, one: Finding, loss: float) -> bool:
        """Return whether a line lost far more than others, and the rest of its loss is a fault.

        A job may slow a host in some nights of a hot room.
        """
        return abs(one.change) > loss * ALIKE_LOSS and any(
            lost - loss > limit for lost, limit in self._losses[_key(one)]
        )

    def _lost_too(self, one: Finding, cards: Collection[tuple[str, str]]) -> bool:
        """Return whether most of the others lost half as much or more in this measure."""
        known = self._lines.shifts(one.measure)
        others = [card for card in cards if card in known and card != (one.host, one.card)]
        if not others:
            return False
        losses = [abs(self._kind.change(min(known[card], 0.0))) for card in others]
        weights = votes.weights(votes.owners(host for host, _ in others)).tolist()
        alike = sum(
            weight
            for loss, weight in zip(losses, weights, strict=True)
            if loss >= abs(one.change) / ALIKE_LOSS
        )
        return bool(alike >= MOST * sum(weights))


def _is_long(one: Finding) -> bool:
    return one.nights >= LONG


def _usual(each: Sequence[Finding]) -> float:
    """The loss that is usual for those that share one."""
    return votes.median_of_hosts([abs(one.change) for one in each], (one.host for one in each))


def _shared(
    each: Sequence[Finding],
    hosts: Mapping[str, int],
    clear: Collection[Finding],
    more_than: Callable[[Finding, float], bool],
) -> list[Finding]:
    """The losses that hosts share: enough hosts lost about as much since about the same night.

    A card that lost less, or whose run is shorter, is among them: a single better night ends a run.
    `hosts`: how many cards each has. `clear`: what is no mere bad night, of which one is among them
    and which tell the usual loss. `more_than`: whether one lost too much to be among them.
    """
    own = Counter(one.host for one in each)
    each = [one for one in each if own[one.host] >= min(CARDS, hosts[one.host])]
    known = {_key(one) for one in clear}
    losing = [one for one in each if _key(one) in known]
    if not losing:
        return []
    size = _usual(losing)
    runs: dict[str, int] = {}
    for one in each:
        if size / ALIKE_LOSS <= abs(one.change) <= size * ALIKE_LOSS:
            runs[one.host] = max(one.nights, runs.get(one.host, 0))
    enough = math.ceil(max(LEAST_SHARING, SHARING * len(hosts)))
    if len(runs) < enough:
        return []
    nights = sorted(runs.values())[-enough]
    within = [
        one for one in each if not more_than(one, size) and one.nights <= nights + ALIKE_NIGHTS
    ]
    alike = sum(abs(run - nights) <= ALIKE_NIGHTS for run in runs.values())
    return within if alike >= enough and any(_key(one) in known for one in within) else []


def _key(each: Finding) -> _Key:
    return each.host, each.card, each.measure
