"""The values that are compared, the budget of false alarms, and what is found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

# Without so many other cards of its group a card is not compared.
LEAST_SIBLINGS = 8
NIGHTS_PER_MONTH = 30
# The nights that are tested, and the reference before them: at most so many.
TESTED, MOST_REFERENCE = 10, 40
WINDOW = TESTED + MOST_REFERENCE

# Stands for a card where all cards of a host have it in common.
ALL = "all"
# The kind of findings that are counts of errors, which are no `Kind` of values.
ERRORS = "errors"

Method = Literal["shift", "level", "rise", "group"]
# How the budget is divided.
SHARES: dict[Method, float] = {"shift": 0.4, "level": 0.2, "rise": 0.2, "group": 0.2}
# A value beyond the bound of so many times the budget is a note.
NOTE_FACTOR = 10.0


@dataclass(frozen=True)
class Kind:
    """A kind of values that have noise of the same shape, such as throughputs.

    `worse`: the direction in which a value is a fault. `relative`: values are compared as ratios,
    else as differences in their unit. `least`: a smaller change is no finding, as a share or in the
    unit. `resolution`: noise below it is not distinguished.
    """

    name: str
    worse: Literal["lower", "higher"]
    relative: bool
    least: float
    resolution: float

    @property
    def mean(self) -> str:
        """The name of the mean of a card's measures of this kind."""
        return f"mean {self.name}"

    @property
    def least_loss(self) -> float:
        """`least` on the scale of the comparison."""
        if not self.relative:
            return self.least
        return -math.log1p(-self.least) if self.worse == "lower" else math.log1p(self.least)

    def value(self, oriented: float) -> float:
        """The value that belongs to one on the scale of the comparison."""
        signed = oriented if self.worse == "lower" else -oriented
        return math.exp(signed) if self.relative else signed

    def change(self, oriented: float) -> float:
        """A difference on the scale of the comparison as a share, or in the unit of the values."""
        signed = oriented if self.worse == "lower" else -oriented
        return math.expm1(signed) if self.relative else signed


@dataclass(frozen=True, slots=True)
class Line:
    """One measure of one card in the last nights, oldest first; None: not measured.

    `groups`: by night, what the card shares with its siblings (model, SKU, driver, toolkit). Cards
    with the same history share one tuple.
    """

    host: str
    card: str
    measure: str
    groups: tuple[str, ...]
    values: Sequence[float | None]


@dataclass(frozen=True)
class Budget:
    """How many false alarms a month are accepted, and what competes for them.

    `hosts`: hosts of the fleet. `kinds`: kinds of values that are compared, errors not included.
    `lines`: measures of all cards. `groups`: pairs of a group and a measure.
    """

    alerts_per_month: float
    hosts: int
    kinds: int
    lines: int
    groups: int

    def chance(self, method: Method) -> float:
        """The probability of a false alarm that each comparison of the method may have.

        A host is compared once a night for each kind, and once for errors; a group once a night for
        each measure; a card's permanent offset once for each measure, and not each night again.
        """
        comparisons = {
            "shift": self.hosts * self.kinds * NIGHTS_PER_MONTH,
            "rise": self.hosts * NIGHTS_PER_MONTH,
            "group": self.groups * NIGHTS_PER_MONTH,
            "level": self.lines,
        }[method]
        return self.alerts_per_month * SHARES[method] / max(comparisons, 1)


@dataclass(frozen=True)
class Finding:
    """A card, or a group of cards, that is worse than the fleet's own nights justify.

    `change`: a share for relative kinds, else in the unit of the values; `bound`: the smallest
    change that is a fault. `nights`: how many measured nights in a row it lasts, up to the last
    one; 0 if it has lasted as long as the history. `siblings`: how many other cards it was compared
    with; of `ALL` cards of a host, how many other hosts.
    """

    method: Method | Literal["shared"]
    kind: str
    measure: str
    group: str
    change: float
    bound: float
    nights: int
    siblings: int
    fails: bool
    host: str = ""
    card: str = ""
    # The hosts that share the finding, if there are several.
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Spread:
    """The values of one group and measure in the last night.

    `centre`: their median. `offsets`: by host and card, how far it is from the centre in the last
    nights, as a share or in the unit.
    """

    kind: str
    measure: str
    group: str
    centre: float
    offsets: dict[tuple[str, str], float] = field(default_factory=dict)


@dataclass
class Analysis:
    """The findings and distributions of one night's values.

    `compared`: the (host, card, measure) of the lines that have enough nights and siblings to be
    compared; nobody else's own past is judged here. `judged`: those of them of which the last night
    tells whether they are worse. `levelled`: the (host, card, measure) that are compared with what
    is usual for others. `counted`: the (host, card) whose errors were counted in it.
    """

    findings: list[Finding] = field(default_factory=list)
    spreads: list[Spread] = field(default_factory=list)
    compared: set[tuple[str, str, str]] = field(default_factory=set)
    judged: set[tuple[str, str, str]] = field(default_factory=set)
    levelled: set[tuple[str, str, str]] = field(default_factory=set)
    counted: set[tuple[str, str]] = field(default_factory=set)

    def of(self, spread: Spread) -> list[Finding]:
        """The findings of one distribution; those of a mean where no other one names it."""
        group = [each for each in self.findings if each.group == spread.group]
        own = [each for each in group if each.measure == spread.measure]
        named = {(each.host, each.card) for each in own}
        shown = spread.offsets.keys() | {(host, ALL) for host, _ in spread.offsets}
        return own + [
            each
            for each in group
            if each.measure == f"mean {spread.kind}" and (each.host, each.card) in shown - named
        ]

    def add(self, other: Analysis) -> None:
        """Add what the values of another kind say."""
        self.findings += other.findings
        self.spreads += other.spreads
        self.compared |= other.compared
        self.judged |= other.judged
        self.levelled |= other.levelled
