"""Packages that are downloaded while something else is installed: the process that does it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.ansible_modules import Run, load
from tests.support.machine import deadline
from tests.support.warm_start import run_playbook

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"

# What stands for uv: it makes environments, notes what it installs, and takes until it is let go.
UV = """#!/bin/sh
echo "$@" >>{folder}/calls
[ "$1" = venv ] && for last; do :; done && mkdir -p "$last/bin" && touch "$last/bin/python"
[ "$1" = pip ] && read -r _ <{folder}/gate
exit {status}
"""


def arguments(folder: Path, status: int = 0, **stack: Any) -> dict[str, Any]:
    """The arguments of the role, with one stack."""
    uv = folder / "uv"
    uv.write_text(UV.format(folder=folder, status=status))
    uv.chmod(0o755)
    (folder / "one.lock").write_text("numpy==1.24.3\n")
    declared = {
        "name": "one",
        "version": "2.13.1",
        "lock": "one.lock",
        "python": VERSION,
        "venv": str(folder / "venv"),
        "interpreter": sys.executable,
        "installer": "uv",
        "python_source": "host",
    }
    return {
        "uv": str(uv),
        "locks": str(folder),
        "cache": str(folder / "cache"),
        "state_dir": str(folder / "state"),
        "stacks": [{**declared, **stack}],
    }


def journal(folder: Path) -> dict[str, Any]:
    """The stack's entry in the journal."""
    entry: dict[str, Any] = json.loads((folder / "state/journal/stack-one.json").read_text())
    return entry


def playbook(folder: Path, words: dict[str, Any]) -> str:
    """Run the module as Ansible runs it; returns what Ansible says of it."""
    path = folder / "playbook.yml"
    task = {"gpufleet.gpu.gpu_stack_download": words, "register": "it"}
    shown = {"ansible.builtin.debug": {"msg": "{{ 'begun' if it.started else 'left' }}"}}
    python = {"ansible_python_interpreter": sys.executable}
    path.write_text(
        json.dumps(
            [
                {
                    "hosts": "localhost",
                    "connection": "local",
                    "vars": python,
                    "gather_facts": False,
                    "tasks": [task, shown],
                }
            ]
        )
    )
    # The module has an interpreter of its own, as on a host: it starts a process that outlives it.
    done = run_playbook(path, ANSIBLE_PIPELINING="false")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_download_goes_on_alone_and_another_one_is_left_to_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    gate = os.open(tmp_path / "gate", os.O_RDWR)  # both ends: what waits is let go in any case
    words = arguments(tmp_path)
    try:
        assert "msg: begun" in playbook(tmp_path, words)
        with (tmp_path / "state" / "downloads").open("r+") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert "msg: left" in playbook(tmp_path, words)
        assert (journal(tmp_path)["state"], journal(tmp_path)["fresh"]) == ("installing", True)
        assert "filled" not in journal(tmp_path)
    finally:
        os.write(gate, b"go on\n")
    with (tmp_path / "state" / "downloads").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    os.close(gate)
    lock_sha256 = hashlib.sha256((tmp_path / "one.lock").read_bytes()).hexdigest()
    assert journal(tmp_path)["filled"]["lock_sha256"] == lock_sha256
    made, installed = (tmp_path / "calls").read_text().splitlines()
    assert made.endswith(f"--python {sys.executable} {tmp_path}/venv")
    assert installed.startswith("pip install --no-deps --require-hashes")
    assert installed.endswith(f"-r {tmp_path}/one.lock")


def test_a_download_that_fails_leaves_the_error_to_the_installation(tmp_path: Path) -> None:
    assert "msg: begun" in playbook(tmp_path, arguments(tmp_path, status=2))
    with (tmp_path / "state" / "downloads").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert journal(tmp_path)["state"] == "installing"
    assert "filled" not in journal(tmp_path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "another lock": lambda folder: (folder / "one.lock").write_text("numpy==2.0.0\n"),
    "a removal": lambda folder: (folder / "state/journal/stack-one.json").unlink(),
}


def wait_for_uv(folder: Path) -> None:
    """Until uv installs packages."""
    calls, ends = folder / "calls", time.monotonic() + deadline(30)
    while not calls.exists() or "pip install" not in calls.read_text():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_during_a_download_is_not_vouched_for(tmp_path: Path, change: str) -> None:
    os.mkfifo(tmp_path / "gate")
    gate = os.open(tmp_path / "gate", os.O_RDWR)
    try:
        assert "msg: begun" in playbook(tmp_path, arguments(tmp_path))
        wait_for_uv(tmp_path)
        CHANGES[change](tmp_path)
    finally:
        os.write(gate, b"go on\n")
    with (tmp_path / "state" / "downloads").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    os.close(gate)
    entry = tmp_path / "state/journal/stack-one.json"
    assert not entry.exists() or "filled" not in json.loads(entry.read_text())


@pytest.mark.parametrize(
    "name", ["venv", "state/receipts/stack-one.json", "state/journal/stack-one.json"]
)
def test_what_is_there_of_a_stack_is_left_to_its_installation(
    run: Run, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("{}")
    assert run(load("gpu_stack_download"), **arguments(tmp_path))["started"] == []
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize(
    "stack",
    [{"installer": "pip"}, {"python_source": "uv"}, {"venv": "/dev/shm/gpufleet/venv"}],
    ids=["pip", "an interpreter that uv installs", "another file system"],
)
def test_some_stacks_are_not_downloaded_ahead(
    run: Run, tmp_path: Path, stack: dict[str, str]
) -> None:
    answer = run(load("gpu_stack_download"), **arguments(tmp_path, **stack))
    assert (answer["changed"], answer["started"]) == (False, [])
    assert not (tmp_path / "state").exists()


def test_check_mode_starts_nothing(run: Run, tmp_path: Path) -> None:
    assert run(load("gpu_stack_download"), check=True, **arguments(tmp_path))["started"] == ["one"]
    assert not (tmp_path / "cache").exists()
