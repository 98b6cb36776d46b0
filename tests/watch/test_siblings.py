"""Cards are compared with their siblings from the history: one change for a card or a group."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from gpufleet.cli import distributions
from gpufleet.documents.nightly import Changes
from gpufleet.watch import drift, outliers, siblings
from gpufleet.watch.history import History
from gpufleet.watch.outliers import Outliers
from gpufleet.yardstick.values import WINDOW, Analysis, Finding
from tests.support.sibling_nights import SPEED, Change, fleet, slow, slow_host


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    with History(path) as history:
        yield history


def speeds(changes: Changes) -> list[tuple[str, str, str | None]]:
    return [(each["kind"], each["host"], each["check"]) for each in changes["changes"]]


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
    assert "./gpufleet verify --limit gpu03 --deep (" in change["remedy"]
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


def announced(history: History, hosts: int, nights: range, change: Change) -> list[tuple[str, str]]:
    """The host and text of what each of these nights reports."""
    found = []
    for night in nights:
        fleet(history, hosts, night + 1, change, first=0 if night == nights[0] else night)
        found += [(each["host"], each["text"]) for each in history.changes()["changes"]]
    return found


def test_a_host_that_stays_slow_has_not_recovered(history: History) -> None:
    """After a month its loss is usual for it: it is compared with the other hosts alone."""
    slow = slow_host(37)
    found = announced(history, 12, range(37, 90), lambda uuid, night: 2 * slow(uuid, night) - 1)
    assert [host for host, _ in found] == ["gpu03"]
    (row,) = history.changes()["standing"]
    assert "All GPUs: toolkit.12.3.tflops is 2" in row["cause"]
    assert "lower than the usual of 11 other hosts" in row["cause"]


@pytest.mark.parametrize(
    ("slow", "text"),
    [
        ("gpu03", "All GPUs are as the other hosts."),
        ("GPU-gpu03-1", "GPU-gpu03-1 is as its siblings."),
    ],
)
def test_what_was_always_slow_recovers_in_the_second_night_after_its_repair(
    history: History, slow: str, text: str
) -> None:
    found = announced(
        history, 12, range(48, 80), lambda uuid, night: 0.8 if slow in uuid and night < 50 else 1.0
    )
    assert found == [("gpu03", text)]
    assert history.changes()["standing"] == []


def room(recovers: dict[str, int]) -> Change:
    """Hosts that are slow from night 35 to one that differs, by host."""
    return lambda uuid, night: 0.9 if 35 <= night < recovers.get(uuid[4:9], 0) else 1.0


GROUP = "NVIDIA H100, 132 SMs, 81559 MiB, driver 550.54.15"
HOT = ("gpu00", "gpu01", "gpu02", "gpu03", "gpu04")


def test_hosts_that_share_a_loss_recover_together(history: History) -> None:
    found = announced(history, 14, range(34, 46), room(dict.fromkeys(HOT, 42)))
    assert [host for host, _ in found] == [GROUP, GROUP]
    assert found[1][1] == "5 hosts are as before again."


def test_a_room_recovers_though_a_card_of_it_is_slow_by_itself(history: History) -> None:
    hot = room(dict.fromkeys(HOT, 42))
    found = announced(
        history,
        14,
        range(34, 46),
        lambda uuid, night: hot(uuid, night) * (0.8 if uuid == "GPU-gpu02-1" else 1),
    )
    assert (GROUP, "5 hosts are as before again.") in found


def test_a_room_recovers_when_its_last_host_does(history: History) -> None:
    """Two of its hosts stay slow for two nights more."""
    recovers = dict.fromkeys(HOT, 41) | {"gpu00": 43, "gpu01": 43}
    found = announced(history, 14, range(34, 48), room(recovers))
    assert [host for host, _ in found] == [GROUP, GROUP]
    assert found[1][1] == "2 hosts are as before again."


def test_hosts_that_stay_slow_when_their_room_recovers_are_named(history: History) -> None:
    recovers = dict.fromkeys(HOT, 41) | {"gpu00": 99, "gpu01": 99}
    found = announced(history, 14, range(34, 48), room(recovers))
    assert [host for host, _ in found] == [GROUP, "gpu00", "gpu01"]


def test_hosts_that_are_not_measured_have_not_recovered(history: History) -> None:
    """The next night tells whether they have."""
    hot = room(dict.fromkeys(HOT, 42))
    found = announced(
        history,
        14,
        range(34, 46),
        lambda uuid, night: math.nan if night == 41 and uuid[4:9] in HOT else hot(uuid, night),
    )
    assert [host for host, _ in found] == [GROUP, GROUP]
    assert found[1][1] == "5 hosts are as before again."


@pytest.mark.parametrize("measured", [0, 1, 3])
@pytest.mark.parametrize("always", [False, True])
def test_a_host_is_neither_over_nor_new_after_a_night_without_some_of_its_cards(
    history: History, measured: int, always: bool
) -> None:
    """They are busy, or the host is not reached."""

    def busy(uuid: str, night: int) -> float:
        slow = uuid[4:9] == "gpu03" and (always or night >= 37)
        missing = uuid[4:9] == "gpu03" and night in {41, 43} and int(uuid[-1]) >= measured
        return math.nan if missing else 0.8 if slow else 1.0

    found = announced(history, 12, range(40, 47), busy)
    assert [text for _, text in found] == []
    (row,) = history.changes()["standing"]
    assert row["known_as"] == "All GPUs: throughput is lower"


def test_a_slow_host_is_named_while_another_one_is_not_reached(history: History) -> None:
    def down(uuid: str, night: int) -> float:
        missing = uuid[4:9] == "gpu05" and night == 42
        return math.nan if missing else 0.8 if uuid[4:9] == "gpu03" else 1.0

    assert announced(history, 4, range(40, 45), down) == []
    assert len(history.changes()["standing"]) == 1


def test_a_card_that_recovers_while_it_is_not_measured_is_a_good_change(history: History) -> None:
    def change(uuid: str, night: int) -> float:
        if uuid == "GPU-gpu03-1" and night == 41:
            return math.nan
        return 0.9 if uuid == "GPU-gpu03-1" and 36 <= night < 41 else 1.0

    found = announced(history, 6, range(41, 45), change)
    assert found == [("gpu03", "GPU-gpu03-1 is as its siblings again.")]


def test_a_fault_that_becomes_a_note_is_not_over() -> None:
    def analysis(fails: bool) -> Analysis:
        finding = Finding(
            "level", "throughput", "fp32", "H100", -0.12, -0.1, 0, 20, fails, "gpu03", "GPU-a"
        )
        return Analysis([finding], levelled={("gpu03", "GPU-a", "fp32")})

    (change,) = outliers.changes(Outliers(analysis(True), analysis(False)))
    assert (change.weight, change.text.split(" (")[0]) == (
        "note",
        "GPU-a: fp32 is 12.0% lower than the usual of 20 siblings; the bound is 10.0%",
    )


def test_a_host_that_cannot_be_compared_keeps_its_outlier(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    fleet(history, 6, 40, slow("GPU-gpu03-1", 37))
    monkeypatch.setattr(drift, "version_changes", fail)
    found = [each for each in history.changes()["changes"] if each["host"] == "gpu03"]
    assert [(each["kind"], each["weight"]) for each in found] == [
        ("outlier", "bad"),
        ("failure", "note"),
    ]


def test_the_distribution_shows_a_host(history: History) -> None:
    fleet(history, 6, 40, slow_host(36))
    (each,) = distributions.document(history, None, None)["distributions"]
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
    found = distributions.document(history, None, None)
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
    found = distributions.document(history, None, None)
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


@pytest.mark.parametrize(("declared", "compared"), [(None, 6), (3, 3), (6, 6), (0, 1)])
def test_of_a_host_as_many_cards_are_compared_as_it_declares(
    history: History, declared: int | None, compared: int
) -> None:
    """It may invent others."""
    fleet(
        history,
        4,
        20,
        lambda uuid, night: 1.0,
        per_host=6,
        more=lambda host, night, own: (
            {"gpus.declared": declared} if host == "gpu03" and declared is not None else {}
        ),
    )
    found = siblings.compare(history, history.nights(), 1.0)[1]
    known = {(host, card) for host, card, _ in found.levelled if card.startswith("GPU")}
    assert sum(host == "gpu03" for host, _ in known) == compared
    assert sum(host != "gpu03" for host, _ in known) == 18
