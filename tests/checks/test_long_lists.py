"""Each list and mapping of a snapshot costs the control machine no more than its length does.

Its rows differ and are not healthy, so that rules read each of them. Calls are counted, which no
clock decides: twice as many rows may take twice as many. At its bound each list has a limit of
processor time too, for what runs in one call.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from gpufleet import resolver
from gpufleet.diff.changes import changes
from gpufleet.judge import judge
from gpufleet.model import received
from tests.support.healthy_host import Document, document, with_cards
from tests.support.long_lists import Place, every, most, planted, sections
from tests.support.machine import deadline

DECLARED = {"gpu_stacks": [{"tensorflow": "2.13.1"}], "gpu_expect": {"count": 2}}
# So many rows are added, and once more as many.
STEP = 200
# Of calls for the second step, for each of the first: two for what is done at certain lengths only.
MOST_GROWTH, FEW_CALLS = 2.0, 4000
# The processor time of plan, judgement and diff for a list at its bound, in seconds.
MOST_S = 1.0


@cache
def healthy() -> tuple[Document, Document]:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_cards(plan, snapshot, 2)
    return plan, snapshot


def work(place: Place, count: int) -> Callable[[], None]:
    """What is done with a host in whose snapshot a list has so many rows."""
    plan, snapshot = healthy()
    raw = json.dumps(planted(snapshot, place, every()[place], count)).encode()
    found: Any = received.snapshot(raw, "gpu01")
    assert found["sections"][place[0]]["state"] == "ok", found["sections"][place[0]]["error"]

    def each() -> None:
        resolver.resolve(DECLARED, found, "gpu01")
        judge.judge_typed(plan, found)
        changes(plan, found)

    return each


def calls(work: Callable[[], None]) -> int:
    """How many functions are called, those that are written in C included."""
    count = 0

    def profile(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def seconds(work: Callable[[], None]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def growth(place: Place) -> tuple[int, int]:
    """The calls that each of two steps adds."""
    counts = [calls(work(place, number)) for number in (1, 1 + STEP, 1 + 2 * STEP)]
    return counts[1] - counts[0], counts[2] - counts[1]


def test_every_list_is_found() -> None:
    found = set(every())
    assert len(found) > 200
    for place in ("packages.sources", "smi.devices.[].processes", "kernel_log.events"):
        assert tuple(place.split(".")) in found


@pytest.mark.exhaustive
@pytest.mark.parametrize("section", sections())
def test_twice_as_many_rows_take_twice_as_many_calls(section: str) -> None:
    work(("os", "pythons"), 1)()  # what is read once in a process
    square = []
    for place in every():
        if place[0] == section:
            first, second = growth(place)
            if second > FEW_CALLS + MOST_GROWTH * max(first, 0):
                square.append(f"{'.'.join(place)}: {first} calls, then {second}")
    assert square == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("section", sections())
def test_a_list_at_its_bound_takes_a_bounded_time(section: str) -> None:
    work(("os", "pythons"), 1)()
    slow = []
    for place, part in every().items():
        if place[0] == section:
            each = work(place, most(place, part))
            # A moment in which the machine was busy is none of the list.
            took = min(seconds(each) for _ in range(2))
            if took > deadline(MOST_S):
                slow.append(f"{'.'.join(place)}: {took:.1f} s")
    assert slow == []
