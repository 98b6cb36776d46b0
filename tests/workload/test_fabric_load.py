"""The load of all links while the GPUs compute, on stand-ins: blocks arrive, and what changed is seen."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path

import pytest

from gpufleet.workload.fabric_load import differ
from tests.support.toolkit_run import Document, run

# The size of one series of copies, each a block of 1 MiB.
SERIES_GIB = 8 / 1024


def loaded(
    libraries: tuple[Path, Path], *more: str, gpus: int = 2, **reported: str | int
) -> dict[tuple[int | None, int | None], Document]:
    """What the load of all links reports, by their ends."""
    places = ",".join(f"0000:{gpu:02x}:00.0" for gpu in range(gpus))
    found = run(
        libraries,
        *("--stage", "sustained", "--gpus", str(gpus), "--places", places),
        *("--sustained", "2", "--fabric", "--block", "1", *more),
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
    """What an earlier round has copied is no longer there."""
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
    words = ("--deep", "--sustained", "2", "--fabric", "--block", "1", "--expect-gpus", "1")
    found = run(libraries, *words, gpus=1)
    assert (found["state"], len(found["fabric"])) == ("ok", 2)
    assert all(row["checked"] and row["error"] is None for row in found["fabric"])


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
