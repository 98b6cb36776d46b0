"""Which stages are still valid, and what a burn-in's time may be."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.campaign.commission.identity import (
    BURN_IN,
    CARDS,
    DRIVER,
    KERNEL,
    LATER,
    MACHINE,
    PLAN,
    PORTS,
    STATE,
)
from gpufleet.campaign.commission.stages import (
    PREFLIGHT,
    RESUMED,
    SIBLINGS,
    STAGES,
    VERIFY,
    before_provisioning,
    changed_inputs,
    duration,
    seconds_of,
    still_valid,
)
from gpufleet.errors import ConfigurationError

NAMES = [stage.name for stage in RESUMED]
IDENTITY = {PLAN: "p", MACHINE: "m", CARDS: "c", DRIVER: "d"}
BURNED_S = 1800.0


def passed(*names: str) -> dict[str, dict[str, str]]:
    """These stages have passed on this host."""
    return {
        stage.name: {
            **{key: IDENTITY[key] for key in stage.inputs if key in IDENTITY},
            **({BURN_IN: f"{BURNED_S:g}"} if BURN_IN in stage.inputs else {}),
        }
        for stage in STAGES
        if stage.name in names
    }


def test_all_stages_are_valid_where_nothing_changed() -> None:
    assert list(still_valid(passed(*NAMES), IDENTITY, BURNED_S)) == NAMES


@pytest.mark.parametrize("gone", NAMES)
def test_a_stage_that_has_not_passed_takes_all_later_ones_with_it(gone: str) -> None:
    known = passed(*(name for name in NAMES if name != gone))
    assert list(still_valid(known, IDENTITY, BURNED_S)) == NAMES[: NAMES.index(gone)]


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        (STATE, "provision"),
        (PLAN, "provision"),
        (MACHINE, "provision"),
        (PORTS, "provision"),
        (KERNEL, "provision"),
        (DRIVER, "provision"),
        (CARDS, "verify"),
    ],
)
def test_what_changed_is_repeated_with_all_that_follows(changed: str, first: str) -> None:
    found = still_valid(passed(*NAMES), {**IDENTITY, changed: "other"}, BURNED_S)
    assert list(found) == NAMES[: NAMES.index(first)]


def test_a_card_that_is_no_longer_read_is_no_longer_proven() -> None:
    without = {name: value for name, value in IDENTITY.items() if name != CARDS}
    assert list(still_valid(passed(*NAMES), without, BURNED_S)) == ["provision"]


def test_the_preflight_voids_nothing_but_is_valid_for_the_same_host_alone() -> None:
    known = passed(PREFLIGHT.name, *NAMES)
    # The ports of a fresh host show when their drivers are installed.
    ports = {**IDENTITY, PORTS: "with drivers"}
    whole = passed(*NAMES) | {name: {**known[name], PORTS: "with drivers"} for name in NAMES}
    assert list(still_valid(whole, ports, BURNED_S)) == NAMES
    assert "preflight" in still_valid(known, ports, BURNED_S, STAGES)
    assert not still_valid(known, {**IDENTITY, MACHINE: "other"}, BURNED_S, STAGES)


def test_a_host_that_could_not_be_identified_has_proven_nothing() -> None:
    assert not still_valid({name: {} for name in NAMES}, {}, 0)


def test_a_burn_in_that_was_shorter_is_repeated_and_a_longer_one_is_not() -> None:
    assert "burn-in" not in still_valid(passed(*NAMES), IDENTITY, BURNED_S + 1)
    assert list(still_valid(passed(*NAMES), IDENTITY, BURNED_S - 1)) == NAMES


def test_collectives_are_repeated_for_siblings_that_were_not_requested_before() -> None:
    known = passed(*NAMES)
    known["collectives"][SIBLINGS] = "gpu01,gpu02"

    def valid(*siblings: str) -> list[str]:
        return list(still_valid(known, IDENTITY, BURNED_S, siblings=siblings))

    assert valid() == valid("gpu02") == NAMES
    assert valid("gpu01", "gpu03") == NAMES[: NAMES.index("collectives")]
    del known["collectives"][SIBLINGS]
    assert valid("gpu01") == NAMES[: NAMES.index("collectives")]


def test_a_manifest_is_compared_in_so_far_as_the_host_shows_it_before_it_is_provisioned() -> None:
    names = (
        "bios",
        "memory.modules",
        "network.adapters",
        "gpu.models",
        "limits.dockerd",
        "mount /",
    )
    plan: Any = {"host": "gpu01", "manifest": {name: ["x"] for name in names}}
    assert [*before_provisioning(plan, ports=True)["manifest"]] == [*names[:3]]
    assert [*before_provisioning(plan, ports=False)["manifest"]] == [*names[:2]]
    assert [*plan["manifest"]] == [*names]
    assert "manifest" not in before_provisioning({"host": "gpu01"}, ports=True)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), (" 4h ", 14400)])
def test_a_time_has_a_unit(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "0m", "4 h", "-1h", "1d", "169h", "9" * 20 + "s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is no time for a burn-in"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (40, "40 s"),
        (90, "90 s"),
        (120, "2 min"),
        (600, "10 min"),
        (14700, "4 h 5 min"),
        (7200, "2 h"),
    ],
)
def test_times_are_written_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_burn_in_is_announced_with_the_time_of_its_load() -> None:
    stages = {stage.name: stage for stage in STAGES}
    assert stages["burn-in"].announced(90, "about ") == "90 s of load, about 4 min"
    assert stages["deep"].announced(90, "about ") == "about 8 min"


@pytest.mark.parametrize("part", LATER)
def test_a_part_that_is_read_since_a_release_voids_no_earlier_stage(part: str) -> None:
    known = {name: "x" for name in VERIFY.inputs if name != part}
    now = {**known, part: "y"}
    assert changed_inputs(VERIFY, known, now) == []
    assert changed_inputs(VERIFY, {**known, part: "z"}, now) == [part]
