"""The contents of what is installed, read a share each night."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.on_host import contents
from gpufleet.on_host.contents import DAY_S, TooLongError, scrub, sha256_on_disk
from gpufleet.on_host.manifest import sha256_of

State = dict[str, Any]
DAYS = 14


class Nights:
    """A host's components, and nights over them; what is read is counted by name."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = root, monkeypatch
        self.now = 1_800_000_000
        self.components: dict[str, State] = {}
        self.states: list[State] = []
        self.read: list[str] = []
        self.seconds = 60.0
        # What reading a file takes.
        self.cost = dict[str, float]()
        self.clock = 0.0
        monkeypatch.setattr(contents, "in_background", lambda: None)
        monkeypatch.setattr(contents.time, "time", lambda: self.now)
        monkeypatch.setattr(contents.time, "monotonic", lambda: self.clock)
        monkeypatch.setattr(contents, "sha256_on_disk", self.digest)

    def digest(self, path: str, ends: float) -> str:
        self.clock += self.cost.get(Path(path).name, 0)
        if self.clock > ends:
            self.clock = ends + 0.001
            raise TooLongError(path)
        self.read.append(Path(path).name)
        return sha256_of(path)

    def install(self, name: str, sizes: dict[str, int], installed: str = "one") -> None:
        files = {}
        for path, size in sizes.items():
            file = self.root / name / path
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(path.encode().ljust(size, b"."))
            files[path] = (sha256_of(str(file)), size)
        self.components[name] = {
            "component": name,
            "installed": installed,
            "root": str(self.root / name),
            "files": files,
        }

    def flip(self, name: str, path: str) -> None:
        """Change a byte; size and time stay."""
        file = self.root / name / path
        before = file.stat()
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    def night(self, after: float = 1, *, kept: bool = True, deep: bool = False) -> list[str]:
        """One night's findings; `kept` is false where the run was killed before it was recorded."""
        self.now += int(after * DAY_S)
        self.read.clear()
        self.clock = 0.0
        states, wrong = scrub(
            list(self.components.values()),
            {"days": DAYS, "seconds": self.seconds, "components": self.states},
            deep,
        )
        if kept:
            self.states = states
        return [
            f"{name}/{entry['path']} {entry['what']}"
            for name, entries in wrong.items()
            for entry in entries
        ]

    def state(self, name: str) -> State:
        return next(state for state in self.states if state["component"] == name)


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nights]:
    found = Nights(tmp_path, monkeypatch)
    found.install("toolkit-12.3", {f"lib{number:02}.so": 50_000 for number in range(40)})
    found.install("stack-tf", {f"{number:02}.so": 9_000 for number in range(25)})
    yield found


def until(nights: Nights, wanted: str, most: int = 60) -> int:
    """After how many nights it is found."""
    for number in range(1, most):
        if wanted in nights.night():
            return number
    raise AssertionError(f"{wanted} was never found")


@pytest.mark.parametrize(
    "path",
    ["toolkit-12.3/lib00.so", "toolkit-12.3/lib39.so", "toolkit-12.3/lib17.so", "stack-tf/24.so"],
)
@pytest.mark.parametrize("before", [0, 5, 13])
def test_a_changed_byte_is_found_within_the_days_and_stays_found(
    nights: Nights, path: str, before: int
) -> None:
    for _ in range(before):
        assert nights.night() == []
    nights.flip(*path.split("/"))
    assert until(nights, f"{path} sha256") <= DAYS
    # Another share is read in the next nights, and the finding is there still, after a rereading.
    for _ in range(20):
        assert nights.night() == [f"{path} sha256"]
        assert nights.read[0] == path.split("/")[1]
    # Right again: the finding goes, and so does the rereading.
    nights.flip(*path.split("/"))
    assert nights.night() == []


def test_every_file_is_read_in_each_round_and_no_night_reads_much_more_than_its_share(
    nights: Nights,
) -> None:
    first = nights.now + DAY_S
    seen: set[str] = set()
    for _ in range(12):
        nights.night()
        assert len(nights.read) <= 4 + 3
        assert not seen & set(nights.read)
        seen |= set(nights.read)
    assert len(seen) == 40 + 25
    for name in ("toolkit-12.3", "stack-tf"):
        state = nights.state(name)
        assert state["read"] == nights.now == first + 11 * DAY_S
        assert (state["first"], state["cursor"]) == (first, "")
    # And once more.
    for _ in range(12):
        nights.night()
    assert nights.state("toolkit-12.3")["read"] == nights.now


def test_what_skipped_nights_left_is_read_in_the_next(nights: Nights) -> None:
    nights.night()
    nights.flip("toolkit-12.3", "lib20.so")
    assert nights.night(after=9) == ["toolkit-12.3/lib20.so sha256"]
    nights.night(after=30)
    assert nights.state("stack-tf")["read"] == nights.now


def test_several_runs_a_day_read_no_more_than_one(nights: Nights) -> None:
    read = 0
    for _ in range(4 * 12):
        nights.night(after=0.25)
        read += len(nights.read)
    # One round in twelve days, and what the first night read of it at once.
    assert 40 + 25 <= read <= (40 + 25) * 13 / 12 + 2


def test_a_night_that_was_killed_is_made_up_for(nights: Nights) -> None:
    for _ in range(3):
        nights.night()
    for _ in range(4):
        nights.night(kept=False)
    for _ in range(5):
        nights.night()
    assert nights.state("toolkit-12.3")["read"] == nights.now


