"""Change detection: every change is reported once, and nothing that did not change."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpufleet.watch import baselines, drift, flapping, versions
from gpufleet.watch.change import Change
from gpufleet.watch.drift import CheckResult, Window

CARD, OTHER = "GPU-aaaa", "GPU-bbbb"


def line(letters: str, cause: str = "broken") -> list[CheckResult | None]:
    """A check's result in each night; `.`: none, since the host was not reached."""
    return [
        None if letter == "." else CheckResult(letter, "" if letter in "P-" else cause, "fix it")
        for letter in letters
    ]


def of_check(letters: str) -> list[tuple[str, str, int]]:
    """The changes of a check in its last night, in short."""
    return [
        (it.kind, it.weight, it.strikes)
        for it in drift.check_changes("gpu01", "gpu.ecc", line(letters))
    ]


def night(**window: Any) -> list[dict[str, Any]]:
    """The changes of a night, with as many nights as the hosts have letters."""
    hosts = window["hosts"]
    nights = [f"night {number}" for number in range(len(next(iter(hosts.values()))))]
    found: list[dict[str, Any]] = drift.document(Window(nights, **window))["changes"]
    return found


def of(letters: str, explained_by: str = "") -> list[CheckResult | None]:
    """A check that another one explains where it is not healthy."""
    return [
        result and replace(result, explained_by="" if result.letter in "P-" else explained_by)
        for result in line(letters)
    ]


def test_a_change_names_what_explains_it_and_what_it_explains() -> None:
    checks = {
        ("gpu01", "gpu.count"): of("PF"),
        ("gpu01", "stack.gpu"): of("PF", "gpu.count"),
        ("gpu01", "gpu.mig"): of("P?", "gpu.count"),
        ("gpu02", "stack.gpu"): of("PF"),
    }
    found = night(hosts={"gpu01": "PF", "gpu02": "PF"}, checks=checks)
    assert [
        (it["host"], it["check"], it.get("explained_by"), it.get("explains")) for it in found
    ] == [
        ("gpu01", "gpu.count", None, ["stack.gpu", "gpu.mig"]),
        ("gpu01", "stack.gpu", "gpu.count", None),
        ("gpu02", "stack.gpu", None, None),
    ]
    better = {key: [it and replace(it) for it in reversed(row)] for key, row in checks.items()}
    back = night(hosts={"gpu01": "FP", "gpu02": "FP"}, checks=better)
    assert [
        (it["host"], it["check"], it.get("explained_by"), it.get("explains")) for it in back
    ] == [
        ("gpu01", "gpu.count", None, ["stack.gpu", "gpu.mig"]),
        ("gpu01", "stack.gpu", "gpu.count", None),
        ("gpu02", "stack.gpu", None, None),
    ]


def summary_of(changes: Sequence[dict[str, Any]]) -> list[tuple[str, str, str | None]]:
    """Kind, host and check of each."""
    return [(it["kind"], it["host"], it["check"]) for it in changes]


# -- checks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("letters", "kind", "weight", "strikes"),
    [
        ("PF", "failure", "bad", 1),
        ("-F", "failure", "bad", 1),
        ("F", "failure", "bad", 1),  # a host or a check that is new
        ("PH", "failure", "bad", 1),
        ("P?F", "failure", "bad", 1),
        ("P...F", "failure", "bad", 1),  # not reached in between
        ("FP", "recovery", "good", 0),
        ("F?P", "recovery", "good", 0),  # compared with the last judged night
        ("F...P", "recovery", "good", 0),
        ("F-", "recovery", "note", 0),  # declared no longer: nothing was repaired
    ],
)
def test_a_transition_is_reported(letters: str, kind: str, weight: str, strikes: int) -> None:
    assert of_check(letters) == [(kind, weight, strikes)]


@pytest.mark.parametrize(
    "letters",
    [
        "P",
        "PP",
        "FF",
        "F?F",
        "F..F",
        "P-",
        "-P",
        "P?P",
        "P..P",
        "PF.",
        "FH",
        "HF",
        "F?",  # what could not be judged is no recovery
        "F.",
        "P.",
    ],
)
def test_an_unchanged_check_is_not_reported(letters: str) -> None:
    assert of_check(letters) == []


