"""Silences of cards, hosts and groups that are worse than their siblings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.cli.main import main
from gpufleet.watch import silences
from gpufleet.watch.history import History
from tests.support.sibling_nights import SPEED, Change, fleet, slow, slow_host

CARD, OTHER = "GPU-gpu03-1", "GPU-gpu03-2"
# The nights of `fleet` begin on the first of March.
FIRST = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    with History(path) as history:
        yield history


def silence(history: History, host: str, check: str, last: int = 300) -> list[str]:
    """Silence what is found now up to this night; the causes."""
    causes = silences.found_causes(history.changes(), {}, host, check)
    silences.store(
        history,
        {
            "host": host,
            "check": check,
            "causes": causes,
            "until": f"{FIRST + timedelta(days=last):%Y-%m-%d}",
            "who": "ann",
            "why": "card ordered",
            "since": "2026-04-10T08:00:00Z",
        },
    )
    return [cause["cause"] for cause in causes]


def nights(history: History, change: Change, *, until: int, **more: object) -> Callable[..., None]:
    """Record the nights of a fleet of six hosts; what is returned records the next ones."""
    recorded = 0

    def record(until: int) -> None:
        nonlocal recorded
        fleet(history, 6, until, change, first=recorded, **more)
        recorded = until

    record(until)
    return record


def changed(history: History) -> list[tuple[str, str, bool]]:
    """The kind and host of each change, and whether it is silenced."""
    return [
        (each["kind"], each["host"], "silenced" in each) for each in history.changes()["changes"]
    ]


def standing(history: History) -> list[tuple[str, bool]]:
    """The standing results, and whether they are silenced."""
    return [(each["known_as"], "silenced" in each) for each in history.changes()["standing"]]


def hot(first: int) -> Callable[[str, int, list[str]], dict[str, float]]:
    """The silenced card is hot from a night on."""
    return lambda _, night, cards: {
        f"gpu.{card}.load.temperature_c": 60
        + (night * 7 + number) % 3
        + 15 * (card == CARD and night >= first)
        for number, card in enumerate(cards)
    }


def two(uuid: str, night: int) -> float:
    """Another card of the host is slow from night 41 on."""
    return min(slow(CARD, 37)(uuid, night), slow(OTHER, 41)(uuid, night))


def test_a_slow_card_is_silenced_by_its_own_cause(
    history: History, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = nights(history, slow(CARD, 37), until=40)
    assert changed(history) == [("outlier", "gpu03", False)]
    until = f"{datetime.now(UTC) + timedelta(days=30):%Y-%m-%d}"
    words = ["silence", "gpu03", "fleet.outlier", "--database", str(path)]
    assert main([*words, "--until", until, "--why", "card ordered"]) == 0
    assert f"  OUTLIER: {CARD}: throughput is lower\n" in capsys.readouterr().out
    assert changed(history) == [("outlier", "gpu03", True)]
    for night in (41, 42, 43):
        more(night)
        assert changed(history) == []
        assert standing(history) == [(f"{CARD}: throughput is lower", True)]
    assert main(["silence", "--list", "--database", str(path)]) == 0
    assert "holds" in capsys.readouterr().out


def test_another_card_of_the_host_is_not_silenced(history: History) -> None:
    more = nights(history, two, until=40, per_host=5)
    assert silence(history, "gpu03", "fleet.outlier") == [f"{CARD}: throughput is lower"]
    more(44)
    assert changed(history) == [("outlier", "gpu03", False)]
    assert standing(history) == [
        (f"{CARD}: throughput is lower", True),
        (f"{OTHER}: throughput is lower", False),
    ]
    more(45)
    assert changed(history) == []


def test_a_card_that_is_hot_as_well_is_reported_once(history: History) -> None:
    more = nights(history, slow(CARD, 37), until=40, more=hot(40))
    silence(history, "gpu03", "fleet.outlier")
    found = []
    for night in range(41, 46):
        more(night)
        found += changed(history)
    assert found == [("other-cause", "gpu03", False)]
    both = f"{CARD}: temperature is higher. {CARD}: throughput is lower"
    assert standing(history) == [(both, False)]


def test_the_night_in_which_another_card_is_named_hides_no_new_cause(history: History) -> None:
    more = nights(history, two, until=40, per_host=5, more=hot(41))
    silence(history, "gpu03", "fleet.outlier")
    found = []
    for night in range(41, 47):
        more(night)
        if texts := [each["text"] for each in history.changes()["changes"]]:
            found.append(texts)
    ((other, card),) = found
    assert other.startswith(f"{OTHER}: {SPEED} is")
    assert card.endswith(f"has another cause than the silenced one: {CARD}: temperature is higher.")


def test_the_night_in_which_another_card_is_named_hides_no_end_of_a_silence(
    history: History,
) -> None:
    more = nights(history, two, until=40, per_host=5)
    silence(history, "gpu03", "fleet.outlier", last=42)
    found = []
    for night in range(41, 47):
        more(night)
        found += changed(history)
    assert sorted(found) == [("outlier", "gpu03", False), ("unsilenced", "gpu03", False)]


def test_a_note_is_not_silenced_with_the_fault_of_another_card() -> None:
    def change(card: str, weight: str) -> dict[str, object]:
        return {
            "kind": "outlier",
            "host": "gpu03",
            "check": "fleet.outlier",
            "text": f"{card}: fp32 is 5.0% lower than before.",
            "known_as": f"{card}: throughput is lower",
            "weight": weight,
        }

    changes: Any = {"standing": [], "changes": [change("GPU-a", "bad"), change("GPU-b", "note")]}
    assert silences.found_causes(changes, {}, "gpu03", "fleet.outlier") == [
        {"verdict": "OUTLIER", "cause": "GPU-a: throughput is lower"}
    ]


@pytest.mark.parametrize("damaged", ["", "x", "0", "-1", "nan", "inf", "1e999"])
def test_a_damaged_budget_is_one_alert_a_month(history: History, damaged: str) -> None:
    history.flag("fleet", "alerts_per_month", damaged)
    assert history.alerts_per_month == 1


def test_a_host_that_slows_down_is_another_cause_than_its_card(history: History) -> None:
    def host_too(uuid: str, night: int) -> float:
        return min(slow(CARD, 37)(uuid, night), slow_host(41)(uuid, night))

    more = nights(history, host_too, until=40)
    silence(history, "gpu03", "fleet.outlier")
    more(44)
    assert ("outlier", "gpu03", False) in changed(history)
    assert ("All GPUs: throughput is lower", False) in standing(history)


def test_the_end_of_a_silence_is_reported_once(history: History) -> None:
    more = nights(history, slow(CARD, 37), until=40)
    silence(history, "gpu03", "fleet.outlier", last=41)
    found = []
    for night in range(41, 46):
        more(night)
        found += changed(history)
    assert found == [("unsilenced", "gpu03", False)]


def test_the_recovery_of_a_silenced_card_is_reported(history: History) -> None:
    more = nights(
        history, lambda uuid, night: slow(CARD, 37)(uuid, night) if night < 41 else 1.0, until=40
    )
    silence(history, "gpu03", "fleet.outlier")
    more(42)
    (change,) = history.changes()["changes"]
    assert (change["weight"], "silenced" in change) == ("good", False)


def test_a_group_is_silenced_by_its_name(history: History) -> None:
    def room(uuid: str, night: int) -> float:
        hosts = ("gpu00", "gpu01", "gpu02", "gpu03", *(("gpu04",) if night >= 42 else ()))
        return 0.9 if night >= 37 and uuid[4:9] in hosts else 1.0

    def record(until: int, first: int = 0) -> None:
        fleet(history, 12, until, room, first=first)

    record(40)
    group = "NVIDIA H100, 132 SMs, 81559 MiB, driver 550.54.15"
    assert changed(history) == [("outlier", group, False)]
    causes = silence(history, group, "fleet.group")
    assert causes == [". ".join(f"Host gpu0{number}: throughput is lower" for number in range(4))]
    assert changed(history) == [("outlier", group, True)]
    # One more host becomes as slow.
    found = []
    for night in range(41, 48):
        record(night, night - 1)
        found += changed(history)
    assert found == [("other-cause", group, False)]


def test_what_is_no_outlier_is_not_silenced(
    history: History, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nights(history, lambda *_: 1.0, until=40)
    words = ["silence", "gpu03", "fleet.outlier", "--database", str(path)]
    until = f"{datetime.now(UTC) + timedelta(days=30):%Y-%m-%d}"
    assert main([*words, "--until", until, "--why", "card ordered"]) == 4
    assert "found nothing wrong by fleet.outlier on gpu03" in capsys.readouterr().err.replace(
        "\n", " "
    )
