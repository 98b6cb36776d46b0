"""Silences that are over: what they covered and still stands is reported once."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.fleet.session import HostRun
from gpufleet.watch import notifications, silences
from gpufleet.watch.history import History
from tests.support.nightly_sessions import at, host, measured, session
from tests.support.sibling_nights import fleet
from tests.support.silences import CAUSE, FAILS, OTHER, silence

# What a night found of gpu.count on gpu01, by letter; U: it was not reached.
NIGHTS = {"F": FAILS, "O": OTHER, "P": "PASS", "?": "INCONCLUSIVE: the GPU is held"}
KEY = "gpu01", "gpu.count"


def run_of(letter: str) -> HostRun:
    """gpu01 in such a night."""
    return host("gpu01", gpu__count=NIGHTS[letter]) if letter in NIGHTS else host("gpu01")


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "history.sqlite") as found:
        yield found


def reported(history: History, letters: str, end_before: int | None = None) -> list[int]:
    """The nights in which what a silence no longer covers is reported."""
    found = []
    for night, letter in enumerate(letters):
        if night == end_before:
            silences.end(history, silences.read(history)[KEY], f"{at(night - 1)[:10]}T12:00:00Z")
        history.record(session(night, run_of(letter)), measure=measured(x=1.0))
        changes = history.changes()
        if any(row["kind"] == "unsilenced" for row in changes["changes"]):
            assert notifications.has_content(changes)
            found.append(night)
    return found


@pytest.mark.parametrize(
    ("letters", "nights"),
    [
        # Night 0 is of 1 November, and the silence ends with the 2nd.
        ("FFFF", [2]),
        ("FFUFF", [3]),
        ("FF?FF", [3]),
        ("FFU?UFF", [5]),
        # It is reported as a failure, or as another cause.
        ("FFPFF", []),
        ("FFUOO", []),
        ("FFUPFF", []),
        # The silence never covered it.
        ("OOUOF", []),
    ],
)
def test_what_stands_when_it_is_judged_again_is_reported_once(
    history: History, letters: str, nights: list[int]
) -> None:
    silences.store(history, silence(until=at(1)[:10]))
    assert reported(history, letters) == nights


def test_what_flaps_is_reported_by_its_next_failure(history: History) -> None:
    silences.store(history, silence(until=at(8)[:10]))
    assert reported(history, "PFPFPFPPFPFPF") == [10]


@pytest.mark.parametrize(
    ("letters", "nights"), [("FFFFF", [3]), ("FFFUFF", [4]), ("FFFPF", []), ("FFFPP", [])]
)
def test_a_silence_that_a_person_ends_is_reported_too_while_the_fault_stands(
    history: History, letters: str, nights: list[int]
) -> None:
    silences.store(history, silence(until="2026-12-24"))
    assert reported(history, letters, end_before=3) == nights


def test_a_run_of_the_same_day_sounds_after_the_end_and_an_earlier_one_did_not() -> None:
    over = silence(until="2026-11-03T12:00:00Z")
    assert silences.ended(over) and not silences.ended(silence())
    assert silences.in_force(over, "2026-11-03T03:00:00Z")
    assert not silences.in_force(over, "2026-11-03T12:00:01Z")
    covered = silences.covering({KEY: over}, KEY, "FAIL", CAUSE, "2026-11-03T03:00:00Z")
    assert covered and covered["until"] == "2026-11-03"


@pytest.mark.parametrize(
    ("until", "over"),
    [
        ("2026-11-03", "2026-11-03T12:00:00Z"),
        ("2026-12-24", "2026-11-03T12:00:00Z"),
        ("2026-11-02", "2026-11-02T23:59:59Z"),
    ],
)
def test_ending_it_ends_it_now_and_never_later_than_its_day(
    history: History, until: str, over: str
) -> None:
    silences.end(history, silence(until=until), "2026-11-03T12:00:00Z")
    assert silences.read(history)[KEY]["until"] == over


def test_an_ended_silence_goes_in_the_end(history: History) -> None:
    silences.end(history, silence(), at(1))
    reported(history, "F" * 12)
    history.prune(keep_days=5)
    assert silences.read(history) == {}


# -- slow cards ------------------------------------------------------------------------------------


def slow_nights(
    history: History, until: str, nights: range, unmeasured: int = -1, *, others: bool = False
) -> list[str]:
    """Record nights of a slow card whose environments take turns; how each one is reported.

    `others`: another card of the host is measured in each night.
    """
    noise, found = random.Random(3), []
    for night in nights:
        speed = 40.0 if night >= 8 else 50.0
        values = {
            f"gpu.GPU-a.{where}.tflops": speed * (1 + noise.uniform(-0.01, 0.01))
            for where in ("toolkit.12.3", "stack.torch-2.3", "stack.tf-2.13")
        }
        if night == unmeasured:
            values = {}
        if others:
            values["gpu.GPU-b.toolkit.12.3.tflops"] = 50.0
        run = host("gpu01", x="PASS") if values else host("gpu01")
        history.record(session(night, run), measure=lambda *_, own=values: own)
        changes = history.changes()
        if night == 9:
            causes = silences.found_causes(changes, {}, "gpu01", "gpu.throughput")
            silences.store(
                history,
                silence("gpu.throughput", f"SLOW: {causes[0]['cause']}", until=until),
            )
            changes = history.changes()
        slow = [row for row in changes["standing"] if row["verdict"] == "SLOW"]
        over = any(row["kind"] == "unsilenced" for row in changes["changes"])
        found += ["unsilenced" if over else "silenced" if "silenced" in row else "" for row in slow]
    return found


def test_a_slow_card_stays_silenced_whichever_environment_is_slowest(history: History) -> None:
    assert slow_nights(history, "2026-12-24", range(18)) == ["silenced"] * 9


def test_a_silence_of_a_slow_card_that_an_earlier_release_stored_still_holds(
    history: History,
) -> None:
    slow_nights(history, "2026-12-24", range(11))
    stored = "SLOW: GPU-a reaches 40.18 TFLOP/s in jax-0.4, 20% below its baseline of 50.19."
    silences.store(history, silence("gpu.throughput", stored))
    assert ["silenced" in row for row in history.changes()["standing"]] == [True]
    silences.store(history, silence("gpu.throughput", stored.replace("GPU-a", "GPU-b")))
    assert ["silenced" in row for row in history.changes()["standing"]] == [False]


def test_a_slow_card_is_reported_by_the_first_run_that_measures_it_again(history: History) -> None:
    found = slow_nights(history, at(10)[:10], range(15), unmeasured=11)
    assert found == ["silenced", "silenced", "unsilenced", "", ""]


def test_a_card_that_was_busy_alone_is_reported_when_it_is_measured_again(history: History) -> None:
    found = slow_nights(history, at(10)[:10], range(15), unmeasured=11, others=True)
    assert found == ["silenced", "silenced", "unsilenced", "", ""]


# -- outliers --------------------------------------------------------------------------------------


def test_an_outlier_on_busy_cards_is_reported_once(history: History) -> None:
    """Its errors are counted in each night, its speed in none."""

    def errors(name: str, night: int, cards: list[str]) -> dict[str, float]:
        return {
            f"gpu.{card}.pcie_replays.errors": float(
                2 * night + 500 * max(0, night - 35) * (card == "GPU-gpu03-1")
            )
            for card in cards
        }

    recorded, found = 0, []
    for night in range(30, 50):
        fleet(
            history, 6, night,
            lambda uuid, at: math.nan if "gpu03" in uuid and at >= 41 else 1.0,
            first=recorded, more=errors,
        )  # fmt: skip
        recorded, changes = night, history.changes()
        if night == 40:
            [cause] = silences.found_causes(changes, {}, "gpu03", "fleet.outlier")
            known = silence("fleet.outlier", f"{cause['verdict']}: {cause['cause']}")
            silences.store(history, {**known, "host": "gpu03", "until": "2026-04-12"})
        found += [night for row in changes["changes"] if row["kind"] == "unsilenced"]
    assert found == [44]
