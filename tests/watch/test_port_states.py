"""The ports of a host as one text of a night, and what changed between two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpufleet.components.base import ports as roles
from gpufleet.watch import drift, versions
from gpufleet.watch.drift import Window
from gpufleet.watch.history import History
from gpufleet.watch.port_states import PortState, last_known, port_changes, states, text_of
from tests.support import rdma_host
from tests.support.nightly_sessions import host, measured, session
from tests.support.rdma_host import DOWN, device, port

ONE, OTHER = "a088c20300ab0000", "a088c20300ab0001"


def test_the_text_has_each_port_and_is_read_again() -> None:
    network = rdma_host.network([device(0), device(1, port(1, **DOWN))], gpus=2)
    text = text_of(roles.ports(network))
    assert text == (
        f"{ONE} mlx5_0 compute InfiniBand up 400; {OTHER} mlx5_1 compute InfiniBand down 10"
    )
    assert states(text) == {
        ONE: PortState("mlx5_0", "compute", "InfiniBand", "up", 400.0),
        OTHER: PortState("mlx5_1", "compute", "InfiniBand", "down", 10.0),
    }


def test_a_port_whose_state_is_unknown_is_neither_up_nor_down() -> None:
    unread = port(0, state=None, phys_state=None, rate=None)
    [found] = states(text_of(roles.ports(rdma_host.network([device(0, unread)])))).values()
    assert (found.state, found.gb_s) == ("?", None)


def test_a_name_of_several_words_stays_one_row() -> None:
    odd = device(0, name="a b; c")
    [found] = states(text_of(roles.ports(rdma_host.network([odd])))).values()
    assert found.name == "a_b;_c"


@pytest.mark.parametrize(
    "text", ["", "none", "a b c", f"{ONE} mlx5_0 compute InfiniBand gone 1", f"{ONE} a b c up x"]
)
def test_what_is_no_row_is_left_out(text: str) -> None:
    assert states(text) == {}


def row(state: str = "up", rate: str = "400", *, guid: str = ONE, role: str = "compute") -> str:
    return f"{guid} mlx5_0 {role} InfiniBand {state} {rate}"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (row(), row(), None),
        (row(), row("down", "10"), ("bad", "The port mlx5_0 (compute) has no link any more.")),
        (row("down", "10"), row(), ("good", "The port mlx5_0 (compute) has a link again.")),
        (row(role="unused"), row("down", role="unused"), ("note", "has no link any more")),
        (row(role="-"), row("down", role="-"), ("note", "The port mlx5_0 has no link any more")),
        (row(), row(rate="200"), ("bad", "carries 200 Gb/s, 400 before")),
        (row(rate="200"), row(), ("good", "carries 400 Gb/s, 200 before")),
        # The rate of a port without a link means nothing.
        (row("down", "10"), row("down", "2.5"), None),
        # What was not read is no change.
        (row(), row("?", "-"), None),
        (row("?", "-"), row("down", "10"), None),
        (row(), row(rate="-"), None),
        (row(), "none", ("bad", f"mlx5_0 (compute) with GUID {ONE} is not there, or was not read")),
        (row(role="unused"), "none", ("note", "is not there")),
        # A card was replaced, or a virtual function was created again.
        (row(), row(guid=OTHER), None),
        (row(), row("down", guid=OTHER), ("bad", "has no link any more")),
        # Another card fell off the bus, and this one has its name now.
        (
            f"{row()}; {row(guid=OTHER).replace('mlx5_0', 'mlx5_1')}",
            row(guid=OTHER),
            ("bad", f"GUID {ONE} is not there"),
        ),
        # A port that is new has no past.
        ("none", row("down"), None),
    ],
)
def test_a_port_is_compared_with_its_past(
    before: str, after: str, expected: tuple[str, str] | None
) -> None:
    found = list(port_changes("gpu01", states(before), states(after)))
    assert [(each.weight, each.kind) for each in found] == (
        [(expected[0], "port")] if expected else []
    )
    assert all(expected and expected[1] in each.text for each in found)


def test_the_change_is_that_of_its_host_in_the_document() -> None:
    window = Window(
        ["2026-11-20T01:00:00Z", "2026-11-21T01:00:00Z"],
        {"gpu01": "PP"},
        texts={("gpu01", "ports"): (row(), row("down"))},
    )
    (found,) = drift.document(window)["changes"]
    assert (found["host"], found["kind"], found["weight"]) == ("gpu01", "port", "bad")
    assert found["remedy"]


@pytest.mark.parametrize(
    ("texts", "known"),
    [
        ([row()], row()),
        ([row("down", "10"), row()], row()),
        ([row(), row("?", "-")], row()),
        ([row(rate="200"), row(), row("?", "-"), row("?", "-")], row()),
        ([row(), row("up", "-")], row()),
        # The rate of a port without a link is none that it lost.
        ([row("down", "10"), row("up", "-")], row("up", "-")),
        ([row("?", "-")], row("?", "-")),
        ([row(), "none"], "none"),
    ],
)
def test_what_was_not_read_is_known_from_before(texts: list[str], known: str) -> None:
    assert last_known(texts) == known


def test_a_loss_after_a_night_that_did_not_read_it_is_named(path: Path) -> None:
    def texts(measure: str, *nights: str) -> list[str]:
        with History(path) as history:
            for number, text in enumerate(nights):
                run = session(number, host("gpu01", gpu__count="PASS"))
                values: dict[str, Any] = {measure: text}
                found = history.record(run, measure=measured(**values))
            return [change["text"] for change in history.changes(found)["changes"]]

    assert texts("ports", row(), row("?", "-"), row("down", "10")) == [
        "The port mlx5_0 (compute) has no link any more."
    ]


def test_a_gpu_whose_nvlinks_were_not_read_is_compared_with_the_night_before() -> None:
    assert versions.last_known("nvlinks", ["0:1 18; 0:2 18", "0:1 17"]) == "0:1 17; 0:2 18"
    assert versions.last_known("nvlinks", ["none"]) == "none"
    assert versions.last_known("driver.version", ["535", "580"]) == "580"
    assert versions.last_known("ports", []) is None
