# Apache-2.0, see LICENSE
"""A fleet of cards with realistic noise, for the comparison of methods that name faulty cards.

All figures are choices of this simulation; none was measured. They are on the careful side: cards
differ permanently, nights have heavy tails and memory, rooms are hot for days, hosts are loaded,
drivers change the speed, and hosts are not reached now and then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpufleet.yardstick.values import Kind, Line

Values = NDArray[np.float64]
NIGHTS, PER_HOST, ROOM_HOSTS = 60, 8, 120
SPEED = Kind("throughput", "lower", True, 0.02, 0.001)
BANDWIDTH = Kind("bandwidth", "lower", True, 0.02, 0.001)
TIME = Kind("start-up time", "higher", True, 0.25, 0.01)
HEAT = Kind("temperature", "higher", False, 5.0, 0.5)


@dataclass(frozen=True)
class Measure:
    """A simulated measure: its level, and the standard deviations of its parts as shares.

    `cards`: of the permanent differences between cards; `noise`: of a card's nights; `room` and
    `heat`: of the room's slow drift, and the effect of a hot room; `load`: the effect of a loaded
    host, in terms of its loss.
    """

    name: str
    kind: Kind
    level: float
    cards: float
    noise: float
    room: float = 0.003
    heat: float = -0.03
    load: float = -1.0


MEASURES = (
    Measure("fp32", SPEED, 50, 0.03, 0.008),
    Measure("fp16", SPEED, 600, 0.04, 0.010),
    Measure("framework", SPEED, 45, 0.03, 0.010),
    Measure("memory", BANDWIDTH, 2500, 0.02, 0.004),
    Measure("host", BANDWIDTH, 50, 0.02, 0.010),
    Measure("first result", TIME, 0.5, 0.04, 0.06, load=3.0, heat=0.03),
    Measure("import", TIME, 6, 0.04, 0.08, load=5.0, heat=0.0),
    Measure("temperature", HEAT, 60, 0.04, 0.015, room=0.02, heat=0.12, load=0.0),
)
# Each counter: how many of the cards count any now and then, and how many a fault adds each night.
COUNTERS = {
    "corrected memory errors": (0.1, 200.0),
    "replayed packets": (0.1, 200.0),
    "remapped rows": (0.01, 10.0),
}


@dataclass(frozen=True)
class Fault:
    """A card that loses a share of its throughput, or has more errors, from a night on."""

    card: int
    night: int
    loss: float = 0.0
    counter: str = ""


@dataclass
class Fleet:
    """Simulated nights: by measure, values of cards and nights; NaN: not measured."""

    cards: int
    seed: int
    faults: list[Fault] = field(default_factory=list)
    hot_rooms: bool = True
    values: dict[str, Values] = field(default_factory=dict)
    errors: dict[str, Values] = field(default_factory=dict)
    groups: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = np.random.default_rng(self.seed)
        per_host = PER_HOST if self.cards >= 8 * PER_HOST else 5
        self.hosts = np.arange(self.cards) // per_host
        count = int(self.hosts[-1]) + 1
        self.rooms = np.arange(count) // ROOM_HOSTS
        model = (np.arange(count) * 3 // count) % 2 if self.cards >= 1000 else np.zeros(count, int)
        self._releases(chance, count, model)
        reached = chance.random((count, NIGHTS)) > 0.01
        load = self._loads(chance, count)
        hot = self._hot(chance)
        # Some cards have more noise than others, in all measures.
        unrest = np.exp(chance.normal(0, 0.3, self.cards))
        for measure in MEASURES:
            speeds = (
                chance.normal(0, 0.02, (2, 4)) if measure.kind is not HEAT else np.zeros((2, 4))
            )
            shares = (
                measure.cards * chance.normal(size=(self.cards, 1))
                + measure.noise * unrest[:, None] * self._nights(chance)
                + 0.005 * slow(chance, (1, NIGHTS), 0.5)
                + (measure.room * slow(chance, (len(hot), NIGHTS), 0.9) + measure.heat * hot)[
                    self.rooms[self.hosts]
                ]
                + speeds[model[:, None], self.release][self.hosts]
                + measure.load * load[self.hosts] * chance.uniform(0.5, 1, (self.cards, 1))
            )
            values = measure.level * np.where(model == 1, 1.7, 1.0)[self.hosts][:, None]
            values = values * np.exp(shares)
            for fault in self.faults:
                if fault.loss and measure.kind is SPEED:
                    values[fault.card, fault.night :] *= 1 - fault.loss
            if measure.kind is HEAT:
                values = np.round(values)
            values[~reached[self.hosts]] = np.nan
            self.values[measure.name] = values
        for counter in COUNTERS:
            self.errors[counter] = self._errors(chance, counter, reached)

    def _releases(self, chance: np.random.Generator, count: int, model: NDArray[np.int_]) -> None:
        """Drivers: each host gets the next release within some nights of its publication."""
        self.release = np.zeros((count, NIGHTS), int)
        for number, published in enumerate((12, 33, 48), 1):
            late = published + chance.integers(0, 6, count)
            self.release[np.arange(NIGHTS) >= late[:, None]] = number
        names = [
            tuple(f"model {kind}, driver {release}" for release in line)
            for kind, line in zip(model, self.release, strict=True)
        ]
        # Cards with the same history share one tuple.
        shared: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.groups = [shared.setdefault(names[host], names[host]) for host in self.hosts]

    def _nights(self, chance: np.random.Generator) -> Values:
        """A card's nights, with deviation 1: a heavy tail, and a fifth of the variance lasts."""
        heavy = chance.standard_t(4, (self.cards, NIGHTS)) / np.sqrt(2)
        return np.sqrt(0.8) * heavy + np.sqrt(0.2) * slow(chance, (self.cards, NIGHTS), 0.8)

    def _loads(self, chance: np.random.Generator, count: int) -> Values:
        """Loaded hosts: one night in a hundred, now and then the next one too, 1 to 6 %."""
        begins = chance.random((count, NIGHTS)) < 0.01
        stays = np.zeros_like(begins)
        for night in range(1, NIGHTS):
            before = begins[:, night - 1] | stays[:, night - 1]
            stays[:, night] = before & (chance.random(count) < 0.1)
        return np.where(begins | stays, chance.uniform(0.01, 0.06, (count, NIGHTS)), 0.0)

    def _hot(self, chance: np.random.Generator) -> Values:
        """Rooms whose cooling fails for some days: a fifth of them in these nights."""
        hot = np.zeros((int(self.rooms[-1]) + 1, NIGHTS))
        for room in hot:
            first, lasts = int(chance.integers(25, 50)), int(chance.integers(3, 12))
            if chance.random() < 0.2 and self.hot_rooms and len(hot) > 1:
                room[first : first + lasts] = 1.0
        return hot

    def _errors(
        self, chance: np.random.Generator, counter: str, reached: NDArray[np.bool_]
    ) -> Values:
        """New errors of each night: most cards have none, some have some, in bursts."""
        restless, more = COUNTERS[counter]
        restless_cards = chance.random(self.cards) < restless
        rates = np.where(restless_cards, chance.gamma(0.5, 2.0, self.cards), 0.002)
        bursts = chance.gamma(0.7, 1 / 0.7, (self.cards, NIGHTS))
        values = chance.poisson(rates[:, None] * bursts).astype(float)
        for fault in self.faults:
            if fault.counter == counter:
                values[fault.card, fault.night :] += chance.poisson(more, NIGHTS - fault.night)
        values[~reached[self.hosts]] = np.nan
        return values

    def host(self, card: int) -> str:
        """The name of a card's host."""
        return f"gpu{self.hosts[card]:04}"

    def lines(self, measures: dict[str, Values], first: int, last: int) -> Iterator[Line]:
        """The values of some nights, `last` included, as the comparison gets them."""
        groups = {each: each[first : last + 1] for each in set(self.groups)}
        for name, values in measures.items():
            rows = values[:, first : last + 1]
            known = [
                [None if math.isnan(value) else value for value in row] for row in rows.tolist()
            ]
            for card, row in enumerate(known):
                yield Line(self.host(card), f"card {card}", name, groups[self.groups[card]], row)


def slow(chance: np.random.Generator, shape: tuple[int, int], memory: float) -> Values:
    """Drift with deviation 1, in which each night keeps this part of the night before."""
    steps = chance.normal(size=shape)
    found = np.empty(shape)
    found[:, 0] = steps[:, 0]
    for night in range(1, shape[1]):
        found[:, night] = memory * found[:, night - 1] + np.sqrt(1 - memory**2) * steps[:, night]
    return found