@pytest.mark.parametrize(
    ("letters", "strikes"),
    [("PF", 1), ("PFF", 2), ("PF?F", 2), ("FHF", 3), ("FFP", 0), ("", 0), ("?", 0), ("F-", 0)],
)
def test_strikes_are_judged_nights_in_a_row(letters: str, strikes: int) -> None:
    assert flapping.strikes(letters) == strikes


def test_another_cause_is_reported_and_another_number_is_not() -> None:
    def kinds(before: str, after: str) -> list[str]:
        both = [CheckResult("F", before, ""), CheckResult("F", after, "")]
        return [it.kind for it in drift.check_changes("gpu01", "gpu.x", both)]

    assert kinds("GPU 0 multiplies at 9.13 TFLOP/s", "GPU 0 multiplies at 9.2 TFLOP/s") == []
    assert kinds("pid 4711 (python) holds it", "pid 12 (python) holds it") == []
    assert kinds("1 of its 39 files changed", "2 of its 39 files changed") == []
    assert kinds("GPU 0 is slow", "GPU 3 is slow") == ["other-cause"]
    assert kinds("CUDA 11.8 is missing", "CUDA 12.3 is missing") == ["other-cause"]
    assert kinds("Xid 79 on GPU 0", "Xid 48 on GPU 0") == ["other-cause"]
    assert kinds("driver 535.261.03", "driver 550.54.15") == ["other-cause"]
    assert kinds("libcudnn.so.8 (missing)", "libcudnn.so.9 (missing)") == ["other-cause"]


def test_a_failure_has_cause_and_remedy_and_a_recovery_the_former_cause() -> None:
    (failure,) = drift.check_changes("gpu01", "gpu.ecc", line("PF"))
    assert failure == Change(
        "failure",
        "gpu01",
        "gpu.ecc",
        "PASS",
        "FAIL: broken",
        "gpu.ecc fails: broken.",
        "fix it",
        "bad",
        1,
    )
    (recovery,) = drift.check_changes("gpu01", "gpu.ecc", line("PFFP"))
    assert (recovery.before, recovery.after, recovery.text) == (
        "FAIL: broken",
        "PASS",
        "gpu.ecc passes again after 2 nights.",
    )


# -- flapping --------------------------------------------------------------------------------------


def nightly(letters: str) -> list[str]:
    """The changes that each night reports of a check."""
    return [
        " ".join(kind for kind, *_ in of_check(letters[:number])) or "."
        for number in range(1, len(letters) + 1)
    ]


def test_flapping_is_reported_once() -> None:
    assert nightly("PFPFPFPFPFPF") == [
        ".",
        "failure",
        "recovery",
        "failure",
        "flapping",
        *".......",
    ]


def test_settling_is_reported_as_the_settled_state() -> None:
    assert nightly("PFPFPFFF")[4:] == ["flapping", ".", ".", "failure"]
    assert nightly("PFPFPPP")[4:] == ["flapping", ".", "recovery"]
    assert (
        "3 nights in a row, after flapping"
        in next(iter(drift.check_changes("gpu01", "gpu.ecc", line("PFPFPFFF")))).text
    )


def test_two_outages_in_a_fortnight_are_no_flapping() -> None:
    assert [it for it in nightly("PPFFPPPPPPFFPP") if it != "."] == [
        "failure",
        "recovery",
        "failure",
        "recovery",
    ]


def test_no_night_hides_what_is_bad_for_good() -> None:
    """Whatever came before: who reads all mornings knows what is bad after three quiet nights."""
    rng = random.Random(6)
    for _ in range(500):
        letters = "".join(rng.choice("PPFF?.") for _ in range(rng.randrange(1, 25))) + "FFF"
        known = False
        for number in range(1, len(letters) + 1):
            for kind, *_ in of_check(letters[:number]):
                known = kind in {"failure", "flapping", "other-cause"}
        assert known, letters
        known = True
        for number in range(1, len(letters) + 4):
            for kind, *_ in of_check((letters + "PPP")[:number]):
                known = kind == "recovery"
        assert known, letters + "PPP"


# -- hosts -----------------------------------------------------------------------------------------


