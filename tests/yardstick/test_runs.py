"""Limits come from the runs of healthy nights, and are never below what those nights showed."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np

from gpufleet.yardstick import runs
from gpufleet.yardstick.runs import LENGTHS


def Runs(noises: list[tuple[str, list[float | None]]]) -> runs.Runs:
    return runs.Runs(
        [host for host, _ in noises],
        np.array([nights for _, nights in noises], float).reshape(
            len(noises), len(noises[0][1]) if noises else 0
        ),
    )


def healthy(hosts: int, nights: int = 20, seed: int = 1) -> list[tuple[str, list[float | None]]]:
    chance = random.Random(seed)
    return [(f"host{host}", [chance.gauss(0, 1) for _ in range(nights)]) for host in range(hosts)]


def test_a_longer_run_needs_less_depth() -> None:
    limits = Runs(healthy(500)).limits(1e-4)
    assert list(limits) == list(LENGTHS)
    assert all(shorter >= longer for shorter, longer in pairwise(limits.values()))
    assert limits[3] > 1.5


def test_a_smaller_budget_needs_more_depth() -> None:
    runs = Runs(healthy(500))
    wide, narrow = runs.limits(1e-2), runs.limits(1e-6)
    assert all(narrow[length] > wide[length] for length in LENGTHS)


def test_what_healthy_hosts_did_names_nobody() -> None:
    noises = healthy(50)
    for host in (7, 21):
        noises[host][1][4:9] = [-40.0, -41.0, -42.0, -43.0, -44.0]
    limits = Runs(noises).limits(1e-5)
    assert limits[3] > 42 and limits[5] > 40
    assert limits[10] < 40


def test_the_worst_host_is_no_example() -> None:
    noises = healthy(50)
    noises[7][1][4:9] = [-40.0, -41.0, -42.0, -43.0, -44.0]
    assert Runs(noises).limits(1e-5)[3] < 10


def test_the_cards_of_a_host_count_once() -> None:
    noises = healthy(50)
    alone = Runs(noises).limits(1e-4)
    assert Runs([*noises, *noises, *noises]).limits(1e-4) == alone


def test_nights_that_were_not_measured_do_not_end_a_run() -> None:
    gap: list[float | None] = [0.0, -5.0, None, -6.0, -7.0, 0.0]
    assert Runs([("host", gap)]).probability(4.9, 3) >= 1 / 3


def test_without_nights_no_limit_is_justified() -> None:
    assert set(Runs([]).limits(0.5).values()) == {math.inf}


def test_nights_that_depend_on_each_other_raise_the_limit_of_long_runs() -> None:
    chance = random.Random(3)
    lasting: list[tuple[str, list[float | None]]] = []
    for host in range(500):
        level = chance.gauss(0, 0.9)
        lasting.append((f"host{host}", [level + chance.gauss(0, 0.44) for _ in range(20)]))
    assert Runs(lasting).limits(1e-4)[10] > 1.2 * Runs(healthy(500)).limits(1e-4)[10]
