"""Error counters of ports from night to night: a growth beyond its limit is a change."""

from __future__ import annotations

from pathlib import Path

from gpufleet.watch import drift
from gpufleet.watch.drift import Window
from gpufleet.watch.history import History
from gpufleet.watch.port_errors import error_changes
from gpufleet.watch.run import port_growth
from tests.support.nightly_sessions import host, session

GUID = "a088c20300ab0001"
DAY = 86400.0


def lines(**counters: list[float | None]) -> dict[tuple[str, str], list[float | None]]:
    return {("gpu01", f"port.{GUID}.{name}.reading"): line for name, line in counters.items()}


def changes(**counters: list[float | None]) -> list[tuple[str, str | None]]:
    """The weight and the state after each change."""
    seconds = [DAY * night for night in range(len(next(iter(counters.values()))))]
    return [(it.weight, it.after) for it in error_changes(lines(**counters), seconds)]


def test_a_link_that_went_down_since_the_last_night_is_bad() -> None:
    assert changes(load=[1, 1], link_downed=[3, 5]) == [("bad", "link_downed +2")]
    assert changes(load=[1, 1], link_downed=[3, 3]) == []


def test_errors_of_nvlinks_are_those_of_their_gpu() -> None:
    values = {"load": [1, 1], "replay": [0, 2], "crc_flit": [0, 7], "rx": [4, 4]}
    found = {("gpu01", f"nvlink.GPU-4711.{name}.reading"): line for name, line in values.items()}
    (change,) = error_changes(found, [0.0, DAY])
    assert (change.check, change.weight) == ("gpu.nvlink", "bad")
    assert change.text == (
        "Errors of the NVLinks of GPU-4711 grow: replay grew by 2 in 24 h, crc_flit grew by 7 in"
        " 24 h."
    )


def test_a_rate_that_only_warns_is_a_note() -> None:
    assert changes(load=[1, 1], port_rcv_errors=[0, 65535]) == []
    assert changes(load=[1, 1], roce_slow_restart=[0, 11 * DAY]) == [
        ("note", f"roce_slow_restart +{11 * DAY:g}")
    ]


def test_a_host_that_was_booted_or_a_counter_that_was_cleared_starts_again() -> None:
    assert changes(load=[1, 2], link_downed=[3, 5]) == []
    assert changes(load=[1, 1], link_downed=[5, 3]) == []


def test_a_night_without_a_reading_is_left_out() -> None:
    assert changes(load=[1, None, 1], link_downed=[3, None, 4]) == [("bad", "link_downed +1")]
    assert changes(load=[1, 1, None], link_downed=[3, 4, None]) == []


def test_a_link_that_flaps_is_a_note() -> None:
    assert changes(load=[1, 1], carrier_changes=[2, 14]) == [("note", "carrier_changes +12")]
    assert changes(load=[1, 1], carrier_changes=[2, 4]) == []


def test_the_change_is_that_of_its_host_in_the_document() -> None:
    nights = [f"2026-11-2{number}T01:00:00Z" for number in range(3)]
    window = Window(
        nights,
        {"gpu01": "PPP", "gpu02": "PPP"},
        counters=lines(load=[1, 1], symbol_error=[0, 4000]),
    )
    (found,) = drift.document(window)["changes"]
    assert (found["host"], found["check"], found["kind"]) == ("gpu01", "network.errors", "errors")
    assert f"GUID {GUID} grow: symbol_error grew by 4000 in 24 h." in found["text"]


def test_the_metrics_have_the_growth_between_the_last_two_nights(path: Path) -> None:
    with History(path) as history:
        assert port_growth(history) == {}
        for night, errors in enumerate((0, 10, 60)):
            counters = {
                f"port.{GUID}.load.reading": 1.0,
                f"port.{GUID}.symbol_error.reading": errors,
            }
            history.record(session(night, host("gpu01", x="PASS")), values={"gpu01": counters})
            if not night:
                assert port_growth(history) == {}
        [(port, [grown])] = port_growth(history).items()
    assert port == ("gpu01", GUID)
    assert (grown.counter, grown.growth, grown.seconds) == ("symbol_error", 50, DAY)
