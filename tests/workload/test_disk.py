"""The load of a disk: what it writes is read back, and what changed is counted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.workload import disk
from gpufleet.workload.disk import BLOCK, DiskLoad, block


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "MOST_BLOCKS", 2)
    monkeypatch.setattr(disk, "PAUSE_S", 5)


def loaded(place: Path, stop: Callable[[DiskLoad], bool]) -> Any:
    load = DiskLoad(str(place))
    load.ended = SimpleNamespace(  # type: ignore[assignment]
        is_set=lambda: stop(load), wait=lambda seconds: None, set=lambda: None
    )
    load.run()
    return load.found


def test_rounds_are_written_read_back_and_leave_nothing(tmp_path: Path) -> None:
    found = loaded(tmp_path, lambda load: load.found["rounds"] == 2)
    assert found["write_mib_s"] > 0 < found["read_mib_s"]
    assert {**found, "write_mib_s": 0, "read_mib_s": 0} == {
        "directory": str(tmp_path),
        "mib": 8,
        "rounds": 2,
        "wrong": 0,
        "write_mib_s": 0,
        "read_mib_s": 0,
        "error": None,
    }
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", ["bit", "swapped", "stale", "short"])
def test_a_disk_that_changes_what_it_keeps_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The data that fsync left in the file are damaged before they are read."""
    real, first = os.fsync, [b""]

    def damage(handle: int) -> None:
        real(handle)
        if fault == "bit":
            os.pwrite(handle, bytes([os.pread(handle, 1, BLOCK + 7)[0] ^ 4]), BLOCK + 7)
        elif fault == "swapped":
            one, other = os.pread(handle, BLOCK, 0), os.pread(handle, BLOCK, BLOCK)
            os.pwrite(handle, other + one, 0)
        elif fault == "stale" and first[0]:
            os.pwrite(handle, first[0], 0)
        elif fault == "short":
            os.ftruncate(handle, BLOCK + 9)
        first[0] = first[0] or os.pread(handle, BLOCK, 0)

    monkeypatch.setattr(os, "fsync", damage)
    found = loaded(tmp_path, lambda load: load.found["rounds"] == 2)
    assert found["wrong"] == {"bit": 2, "swapped": 4, "stale": 1, "short": 2}[fault]


def test_no_two_blocks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "BLOCK", 1 << 20)
    monkeypatch.setattr(disk, "MOST_BLOCKS", 256)
    pattern = os.urandom(1 << 20)
    assert len({block(pattern, number) for number in range(256)}) == 256


def test_a_full_disk_is_an_error_and_no_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(f_bavail=10, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    found = loaded(tmp_path, lambda load: True)
    assert (found["rounds"], found["mib"]) == (0, None)
    assert "has no space for a file" in found["error"]


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert "No such file" in loaded(tmp_path / "nowhere", lambda load: True)["error"]


def test_its_end_waits_for_the_block_that_is_under_way(tmp_path: Path) -> None:
    load = DiskLoad(str(tmp_path))
    load.start()
    load.end()
    assert not load.is_alive()
    assert load.found["error"] is None
    assert load.found["rounds"] >= 0
