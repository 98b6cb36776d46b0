"""A lab of tests belongs to their run: it is removed once that has ended, and not before."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import files, hosts, runs
from lab.command import podman
from lab.progress import Progress
from lab.settings import RUN, Lab
from tests.support.lab_command import call


def needs_podman(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that makes labs."""
    reason = "lab hosts need root"
    return pytest.mark.lab(pytest.mark.skipif(os.getuid() != 0, reason=reason)(test))


@pytest.fixture
def ended() -> str:
    """The name of a run that has ended."""
    with subprocess.Popen(["sleep", "600"]) as process:
        name = runs.name_of(process.pid)
        assert not runs.has_ended(name)
        process.kill()
    return name


def test_a_run_lives_as_long_as_its_process(ended: str) -> None:
    mine = runs.name_of(os.getpid())
    assert not runs.has_ended(mine)
    assert runs.has_ended(ended)


def test_another_process_with_the_number_of_a_run_is_not_the_run() -> None:
    pid, start, boot = runs.name_of(os.getpid()).split(":")
    assert runs.has_ended(f"{pid}:{int(start) - 1}:{boot}")
    assert runs.has_ended(f"{pid}:{start}:{boot[::-1]}")


def test_a_process_that_nobody_has_waited_for_has_ended() -> None:
    process = subprocess.Popen(["sleep", "600"])
    name = runs.name_of(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert runs.has_ended(name)
    process.wait()


def test_a_persons_lab_belongs_to_no_run() -> None:
    assert not runs.has_ended("")
    assert "gpufleet.run" not in " ".join(Lab("unit", Path("/c")).labels)


def test_what_tests_make_is_labelled_with_their_run() -> None:
    made = Lab.from_environment({"HOME": "/", RUN: "1:2:3"})
    assert "--label=gpufleet.run=1:2:3" in made.labels
    assert set(Lab.from_environment({"HOME": "/"}).labels) < set(made.labels)


Start = Callable[[str], Lab]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a lab of a run, as far as the first step of `up`, in a cache of its own."""
    made: list[Lab] = []

    def first_step(run: str) -> Lab:
        lab = Lab(f"run-{secrets.token_hex(4)}", tmp_path / "cache", run=run)
        made.append(lab)
        podman("network", "create", *lab.labels, lab.network)
        files.write(lab.key, "a key")
        return lab

    yield first_step
    for lab in made:
        hosts.down(lab, Progress())


@needs_podman
def test_only_labs_of_runs_that_have_ended_are_removed(
    start: Start, ended: str, tmp_path: Path
) -> None:
    persons, living, left = (start(run) for run in ("", runs.name_of(os.getpid()), ended))
    # As another checkout does, which has another cache.
    hosts.sweep(Lab("other", tmp_path / "other"), Progress())
    found = hosts.labs()
    assert persons in found and living in found
    assert left not in found
    assert [lab.directory.exists() for lab in (persons, living, left)] == [True, True, False]


@needs_podman
def test_up_sweeps_and_list_shows_what_is_left(start: Start, ended: str) -> None:
    living, left = start(runs.name_of(os.getpid())), start(ended)
    shown = {row["lab"]: row for row in json.loads(call("list", "--all", "--json").stdout)}
    assert [shown[lab.instance]["run_has_ended"] for lab in (living, left)] == [False, True]
    lines = {line.split()[0]: line for line in call("list", "--all").stdout.splitlines()}
    assert lines[left.instance].endswith("left by a run that has ended")
    assert lines[living.instance].endswith(f"tests of process {os.getpid()}")
    # It sweeps before it looks at the suite.
    lab = start("")
    cache = str(lab.cache)
    done = call("up", "--suite", "none", GPUFLEET_LAB=lab.instance, GPUFLEET_CACHE=cache)
    assert "the lab has no recipe for the suite 'none'" in done.stderr
    assert f"The lab {left.instance!r} is left by tests that have ended." in done.stderr
    assert left not in hosts.labs() and living in hosts.labs()


@needs_podman
def test_a_lab_that_was_made_anew_meanwhile_is_not_swept(
    start: Start, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    anew = start(runs.name_of(os.getpid()))
    before = dataclasses.replace(anew, run=ended)
    answers = iter([[before], hosts.labs()])
    monkeypatch.setattr(hosts, "labs", lambda: next(answers))
    hosts.sweep(anew, Progress())
    assert anew.key.exists()
    monkeypatch.undo()
    assert anew in hosts.labs()