def test_a_file_larger_than_a_share_is_read_whole_and_the_next_nights_read_less(
    nights: Nights,
) -> None:
    nights.install("stack-big", {"a.so": 1000, "b.so": 900_000, "c.so": 1000, "d.so": 1000})
    nights.flip("stack-big", "b.so")
    for _ in range(11):
        assert nights.night() == ["stack-big/b.so sha256"]
        assert not {"c.so", "d.so"} & set(nights.read)
    nights.night()
    assert {"c.so", "d.so"} <= set(nights.read)
    assert nights.state("stack-big")["read"] == nights.now


def test_the_seconds_bound_a_night_and_what_is_most_behind_comes_first(nights: Nights) -> None:
    nights.cost = {f"lib{number:02}.so": 30.0 for number in range(40)}
    nights.seconds = 70
    for _ in range(30):
        nights.night()
        assert nights.clock <= 70.01
    assert nights.state("toolkit-12.3")["read"] is not None
    # Two files a night: later than promised, and the state shows since when.
    assert nights.now - nights.state("toolkit-12.3")["read"] < 30 * DAY_S
    assert (
        nights.state("toolkit-12.3")["read"] - nights.state("toolkit-12.3")["first"] > DAYS * DAY_S
    )
    assert nights.now - nights.state("stack-tf")["read"] <= DAYS * DAY_S


def test_a_file_that_a_whole_night_is_too_short_for_is_named_and_never_counted_as_read(
    nights: Nights,
) -> None:
    nights.components.pop("stack-tf")
    nights.cost = {"lib05.so": 1000.0}
    for _ in range(40):
        nights.night()
    state = nights.state("toolkit-12.3")
    assert (state["read"], state["slow"]) == (None, ["lib05.so"])
    nights.seconds = 2000
    for _ in range(2 * DAYS):
        nights.night()
    state = nights.state("toolkit-12.3")
    assert state["slow"] == []
    assert nights.now - state["read"] <= DAYS * DAY_S


def test_what_is_removed_is_forgotten_and_what_is_new_or_installed_again_begins(
    nights: Nights,
) -> None:
    for _ in range(13):
        nights.night()
    nights.flip("stack-tf", "00.so")
    until(nights, "stack-tf/00.so sha256")
    nights.components.pop("toolkit-12.3")
    nights.install("stack-tf", {f"{number:02}.so": 9_000 for number in range(25)}, "again")
    nights.install("cudnn-12.3-9", {"libcudnn.so": 20_000})
    assert nights.night() == []
    assert [state["component"] for state in nights.states] == ["stack-tf", "cudnn-12.3-9"]
    assert (nights.state("stack-tf")["read"], nights.state("stack-tf")["first"]) == (
        None,
        nights.now,
    )


def test_a_file_that_was_added_to_a_component_is_not_taken_for_read(nights: Nights) -> None:
    for _ in range(6):
        nights.night()
    nights.install(
        "toolkit-12.3", {f"lib{number:02}.so": 50_000 for number in range(40)} | {"added.so": 100}
    )
    nights.flip("toolkit-12.3", "added.so")
    assert until(nights, "toolkit-12.3/added.so sha256") <= DAYS


def test_a_clock_that_is_set_back_stops_no_reading(nights: Nights) -> None:
    nights.night(after=3000)
    nights.flip("toolkit-12.3", "lib30.so")
    nights.now -= 3000 * DAY_S
    assert until(nights, "toolkit-12.3/lib30.so sha256") <= DAYS


def test_deep_reads_all_at_once_and_counts_as_a_whole_reading(nights: Nights) -> None:
    nights.seconds = 1
    nights.cost = {"lib05.so": 1000.0}
    nights.flip("toolkit-12.3", "lib39.so")
    nights.night()
    assert nights.night(deep=True) == ["toolkit-12.3/lib39.so sha256"]
    assert len(nights.read) == 40 + 25
    assert {state["read"] for state in nights.states} == {nights.now}


def test_a_file_that_the_disk_cannot_give_is_a_finding_and_not_read(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: str, ends: float) -> str:
        if path.endswith("lib00.so"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return nights.digest(path, ends)

    monkeypatch.setattr(contents, "sha256_on_disk", broken)
    assert nights.night() == ["toolkit-12.3/lib00.so unreadable"]
    for _ in range(15):
        assert nights.night() == ["toolkit-12.3/lib00.so unreadable"]
    assert nights.state("toolkit-12.3")["read"] is None
    assert nights.state("stack-tf")["read"] is not None
    monkeypatch.setattr(contents, "sha256_on_disk", nights.digest)
    for _ in range(2 * DAYS):
        nights.night()
    assert nights.state("toolkit-12.3")["read"] is not None


def test_a_missing_file_is_left_to_the_comparison_of_sizes_and_not_claimed_as_read(
    nights: Nights,
) -> None:
    (Path(nights.root) / "stack-tf/03.so").unlink()
    (Path(nights.root) / "stack-tf/04.so").write_bytes(b"short")
    for _ in range(15):
        assert nights.night() == []
    assert nights.state("stack-tf")["read"] is None


@pytest.mark.parametrize("size", [0, 1, 511, 4096, contents.BLOCK, contents.BLOCK + 7])
@pytest.mark.parametrize("direct", [True, False])
def test_the_disk_is_read_whatever_the_file_system_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, direct: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    if not direct:
        real = contents.fcntl.fcntl

        def refuse(stream: Any, command: int, flags: int) -> int:
            if flags:
                raise OSError(errno.EINVAL, "no direct I/O here")
            return real(stream, command, flags)

        monkeypatch.setattr(contents.fcntl, "fcntl", refuse)
    assert sha256_on_disk(str(path)) == sha256_of(str(path))
    with pytest.raises(TooLongError):
        sha256_on_disk(str(path), time.monotonic() - 1)
