"""Each list and mapping of a snapshot costs the control machine no more than its length does.

Its rows differ and are not healthy, so that rules read each of them. Calls are counted, which no
clock decides: four times as many rows may take four times as many. At its bound each list has a limit of
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

from gpufleet.components import resolver
from gpufleet.components.changes import changes
from gpufleet.documents import received
from gpufleet.judge import judge
from tests.support.healthy_host import Document, document, with_cards
from tests.support.long_lists import Place, every, most, planted, sections
from tests.support.machine import deadline

DECLARED = {"gpu_stacks": [{"tensorflow": "2.13.1"}], "gpu_expect": {"count": 2}}
# One row, some, and four times as many.
SIZES = (1, 120, 480)
# The calls that the last size adds to the first, for each that the second adds: 4 where they grow
# with the rows, 16 where with their square. What is done at certain lengths only, as where a cache
# of Python's is full, takes few; all pairs of the rows are 100,000.
MOST_GROWTH, FEW_CALLS = 7.0, 20_000
# What is judged by pairs of GPUs, of which a section has few hundreds at most.
PAIRS = {("smi", "nvlink"), ("smi_after", "nvlink")}
# The processor time of plan, judgement and diff for a list at its bound, in seconds.
MOST_S = 1.0


@cache
def healthy() -> tuple[Document, Document]:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_cards(plan, snapshot, 2)
    return plan, snapshot


def work(place: Place, count: int) -> Callable[[], None]:
    """The work on a host in whose snapshot a list has so many rows."""
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
    """The calls that some rows add to one, and that four times as many add."""
    each = [work(place, size) for size in SIZES]
    for one in each:  # what is read once in a process, or kept
        one()
    first, some, many = map(calls, each)
    return some - first, many - first


def test_every_list_is_found() -> None:
    found = set(every())
    assert len(found) > 200
    for place in ("packages.sources", "smi.devices.[].processes", "kernel_log.events"):
        assert tuple(place.split(".")) in found


@pytest.mark.slow
@pytest.mark.parametrize("section", sections())
def test_four_times_as_many_rows_take_four_times_as_many_calls(section: str) -> None:
    work(("os", "pythons"), 1)()  # what is read once in a process
    square = []
    for place in every():
        if place[0] == section and place not in PAIRS:
            some, many = growth(place)
            if many > FEW_CALLS + MOST_GROWTH * max(some, 0):
                square.append(f"{'.'.join(place)}: {some} calls, then {many}")
    assert square == []


@pytest.mark.slow
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


def test_work_that_grows_with_the_square_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def square(place: Place, count: int) -> Callable[[], None]:
        return lambda: [len(str(one)) for one in range(count) for _ in range(count)] and None

    monkeypatch.setattr(f"{__name__}.work", square)
    some, many = growth(("os", "pythons"))
    assert many > FEW_CALLS + MOST_GROWTH * some
