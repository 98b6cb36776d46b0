"""The loads of a burn-in beside the GPUs: a disk and all links, and the fault behind a change."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.campaign.commission.beside import beside, disk_load, links_load
from gpufleet.campaign.commission.decision import faulty_parts
from gpufleet.campaign.commission.figures import figures_of
from gpufleet.campaign.commission.identity import parts_of
from tests.support.healthy_host import Document, data, document, with_cards
from tests.support.recorded_hosts import loaded_links

GPUS = 4


@pytest.fixture
def host() -> tuple[Document, Document]:
    """A whole host after its burn-in."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_cards(plan, snapshot, GPUS)
    data(snapshot, "compute")["runs"][0]["fabric"] = loaded_links(GPUS)
    return plan, with_disk(snapshot)


def blamed(host: tuple[Document, Document], *reasons: Any) -> list[tuple[str, list[str]]]:
    snapshot: Any = host[1]
    return [
        (entry["part"]["name"], [each["check"] for each in entry["reasons"]])
        for entry in faulty_parts(parts_of("gpu01", snapshot), reasons)
    ]


def with_disk(snapshot: Document, **more: Any) -> Any:
    data(snapshot, "compute")["runs"][0]["disk"] = {
        **{"directory": "/var/tmp", "mib": 1024, "rounds": 40, "wrong": 0, "error": None},
        **{"write_mib_s": 1800, "read_mib_s": 3100, **more},
    }
    return snapshot


def test_a_disk_that_was_loaded_is_noted(host: tuple[Document, Document]) -> None:
    notes, reasons = disk_load(with_disk(host[1]))
    assert reasons == []
    assert "40 rounds of 1024 MiB in /var/tmp, 1800 MiB/s written, 3100 MiB/s read" in notes[0]


@pytest.mark.parametrize("change", [{"rounds": 0}, {"error": "No space left on device"}])
def test_a_disk_that_was_not_loaded_is_not_judged(
    host: tuple[Document, Document], change: Document
) -> None:
    [why] = disk_load(with_disk(host[1], **change))[1]
    assert (why["check"], why["verdict"]) == ("burn-in.disk", "INCONCLUSIVE")
    assert disk_load(None)[1][0]["verdict"] == "INCONCLUSIVE"


def test_a_disk_that_changed_a_block_is_a_fault_of_the_host(
    host: tuple[Document, Document],
) -> None:
    [why] = disk_load(with_disk(host[1], wrong=3))[1]
    assert why["verdict"] == "FAIL"
    assert blamed(host, why) == [("gpu01", ["burn-in.disk"])]


# -- links -----------------------------------------------------------------------------------------


def links(host: tuple[Document, Document]) -> list[Document]:
    found: list[Document] = data(host[1], "compute")["runs"][0]["fabric"]
    return found


def link(host: tuple[Document, Document], a: int | None, b: int | None) -> Document:
    return next(each for each in links(host) if (each["from"], each["to"]) == (a, b))


def found(host: tuple[Document, Document]) -> Any:
    snapshot: Any = host[1]
    return links_load(snapshot, GPUS)


def test_links_that_were_loaded_are_noted(host: tuple[Document, Document]) -> None:
    assert found(host) == (
        [
            "The links beside the GPUs, all at once: 12 directions between GPUs and 8 with the"
            " host, 24000 GiB; 1200 blocks compared, each as it was sent."
        ],
        [],
    )
    snapshot: Any = host[1]
    assert beside(snapshot, GPUS)[1] == []


def test_gpus_apart_are_noted(host: tuple[Document, Document]) -> None:
    link(host, 0, 1).update(access=False, gib=0.0, gib_s=None, checked=0)
    notes, reasons = found(host)
    assert reasons == []
    assert notes[1:] == [
        "Not loaded, since these GPUs cannot address each other's memory: GPU 0 to GPU 1."
    ]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"error": "it was stopped"}, "GPU 2 to the host (it was stopped)"),
        ({"checked": 0}, "GPU 2 to the host (nothing was compared)"),
        ({"to": 7}, "GPU 2 to the host (not loaded)"),
    ],
)
def test_a_link_that_was_not_loaded_is_not_judged(
    host: tuple[Document, Document], change: Document, named: str
) -> None:
    link(host, 2, None).update(change)
    notes, [why] = found(host)
    assert (notes, why["check"], why["verdict"]) == ([], "burn-in.links", "INCONCLUSIVE")
    assert why["cause"] == f"Not all links were loaded: {named}"


def test_no_load_at_all_is_not_judged(host: tuple[Document, Document]) -> None:
    links(host).clear()
    assert found(host)[1][0]["verdict"] == "INCONCLUSIVE"
    assert links_load(None, 1)[1][0]["verdict"] == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        # Which of the two is at fault is unknown.
        ([(1, 2)], ["gpu01"]),
        ([(1, 2), (2, 1)], ["gpu01"]),
        # All that it takes part in: the others are fine with each other.
        ([(1, 2), (3, 2), (2, 0)], ["GPU 2"]),
        ([(1, 2), (None, 2)], ["GPU 2"]),
        ([(None, 3)], ["GPU 3"]),
        ([(0, 1), (2, 3)], ["gpu01"]),
    ],
)
def test_what_changed_on_the_way_blames_the_common_end(
    host: tuple[Document, Document], wrong: list[tuple[int | None, int | None]], parts: list[str]
) -> None:
    for a, b in wrong:
        link(host, a, b)["wrong"] = 2
    _, [why] = found(host)
    assert why["verdict"] == "FAIL"
    assert why["cause"].startswith("2 of 60 blocks changed on the way from ")
    assert len(why["evidence"].splitlines()) == len(wrong)
    assert [name for name, _ in blamed(host, why)] == parts


def test_figures_have_copies_with_their_bounds_and_those_under_load(
    host: tuple[Document, Document],
) -> None:
    plan: Any
    snapshot: Any
    plan, snapshot = host
    link(host, 1, 2).update(gib_s=4.5)
    own = {
        figure["what"]: figure for figure in figures_of(plan, snapshot) if figure["part"] == "GPU 1"
    }
    slowest = own["copies to other GPUs, the slowest"]
    assert slowest["value"] == 20.0 > (slowest["bound"] or 0) > 0
    assert "to GPU " in slowest["because"]
    for what in ("copies from the host", "copies to the host"):
        assert own[what]["value"] > 0
    assert own["copies to other GPUs under load, the slowest"]["value"] == 4.5
    assert own["copies from the host under load"]["value"] == 10.0
    loaded = [
        figure for what, figure in own.items() if what.startswith("copies") and "load" in what
    ]
    for figure in loaded:
        assert figure["bound"] is None
        assert "no bound is known while all links are loaded" in figure["because"]
    changed = own["wrong of 480 blocks copied under load"]
    assert (changed["value"], changed["bound"], changed["side"]) == (0, 0, "at most")