def test_an_unreachable_host_is_reported_once_and_not_for_each_check() -> None:
    checks: dict[tuple[str, str], list[CheckResult | None]] = {
        ("gpu01", drift.REACHABLE): [None, CheckResult("U", "No route", "see the cable")],
        ("gpu01", "gpu.ecc"): line("F."),
        ("gpu01", "gpu.smi"): line("P."),
    }
    (change,) = night(hosts={"gpu01": "FU"}, checks=checks)
    assert change == {
        "kind": "failure",
        "host": "gpu01",
        "check": drift.REACHABLE,
        "before": "PASS",
        "after": "UNREACHABLE: No route",
        "text": "The host is unreachable: No route.",
        "remedy": "see the cable",
        "weight": "bad",
        "strikes": 1,
    }
    assert night(hosts={"gpu01": "FUU"}) == []


def test_a_host_that_is_back_is_a_recovery_and_its_checks_go_on_where_they_were() -> None:
    checks = {
        ("gpu01", "a"): line("F..F"),
        ("gpu01", "b"): line("P..F"),
        ("gpu01", "c"): line("F..P"),
    }
    assert summary_of(night(hosts={"gpu01": "FUUF"}, checks=checks)) == [
        ("failure", "gpu01", "b"),
        ("recovery", "gpu01", "c"),
        ("recovery", "gpu01", drift.REACHABLE),
    ]


def test_a_host_that_is_reached_in_some_nights_flaps() -> None:
    assert summary_of(night(hosts={"gpu01": "PUPUP"})) == [("flapping", "gpu01", drift.REACHABLE)]
    assert night(hosts={"gpu01": "PUPUPU"}) == []


def test_hosts_appear_and_vanish() -> None:
    changes = night(hosts={"new": "..P", "gone": "PP.", "longgone": "P..", "back": "P.P"})
    assert summary_of(changes) == [
        ("appeared", "back", None),
        ("vanished", "gone", None),
        ("appeared", "new", None),
    ]
    assert changes[0]["text"] == "The host is in the inventory again."


def test_the_first_night_has_no_changes_but_lists_what_is_bad() -> None:
    found = drift.document(Window(["night"], {"gpu01": "F"}, {("gpu01", "a"): line("F")}))
    assert (found["since"], found["changes"], found["hosts_before"]) == (None, [], None)
    assert [(it["check"], it["strikes"]) for it in found["standing"]] == [("a", 1)]


def test_standing_failures_are_listed_with_their_strikes_without_a_change() -> None:
    checks = {
        ("gpu01", "a"): line("PFF"),
        ("gpu02", drift.REACHABLE): line("..U"),
        ("gpu01", "b"): line("FFP"),
    }
    found = drift.document(Window(list("abc"), {"gpu01": "FFF", "gpu02": "FUU"}, checks))
    assert [
        (it["host"], it["check"], it["verdict"], it["strikes"]) for it in found["standing"]
    ] == [("gpu01", "a", "FAIL", 2), ("gpu02", drift.REACHABLE, "UNREACHABLE", 2)]
    assert found["hosts"] == {
        "PASS": 0,
        "FAIL": 1,
        "HUNG": 0,
        "UNREACHABLE": 1,
        "INCONCLUSIVE": 0,
        "NOT-DECLARED": 0,
    }


def test_what_could_not_be_judged_is_one_note_for_the_host_and_not_each_night() -> None:
    checks = {("gpu01", name): line("PP?", "may not be read") for name in "abc"}
    (change,) = night(hosts={"gpu01": "PP?"}, checks=checks)
    assert (change["weight"], change["text"]) == (
        "note",
        "a and 2 more could not be judged: may not be read.",
    )
    for letters in ("P??", "?P?", "??", "P?P"):
        assert (
            night(hosts={"gpu01": "P" * len(letters)}, checks={("gpu01", "a"): line(letters)}) == []
        ), letters


def test_bad_stands_before_good_before_notes() -> None:
    checks = {("gpu01", "a"): line("FP"), ("gpu02", "a"): line("PF")}
    assert [
        it["weight"]
        for it in night(hosts={"gpu00": ".P", "gpu01": "FP", "gpu02": "PF"}, checks=checks)
    ] == ["bad", "good", "note"]


