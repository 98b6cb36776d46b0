"""The load of all links while the GPUs compute, on stand-ins: blocks arrive, and what changed is seen."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.workload import fabric_load
from gpufleet.workload.fabric_load import HOST, FabricLoad, differ
from tests.support.toolkit_run import Document, run

pytestmark = pytest.mark.costly

# The size of one series of copies, each a block of 1 MiB.
SERIES_GIB = 8 / 1024


def loaded(
    libraries: tuple[Path, Path], *more: str, gpus: int = 2, **reported: str | int
) -> dict[tuple[int | None, int | None], Document]:
    """The reports of the load of all links, by their ends."""
    places = ",".join(f"0000:{gpu:02x}:00.0" for gpu in range(gpus))
    found = run(
        libraries,
        *("--stage", "sustained", "--gpus", str(gpus), "--places", places),
        *("--sustained", "8", "--fabric", "--block", "1", *more),
        gpus=gpus,
        **reported,
    )
    # The load of the GPUs goes on whatever becomes of a link.
    assert [row["gpu"] for row in found["sustained"]] == list(range(gpus))
    return {(entry["from"], entry["to"]): entry for entry in found["fabric"]}


def test_every_direction_of_every_link_is_loaded_and_compared(
    libraries: tuple[Path, Path],
) -> None:
    found = loaded(libraries, gpus=3)
    ends = (0, 1, 2, None)
    assert sorted(found, key=str) == sorted(((a, b) for a in ends for b in ends if a != b), key=str)
    for (a, b), entry in found.items():
        assert (entry["wrong"], entry["error"]) == (0, None)
        assert entry["access"] is (None if None in {a, b} else True)
        assert entry["checked"] > 0 < entry["gib_s"]
        assert entry["gib"] >= SERIES_GIB * entry["checked"] - 0.05


def test_one_gpu_has_the_host_alone(libraries: tuple[Path, Path]) -> None:
    found = loaded(libraries, gpus=1)
    assert set(found) == {(0, None), (None, 0)}
    assert all(entry["checked"] and not entry["wrong"] for entry in found.values())


def test_a_changed_bit_is_seen_on_its_own_link(libraries: tuple[Path, Path]) -> None:
    found = loaded(libraries, peer="bit")
    assert found[0, 1]["wrong"] == found[0, 1]["checked"] > 0
    assert {ends for ends, entry in found.items() if entry["wrong"]} == {(0, 1)}


@pytest.mark.parametrize(
    ("way", "link"), [({"lost_way": 1}, (None, 0)), ({"lost_way": 2}, (0, None))]
)
def test_a_copy_that_moves_no_byte_is_seen(
    libraries: tuple[Path, Path], way: dict[str, int], link: tuple[int | None, int | None]
) -> None:
    """A round finds no data that an earlier round has copied."""
    entry = loaded(libraries, gpus=1, **way)[link]
    assert entry["wrong"] == entry["checked"] > 0


def test_a_link_that_is_refused_fails_alone(libraries: tuple[Path, Path]) -> None:
    found = loaded(libraries, peer=719)
    error = "cudaMemcpyPeerAsync returned 719 cudaErrorOfStandIn"
    assert {found[0, 1]["error"], found[1, 0]["error"]} == {error}
    assert {found[ends]["error"] for ends in found if None in ends} == {None}


def test_gpus_that_cannot_address_each_other_copy_with_the_host_alone(
    libraries: tuple[Path, Path],
) -> None:
    found = loaded(libraries, peer="apart")
    for ends in ((0, 1), (1, 0)):
        assert found[ends]["access"] is False
        assert (found[ends]["checked"], found[ends]["gib"], found[ends]["error"]) == (0, 0.0, None)
    assert all(found[ends]["checked"] for ends in found if None in ends)


def test_a_gpu_that_others_use_takes_no_part(libraries: tuple[Path, Path]) -> None:
    found = loaded(libraries, free_mib=300)
    assert {found[ends]["error"] for ends in found if 0 in ends} == {"GPU 0 was not loaded"}
    assert found[1, None]["checked"] > 0


def test_a_comparison_that_sees_nothing_is_refused(libraries: tuple[Path, Path]) -> None:
    """The load of the GPUs refuses it first: nothing is loaded then."""
    with pytest.raises(KeyError, match="fabric"):
        loaded(libraries, cublas="sums", gpus=1)


def test_the_whole_run_reports_the_links(libraries: tuple[Path, Path]) -> None:
    words = ("--deep", "--sustained", "8", "--fabric", "--block", "1", "--expect-gpus", "1")
    found = run(libraries, *words, gpus=1)
    assert (found["state"], len(found["fabric"])) == ("ok", 2)
    assert all(row["checked"] and row["error"] is None for row in found["fabric"])


def stood_in(
    monkeypatch: pytest.MonkeyPatch, gpus: int, copy: Callable[[Document], None]
) -> FabricLoad:
    """The load of the links of so many GPUs, each round of which is this function."""

    class Link:
        """A link that does what the function does with its entry."""

        def __init__(self, found: Document) -> None:
            self.found = found
            self.gpu = found["to"] if found["from"] is HOST else found["from"]

        def round(self, until: float, ended: threading.Event) -> None:
            copy(self.found)
            self.found["checked"] += 1
            ended.wait(0.02)

    def connect(load: FabricLoad, found: Document) -> None:
        load.links[found["from"], found["to"]] = Link(found)

    monkeypatch.setattr(FabricLoad, "connect", connect)
    monkeypatch.setattr(FabricLoad, "prepare", lambda *_: None)
    monkeypatch.setattr(fabric_load, "ANSWER_S", 0.5)
    monkeypatch.setattr(fabric_load, "PAUSE_S", 1)
    options = SimpleNamespace(gpus=gpus, block=1, sustained=1)
    unused: Any = None
    return FabricLoad(unused, unused, [], options)


@pytest.fixture
def never() -> Any:
    """The event that a link without an answer waits for; it ends with the test."""
    event = threading.Event()
    yield event
    event.set()


def test_the_links_of_other_gpus_go_on_when_a_gpu_hangs(
    monkeypatch: pytest.MonkeyPatch, never: threading.Event
) -> None:
    """No link was loaded any more, and each was reported to give no answer."""
    hangs = threading.Event()

    def copy(found: Document) -> None:
        if hangs.is_set() and 0 in {found["from"], found["to"]}:
            never.wait()

    load = stood_in(monkeypatch, 4, copy)
    load.start()
    time.sleep(0.2)
    hangs.set()
    time.sleep(1.5)
    before = {(each["from"], each["to"]): each["checked"] for each in load.found}
    time.sleep(0.5)
    load.end()
    assert not load.is_alive()
    for found in load.found:
        ends = found["from"], found["to"]
        if 0 in ends:
            assert "no answer within" in str(found["error"]), ends
        else:
            assert (found["error"], found["checked"] > before[ends]) == (None, True), ends
    assert 0 in load.under_way()
    assert load.under_way() < {0, 1, 2, 3}


def test_a_link_that_hangs_fails_alone(
    monkeypatch: pytest.MonkeyPatch, never: threading.Event
) -> None:
    load = stood_in(
        monkeypatch, 3, lambda found: (found["from"], found["to"]) == (0, 1) and never.wait()
    )
    load.start()
    time.sleep(1.2)
    load.end()
    errors = {(found["from"], found["to"]): found["error"] for found in load.found}
    assert errors.pop((0, 1)) == "no answer within 0 s"
    assert {*errors.values()} == {None}
    assert load.under_way() == {0, 1}


def test_a_link_that_hangs_when_the_load_ends_is_the_only_one_that_fails(
    monkeypatch: pytest.MonkeyPatch, never: threading.Event
) -> None:
    ends, hangs = (1, HOST), threading.Event()

    def copy(found: Document) -> None:
        if hangs.is_set() and (found["from"], found["to"]) == ends:
            never.wait()

    load = stood_in(monkeypatch, 1 + 1, copy)
    monkeypatch.setattr(fabric_load, "ANSWER_S", 60)
    load.start()
    time.sleep(0.2)
    hangs.set()
    time.sleep(0.2)
    load.end()
    errors = {(found["from"], found["to"]): found["error"] for found in load.found}
    assert errors[ends] == "no answer within 1 s"
    assert errors[0, HOST] is None
    assert errors[HOST, 0] is None
    assert load.under_way() == {1}


def test_other_threads_run_while_the_host_s_memory_is_compared() -> None:
    """Python's own comparison of bytes kept the threads from queueing products."""
    one, other = [(ctypes.c_char * (256 << 20))() for _ in "ab"]
    started, ended, results = threading.Event(), threading.Event(), []

    def compare() -> None:
        started.set()
        results.append(differ(one, other, len(one)))
        ended.set()

    thread = threading.Thread(target=compare)
    thread.start()
    started.wait()
    turns = 0
    while not ended.is_set():
        time.sleep(0)
        turns += 1
    thread.join()
    assert results == [False]
    assert turns > 100
    other[len(other) - 1] = b"\1"
    assert differ(one, other, len(one))
    assert not differ(one, other, len(one) - 1)
