"""Lines of cards that are compared with their siblings, as the yardstick gets them."""

from __future__ import annotations

import random
from collections.abc import Callable

from gpufleet.yardstick import fit
from gpufleet.yardstick.analysis import analyse
from gpufleet.yardstick.hosts import Lined, divided, with_several_cards
from gpufleet.yardstick.shifts import parts
from gpufleet.yardstick.values import Analysis, Budget, Kind, Line

SPEED = Kind("throughput", "lower", True, 0.02, 0.001)
HEAT = Kind("temperature", "higher", False, 5.0, 0.5)
NIGHTS, HOSTS, PER_HOST = 50, 12, 4
# The value of a card in a night, by both and its usual value.
Change = Callable[[int, int, float], float]


def lines(
    change: Change,
    level: float = 50.0,
    cards: int = HOSTS * PER_HOST,
    *,
    noise: float = 0.008,
    measure: str = "fp32",
    seed: int = 5,
    per_host: int = PER_HOST,
) -> list[Line]:
    """Cards that differ by 2 %, and nights by `noise`; `change(card, night, value)` adds a fault."""
    chance = random.Random(seed)
    groups = ("H100, driver 550",) * NIGHTS
    found = []
    for card in range(cards):
        usual = level * (1 + chance.gauss(0, 0.02))
        values = [
            change(card, night, usual * (1 + chance.gauss(0, noise))) for night in range(NIGHTS)
        ]
        found.append(Line(f"host{card // per_host}", f"card{card}", measure, groups, values))
    return found


def compared(
    kind: Kind, change: Change, cards: int = HOSTS * PER_HOST, per_host: int = PER_HOST
) -> Analysis:
    """The analysis of such cards, with the budget of a fleet of `HOSTS`."""
    level = 60.0 if kind is HEAT else 50.0
    known = lines(change, level, cards, per_host=per_host)
    return analyse(kind, known, Budget(1, HOSTS, 4, cards * 4, 4))


def unchanged(card: int, night: int, value: float) -> float:
    """No fault."""
    return value


def parted(known: list[Line], rows: fit.Rows) -> tuple[Lined, Lined]:
    """The losses of cards themselves, and of their hosts; `rows`: their residuals."""
    return divided(
        SPEED,
        known,
        rows,
        parts(NIGHTS),
        several=with_several_cards(known),
        groups=known[-1].groups[-1:],
    )