# -- versions and cards ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("driver.version", "driver", "Driver changed from 1 to 2."),
        ("kernel.running", "kernel", "Running kernel changed from 1 to 2."),
        ("toolkit.11.8.version", "version", "CUDA 11.8 changed from 1 to 2."),
        ("toolkits", "version", "CUDA toolkits changed from 1 to 2."),
        (
            "stack.tensorflow-2.13.1.python",
            "version",
            "tensorflow-2.13.1 (Python) changed from 1 to 2.",
        ),
        (
            "cudnn.11.8.libcudnn.so.8.version",
            "version",
            "cuDNN of 11.8.libcudnn.so.8 changed from 1 to 2.",
        ),
    ],
)
def test_versions(name: str, kind: str, text: str) -> None:
    (change,) = night(hosts={"gpu01": "PP"}, texts={("gpu01", name): ("1", "2")})
    assert (change["kind"], change["weight"], change["text"]) == (kind, "note", text)
    assert "--limit gpu01" in change["remedy"]


def test_what_was_never_known_before_is_no_change() -> None:
    assert night(hosts={"gpu01": "PP"}, texts={("gpu01", "driver.version"): (None, "2")}) == []


def cards(**texts: tuple[str | None, str]) -> list[tuple[str, str, str]]:
    """Host, weight and sentence on cards; a card is `SLOT UUID`, several with `; `."""

    def full(text: str | None) -> str | None:
        return text and "; ".join(f"{card} NVIDIA L4" for card in text.split("; "))

    window = {
        (host, "gpus"): (full(before), full(after) or "none")
        for host, (before, after) in texts.items()
    }
    return [
        (it["host"], it["weight"], it["text"])
        for it in night(hosts=dict.fromkeys(texts, "PP"), texts=window)
    ]


def test_a_card_that_is_gone_is_bad() -> None:
    assert cards(gpu01=(f"1 {CARD}; 2 {OTHER}", f"1 {CARD}")) == [
        ("gpu01", "bad", f"{OTHER} (NVIDIA L4) at 2 is missing.")
    ]
    assert cards(gpu01=(f"1 {CARD}", "")) == [
        ("gpu01", "bad", f"{CARD} (NVIDIA L4) at 1 is missing.")
    ]


def test_a_card_in_the_place_of_another_is_a_swap() -> None:
    assert cards(gpu01=(f"1 {CARD}", f"1 {OTHER}")) == [
        (
            "gpu01",
            "note",
            f"The card at 1 was replaced: {OTHER} (NVIDIA L4) instead of {CARD} (NVIDIA L4).",
        )
    ]


def test_a_card_in_another_slot_or_host_has_moved() -> None:
    assert cards(gpu01=(f"1 {CARD}", f"2 {CARD}")) == [
        ("gpu01", "note", f"{CARD} (NVIDIA L4) moved from 1 to 2.")
    ]
    assert cards(gpu01=(f"1 {CARD}; 2 {OTHER}", f"1 {CARD}"), gpu02=(None, f"1 {OTHER}")) == [
        ("gpu01", "note", f"{OTHER} (NVIDIA L4) is in gpu02 now.")
    ]
    swap = cards(gpu01=(f"1 {CARD}", f"1 {OTHER}"), gpu02=(f"1 {OTHER}", f"1 {CARD}"))
    assert [(host, weight) for host, weight, _ in swap] == [("gpu01", "note"), ("gpu02", "note")]
    assert f"{CARD} is in gpu02 now" in swap[0][2]


def test_a_new_card() -> None:
    assert cards(gpu01=(f"1 {CARD}", f"1 {CARD}; 2 {OTHER}")) == [
        ("gpu01", "note", f"{OTHER} (NVIDIA L4) at 2 is new.")
    ]


def test_a_returned_card_is_good_and_needs_no_declaration() -> None:
    (back,) = night(
        hosts={"gpu01": "PP"},
        cards={"gpu01": {CARD, OTHER}},
        texts={
            ("gpu01", "gpus"): (f"1 {CARD} NVIDIA L4", f"1 {CARD} NVIDIA L4; 2 {OTHER} NVIDIA L4")
        },
    )
    assert (back["weight"], back["text"], back["remedy"]) == (
        "good",
        f"{OTHER} (NVIDIA L4) is back at 2.",
        "",
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            "0000:01:00.0 12; 0000:02:00.0 12",
            "0000:01:00.0 12; 0000:02:00.0 8",
            ("bad", "8 active"),
        ),
        ("0000:01:00.0 12", "0000:01:00.0 0", ("bad", "has 0 active NVLinks, 12 before")),
        ("0000:01:00.0 8", "0000:01:00.0 12", ("good", "12 active NVLinks, 8 before")),
        # Another finding names the card.
        ("0000:01:00.0 12; 0000:02:00.0 12", "0000:01:00.0 12", None),
        ("0000:01:00.0 12", "damaged", None),
    ],
)
def test_active_nvlinks_are_compared_with_the_past(
    before: str, after: str, expected: tuple[str, str] | None
) -> None:
    found = night(hosts={"gpu01": "PP"}, texts={("gpu01", "nvlinks"): (before, after)})
    assert [(each["weight"], expected[1] in each["text"]) for each in found if expected] == (
        [(expected[0], True)] if expected else []
    )
    assert len(found) == (expected is not None)


