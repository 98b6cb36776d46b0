"""Labs are kept apart by name, and their files are whole or absent."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from lab import files
from lab.errors import LabError
from lab.settings import Lab, cache_root, host_number


def test_the_cache_is_where_the_environment_says() -> None:
    home = {"HOME": "/home/someone"}
    assert cache_root(home) == Path("/home/someone/.cache/gpufleet")
    assert cache_root({**home, "XDG_CACHE_HOME": "/x"}) == Path("/x/gpufleet")
    assert cache_root({**home, "XDG_CACHE_HOME": "/x", "GPUFLEET_CACHE": "/g"}) == Path("/g")


def test_two_labs_share_nothing_but_the_downloads() -> None:
    one = Lab.from_environment({"GPUFLEET_CACHE": "/c"})
    two = Lab.from_environment({"GPUFLEET_CACHE": "/c", "GPUFLEET_LAB": "labtest"})
    assert one.instance == "lab"
    assert one.container("lab1") == "gpufleet-lab-lab1"
    assert two.container("lab1") == "gpufleet-labtest-lab1"
    own = ("directory", "state", "key", "known_hosts", "sockets", "network", "label")
    assert all(getattr(one, name) != getattr(two, name) for name in own)
    assert one.image("bookworm") != two.image("bookworm")
    assert (one.wheels, one.artifacts, one.images) == (two.wheels, two.artifacts, two.images)


@pytest.mark.parametrize("name", ["Lab", "1st", "a/b", "../x", "artifacts", "x" * 21, "a b"])
def test_a_name_that_cannot_be_a_lab_is_refused(name: str) -> None:
    with pytest.raises(LabError) as caught:
        Lab.from_environment({"GPUFLEET_LAB": name, "HOME": "/"})
    assert repr(name) in caught.value.message


@pytest.mark.parametrize("name", ["gpu01", "lab", "lab0", "lab01", "lab100", "lab1;reboot"])
def test_a_name_that_cannot_be_a_host_is_refused(name: str) -> None:
    with pytest.raises(LabError):
        host_number(name)
    assert host_number("lab12") == 12


def test_host_keys_are_always_checked(lab: Lab) -> None:
    options = lab.ssh_options()
    assert "StrictHostKeyChecking=yes" in options
    assert f"UserKnownHostsFile={lab.known_hosts}" in options


def test_a_control_socket_fits_into_its_name_limit() -> None:
    longest = Lab("a" * 20, Path("/c"))
    # ssh replaces %C by 40 characters, and adds 17 while it makes the socket.
    assert len(str(longest.sockets)) + 1 + 40 + 17 <= 107


def test_a_file_that_could_not_be_finished_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "there/file"
    with pytest.raises(RuntimeError), files.whole(path) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert list(path.parent.iterdir()) == []
    files.write(path, "whole", mode=0o600)
    assert path.read_text() == "whole"
    assert path.stat().st_mode & 0o777 == 0o600


def test_scratch_space_of_a_killed_run_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    stale = tmp_path / f"tmp/gpufleet-{os.getuid()}-wheels.killed"
    other = tmp_path / f"tmp/gpufleet-{os.getuid()}-artifacts.alive"
    for place in (stale, other):
        place.mkdir(parents=True)
    with files.scratch(tmp_path / "cache", "wheels") as work:
        assert work.parent == tmp_path / "tmp"
        assert not stale.exists()
        assert other.exists()
    assert not work.exists()


def test_clearing_spares_what_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    locks = tmp_path / "locks"
    places = {}
    for name in ("held", "free"):
        places[name] = tmp_path / f"work/gpufleet-{os.getuid()}-{name}.x"
        places[name].mkdir(parents=True)
    locks.mkdir()
    (locks / "free.lock").touch()
    with files.lock(locks, "held", print):
        files.clear_scratch(tmp_path, locks)
    assert places["held"].exists()
    assert not places["free"].exists()


def _hold(directory: Path, seconds: float) -> None:
    with files.lock(directory, "name", print):
        (directory / "held").touch()
        time.sleep(seconds)
        (directory / "over").touch()


def test_a_lock_is_waited_for_and_says_whose_it_is(tmp_path: Path) -> None:
    holder = multiprocessing.get_context("fork").Process(target=_hold, args=(tmp_path, 0.5))
    holder.start()
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    output: list[str] = []
    with files.lock(tmp_path, "name", output.append):
        assert (tmp_path / "over").exists()
    holder.join()
    assert output == [f"waiting for process {holder.pid}, which holds 'name'"]
