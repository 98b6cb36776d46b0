"""Cards are compared with their siblings from the history: one change for a card or a group."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from gpufleet.cli import distributions
from gpufleet.model.nightly import Changes
from gpufleet.nightly import siblings
from gpufleet.nightly.history import History
from gpufleet.verification.session import HostRun, Session
from gpufleet.yardstick.values import WINDOW

SPEED = "toolkit.12.3.tflops"
Change = Callable[[str, int], float]


def fleet(
    history: History,
    hosts: int,
    nights: int,
    change: Change,
    *,
    per_host: int = 3,
    more: Callable[[str, int, list[str]], dict[str, float]] | None = None,
) -> None:
    """Record nights in which cards differ by 2 % and nights by 0.8 %.

    `more`: further measures of a host, by its name, the night and its cards.
    """
    chance = random.Random(4)
    names = [f"gpu{number:02}" for number in range(hosts)]
    usual = {
        f"GPU-{host}-{card}": 50 * (1 + chance.gauss(0, 0.02))
        for host in names
        for card in range(per_host)
    }
    for night in range(nights):

        def measure(_: object, plan: dict[str, str], night: int = night) -> dict[str, float | str]:
            own = [uuid for uuid in usual if plan["host"] in uuid]
            found: dict[str, float | str] = {
                f"gpu.{uuid}.{SPEED}": value
                for uuid in own
                if math.isfinite(
                    value := usual[uuid] * (1 + chance.gauss(0, 0.008)) * change(uuid, night)
                )
            }
            found["gpus"] = "; ".join(
                f"0:{number} {uuid} NVIDIA H100" for number, uuid in enumerate(own)
            )
            found["skus"] = "; ".join(f"{uuid} 132 SMs, 81559 MiB" for uuid in own)
            found["driver.version"] = "550.54.15"
            return found | (more(plan["host"], night, own) if more else {})

        started = (datetime(2026, 3, 1, 3, tzinfo=UTC) + timedelta(days=night)).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )
        runs = [
            HostRun(name, None, {"host": name}, {"verdict": "PASS", "checks": []}) for name in names
        ]
        history.record(Session(runs, started, started), measure=measure)


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    with History(path) as history:
        yield history


def speeds(changes: Changes) -> list[tuple[str, str, str | None]]:
    return [(each["kind"], each["host"], each["check"]) for each in changes["changes"]]


def slow(card: str, first: int) -> Change:
    return lambda uuid, night: 0.9 if uuid == card and night >= first else 1.0


def test_a_slow_card_is_a_change_in_its_third_night(history: History) -> None:
    fleet(history, 6, 40, slow("GPU-gpu03-1", 37))
    (change,) = history.changes()["changes"]
    assert (change["kind"], change["host"], change["check"]) == (
        "outlier",
        "gpu03",
        "fleet.outlier",
    )
    assert "GPU-gpu03-1: toolkit.12.3.tflops is" in change["text"]
    assert "lower than before for 3 nights, compared with 17 siblings" in change["text"]
    assert "NVIDIA H100, 132 SMs, 81559 MiB, driver 550.54.15" in change["text"]
    assert change["weight"] == "bad"


def test_it_stays_among_what_is_bad_and_is_no_change_again(history: History) -> None:
    fleet(history, 6, 41, slow("GPU-gpu03-1", 37))
    changes = history.changes()
    assert changes["changes"] == []
    (row,) = changes["standing"]
    assert (row["host"], row["check"], row["verdict"]) == ("gpu03", "fleet.outlier", "OUTLIER")


def test_a_card_that_recovers_is_a_good_change(history: History) -> None:
    fleet(
        history, 6, 42, lambda uuid, night: 0.9 if uuid == "GPU-gpu03-1" and 36 <= night < 41 else 1
    )
    (change,) = history.changes()["changes"]
    assert (change["host"], change["weight"]) == ("gpu03", "good")


def slow_host(first: int, last: int = 99) -> Change:
    return lambda uuid, night: 0.9 if "gpu03" in uuid and first <= night < last else 1.0


def test_a_host_that_slows_down_is_one_change(history: History) -> None:
    fleet(history, 6, 40, slow_host(37))
    changes = history.changes()
    (change,) = changes["changes"]
    assert (change["host"], change["check"]) == ("gpu03", "fleet.outlier")
    assert change["text"].startswith("All GPUs: toolkit.12.3.tflops is ")
    assert "lower than before for 3 nights, compared with 5 other hosts" in change["text"]
    assert change["remedy"].startswith("look for what slows all of its cards")
    (row,) = changes["standing"]
    assert row["slow_card"] == {"gpu": "all", "nights": 3}


def test_a_host_that_recovers_is_a_good_change(history: History) -> None:
    fleet(history, 6, 42, slow_host(36, 41))
    (change,) = history.changes()["changes"]
    assert (change["text"], change["weight"]) == ("All GPUs are as before again.", "good")


def test_a_host_whose_cards_are_not_measured_has_not_recovered(history: History) -> None:
    """One of its three cards is measured tonight."""
    fleet(
        history,
        6,
        42,
        lambda uuid, night: (
            math.nan
            if night == 41 and uuid in {"GPU-gpu03-0", "GPU-gpu03-1"}
            else slow_host(36, 41)(uuid, night)
        ),
    )
    assert [each for each in history.changes()["changes"] if each["host"] == "gpu03"] == []


def test_the_distribution_shows_a_host(history: History) -> None:
    fleet(history, 6, 40, slow_host(36))
    (each,) = distributions.document(history, None, None, 1.0)["distributions"]
    assert [(one["host"], one["card"]) for one in each["findings"] if one["fails"]] == [
        ("gpu03", "all")
    ]


def test_a_group_that_slows_down_is_one_change(history: History) -> None:
    fleet(history, 6, 40, lambda uuid, night: 0.9 if night >= 37 else 1)
    changes = history.changes()
    assert speeds(changes) == [
        ("outlier", "NVIDIA H100, 132 SMs, 81559 MiB, driver 550.54.15", "fleet.group")
    ]


def test_without_eight_siblings_its_own_past_judges_a_card(history: History) -> None:
    fleet(history, 4, 40, slow("GPU-gpu03-1", 38), per_host=2)
    assert speeds(history.changes()) == [("throughput", "gpu03", "gpu.throughput")]


def test_before_there_are_enough_nights_its_own_past_judges_a_card(history: History) -> None:
    fleet(history, 6, 12, slow("GPU-gpu03-1", 10))
    assert speeds(history.changes()) == [("throughput", "gpu03", "gpu.throughput")]


def test_a_healthy_fleet_has_no_change(history: History) -> None:
    fleet(history, 6, WINDOW + 5, lambda uuid, night: 1.0)
    assert history.changes()["changes"] == []


def test_distributions_have_the_cards_and_their_outlier(history: History) -> None:
    fleet(history, 6, 40, slow("GPU-gpu03-1", 36))
    found = distributions.document(history, None, None, 1.0)
    (each,) = found["distributions"]
    assert (each["group"], each["measure"], len(each["cards"])) == (
        "NVIDIA H100, 132 SMs, 81559 MiB, driver 550.54.15",
        SPEED,
        18,
    )
    assert [card["offset"] for card in each["cards"]] == sorted(
        card["offset"] for card in each["cards"]
    )
    failed = [finding for finding in each["findings"] if finding["fails"]]
    assert [(finding["host"], finding["card"]) for finding in failed] == [("gpu03", "GPU-gpu03-1")]
    console = Console(width=160, record=True, file=io.StringIO())
    distributions.show(console, found)
    shown = console.export_text()
    assert "✗ gpu03 GPU-gpu03-1: toolkit.12.3.tflops -1" in shown
    assert distributions.document(history, None, "other", 1.0)["distributions"] == []


def test_a_fleet_without_siblings_has_no_distribution(history: History) -> None:
    fleet(history, 2, 3, slow("", 0))
    found = distributions.document(history, None, None, 1.0)
    assert found["distributions"] == []


def test_a_comparison_that_fails_is_one_note_and_costs_nothing_else(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    fleet(history, 4, 3, lambda uuid, night: 1)
    monkeypatch.setattr(siblings, "compare", fail)
    (change,) = history.changes()["changes"]
    assert (change["host"], change["check"], change["weight"]) == ("fleet", None, "note")
    assert "gpufleet failed while it compared the cards with their siblings" in change["text"]
    assert "a defect" in change["text"]


def errors(rising: dict[str, list[float]]) -> Callable[[str, int, list[str]], dict[str, float]]:
    """Counters of cards without errors, but for these, whose last readings are given."""

    def more(_: str, night: int, cards: list[str]) -> dict[str, float]:
        found = {}
        for card in cards:
            late = rising.get(card, [])
            at = night - (40 - len(late))
            found[f"gpu.{card}.ecc_corrected_volatile.errors"] = late[at] if at >= 0 else 3.0
        return found

    return more


def test_a_rise_of_corrected_errors_is_a_change_in_the_same_night(history: History) -> None:
    fleet(history, 6, 40, lambda *_: 1, more=errors({"GPU-gpu03-1": [403]}))
    changes = history.changes()
    (change,) = changes["changes"]
    assert (change["host"], change["check"], change["weight"]) == ("gpu03", "fleet.outlier", "bad")
    assert (
        "GPU-gpu03-1: ecc_corrected_volatile is 400 errors higher than before for one night;"
        " the bound is" in change["text"]
    )
    assert "gpu.memory-errors" in change["remedy"]
    (row,) = changes["standing"]
    assert "slow_card" not in row


def test_a_driver_that_was_loaded_again_is_no_rise(history: History) -> None:
    fleet(history, 6, 40, lambda *_: 1, more=errors({"GPU-gpu03-1": [50_000.0] * 36 + [0.0, 1.0]}))
    assert history.changes()["changes"] == []


def test_a_rise_that_is_over_is_a_good_change(history: History) -> None:
    fleet(history, 6, 40, lambda *_: 1, more=errors({"GPU-gpu03-1": [403, 403]}))
    (change,) = history.changes()["changes"]
    assert (change["host"], change["check"], change["weight"]) == ("gpu03", "fleet.outlier", "good")


def test_a_hot_card_is_named_in_degrees_and_is_not_slow(history: History) -> None:
    def more(_: str, night: int, cards: list[str]) -> dict[str, float]:
        return {
            f"gpu.{card}.load.temperature_c": 60
            + (night * 7 + number) % 3
            + 15 * (card == "GPU-gpu03-1" and night >= 37)
            for number, card in enumerate(cards)
        }

    fleet(history, 6, 40, lambda *_: 1, more=more)
    changes = history.changes()
    (change,) = changes["changes"]
    assert "GPU-gpu03-1: load.temperature_c is 15" in change["text"]
    assert "°C higher than before for 3 nights" in change["text"]
    assert "slow_card" not in changes["standing"][0]
    found = distributions.document(history, None, "*temperature_c", 1.0)
    console = Console(width=160, record=True, file=io.StringIO())
    distributions.show(console, found)
    assert "°C for 3 nights, bound" in console.export_text()


def test_a_temperature_without_load_is_not_compared(history: History) -> None:
    def more(_: str, night: int, cards: list[str]) -> dict[str, float]:
        return {
            f"gpu.{card}.temperature_c": 40.0 + 30 * (card == "GPU-gpu03-1" and night >= 37)
            for card in cards
        }

    fleet(history, 6, 40, lambda *_: 1, more=more)
    assert history.changes()["changes"] == []


def test_a_host_whose_imports_take_longer_is_named(history: History) -> None:
    def more(host: str, night: int, _: list[str]) -> dict[str, float]:
        usual = 4 + (night * 5 + int(host[-2:]) * 3) % 7 / 10
        return {"stack.tf.import_s": usual * (8 if host == "gpu03" and night >= 37 else 1)}

    fleet(history, 12, 40, lambda *_: 1, per_host=1, more=more)
    (change,) = history.changes()["changes"]
    assert (change["host"], change["check"]) == ("gpu03", "fleet.outlier")
    assert "The host: stack.tf.import_s is" in change["text"]
    assert change["remedy"].startswith("look for what slows the host: the disk")
    assert "compared with 11 other hosts" in change["text"]


def test_a_slow_card_has_its_nights_for_the_metrics(history: History) -> None:
    fleet(history, 6, 41, slow("GPU-gpu03-1", 37))
    (row,) = history.changes()["standing"]
    assert row["slow_card"] == {"gpu": "GPU-gpu03-1", "nights": 4}