def test_a_semicolon_in_a_model_is_no_other_card() -> None:
    assert list(versions.cards(f"1 {CARD} L4; rev 2; 2 {OTHER} L4")) == [CARD, OTHER]


def test_a_card_that_somebody_works_on_is_nothing_different() -> None:
    def found_for(*, held: bool) -> list[Any]:
        before, now = line("P?", "GPU 0 was not tested; held by pid 7 (train)")
        assert now
        return night(
            hosts={"gpu01": "P?"},
            checks={("gpu01", "gpu.hello"): [before, replace(now, held=held)]},
        )

    assert found_for(held=True) == []
    assert [it["weight"] for it in found_for(held=False)] == ["note"]


# -- speeds ----------------------------------------------------------------------------------------

SPEED = "gpu.GPU-aaaa.toolkit.12.3.tflops"


def morning(values: Sequence[float | None], name: str = SPEED) -> list[Change]:
    """The changes of one measure after these nights, in the window that is looked at."""
    return list(baselines.throughput_changes({("gpu01", name): values[-30:]}))


def noisy(rng: random.Random, nights: int, sigma: float) -> list[float | None]:
    """Nights of a card at 50 TFLOP/s; now and then one on which others compute as well."""
    return [50 * rng.gauss(1, sigma) * (0.7 if rng.random() < 0.01 else 1) for _ in range(nights)]


@pytest.mark.parametrize("sigma", [0.0, 0.002, 0.01, 0.03])
def test_ninety_noisy_nights_of_a_hundred_cards_are_no_alarm(sigma: float) -> None:
    rng = random.Random(f"noise {sigma}")
    for _ in range(100):
        values = noisy(rng, 90, sigma)
        alarms = [
            number
            for number in range(2, 91)
            for change in morning(values[:number])
            if change.weight == "bad"
        ]
        # Two bad nights in a row do happen by chance: once in ten thousand pairs.
        lows = [it for it in alarms if (values[it - 2] or 0) < 40 and (values[it - 1] or 0) < 40]
        assert alarms == lows


@pytest.mark.parametrize("sigma", [0.0, 0.002, 0.01, 0.03])
def test_a_loss_of_a_fifth_is_reported_in_the_second_night_only(sigma: float) -> None:
    rng = random.Random(f"drop {sigma}")
    late = 0
    for _ in range(100):
        past = [50 * rng.gauss(1, sigma) for _ in range(28)]
        after: list[float | None] = [40 * rng.gauss(1, sigma) for _ in range(4)]
        reported = [bool(morning([*past, *after[:number]])) for number in range(1, 5)]
        assert reported.count(True) <= 1 and not reported[0]
        late += not reported[1]
    assert late <= (0 if sigma < 0.03 else 2)


def test_a_single_low_night_is_nothing() -> None:
    values: list[float | None] = [50.0] * 20
    assert morning([*values, 30.0]) == morning([*values, 30.0, 50.0]) == []
    assert morning([*values, 30.0, 50.0, 30.0]) == []


def test_a_short_past_is_no_baseline() -> None:
    assert morning([50.0] * (baselines.LEAST_NIGHTS - 1) + [30.0] * 2) == []
    assert [it.strikes for it in morning([50.0] * baselines.LEAST_NIGHTS + [30.0] * 2)] == [2]


def test_nights_without_a_measure_neither_count_nor_reset() -> None:
    past: list[float | None] = [50.0] * 10
    assert [it.kind for it in morning([*past, 40.0, None, 40.0])] == ["throughput"]
    assert morning([*past, 40.0, 40.0, None]) == []


def test_a_tiny_spread_does_not_make_a_tiny_loss_an_alarm() -> None:
    assert morning([50.0] * 20 + [48.0, 48.0]) == []


def test_the_sentence_says_how_much_and_of_which_card() -> None:
    (change,) = morning([50.0] * 10 + [40.0, 40.0])
    assert (change.check, change.weight, change.strikes) == ("gpu.throughput", "bad", 2)
    assert change.text == (
        "GPU-aaaa reaches 40 TFLOP/s in CUDA 12.3, 20% below its baseline of 50."
    )
    assert "gpu.throttle" in change.remedy


def test_a_slow_card_is_reported_once_for_all_environments() -> None:
    slow: list[float | None] = [50.0] * 10 + [40.0, 40.0]
    found = list(
        baselines.throughput_changes(
            {
                ("gpu01", SPEED): slow,
                ("gpu01", "gpu.GPU-aaaa.stack.tensorflow-2.13.1.tflops"): slow,
                ("gpu01", "cpu.stack.tensorflow-2.13.1.tflops"): slow,
            }
        )
    )
    assert [it.text.partition(" reaches")[0] for it in found] == ["GPU-aaaa", "The processor"]


def test_a_slow_card_stands_until_slow_becomes_the_baseline() -> None:
    nights: list[float | None] = [50.0] * 30
    reported = []
    for number in range(1, 41):
        nights.append(40.0)
        window = Window(list("ab"), {"gpu01": "PP"}, speeds={("gpu01", SPEED): nights[-30:]})
        stands = drift.document(window)["standing"]
        assert [it["strikes"] for it in stands] == ([number] if 2 <= number <= 21 else []), number
        reported += [(number, it.weight, it.text) for it in morning(nights)]
    assert [(number, weight) for number, weight, _ in reported] == [(2, "bad"), (22, "bad")]
    assert reported[1][2] == (
        "GPU-aaaa has been slow for 22 nights in CUDA 12.3: 40 TFLOP/s is the"
        " baseline from now on, instead of 50."
    )


def test_a_card_that_is_as_fast_again_is_reported_and_one_noisy_night_is_not() -> None:
    past: list[float | None] = [50.0] * 10
    (good,) = morning([*past, 40.0, 40.0, 40.0, 50.0])
    assert (good.weight, good.text) == (
        "good",
        "GPU-aaaa is as fast as before again in CUDA 12.3, after 3 nights.",
    )
    assert morning([*past, 40.0, 50.0]) == []


def test_a_host_whose_versions_cannot_be_compared_costs_no_other_its_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(texts: Any, *rest: Any) -> Any:
        if any(host == "b" for host, _ in texts):
            raise ValueError("strange")
        return compare(texts, *rest)

    compare = drift.version_changes
    monkeypatch.setattr(drift, "version_changes", fails)
    window = Window(
        ["2026-11-20T02:00:00Z", "2026-11-21T02:00:00Z"],
        {"a": "PP", "b": "PP"},
        texts={(host, "driver.version"): ("535.1", "535.2") for host in "ab"},
    )
    found = {change["host"]: change for change in drift.document(window)["changes"]}
    assert "Driver changed from 535.1 to 535.2" in found["a"]["text"]
    assert "gpufleet failed while it compared this host" in found["b"]["text"]


@pytest.mark.parametrize(
    ("nights", "news"),
    [
        ("P?", [1]),
        ("PPP?PPPPPPPP????????????????????????", [3, 14]),  # unknown for good: once it settled
        ("P??????", [1]),
        ("P?P?P?P???????", [1, 9]),
        ("P?PPPPPPPPPPP?", [1, 13]),
        ("P?P?b?b??P", [1, 7]),  # busy nights say nothing
    ],
)
def test_what_is_unknown_for_good_is_news_however_it_began(nights: str, news: list[int]) -> None:
    line = [{"?": True, "b": None}.get(letter, False) for letter in nights]
    assert [
        night for night in range(len(line)) if flapping.newly_unknown(line[: night + 1])
    ] == news


def test_what_a_check_of_former_nights_explains_is_named() -> None:
    """That one has no change tonight with which it would be named."""
    checks = {
        ("gpu01", "host.probe"): of("P???"),
        ("gpu01", "containers.gpus"): of("P???", "host.probe"),
        ("gpu01", "gpu.count"): of("PPP?", "host.probe"),
    }
    (found,) = night(hosts={"gpu01": "P???"}, checks=checks)
    assert found["check"] == "gpu.count"
    assert "could not be judged" in found["text"]
