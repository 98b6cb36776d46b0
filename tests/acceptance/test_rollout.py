"""A rollout over six hosts: a canary that breaks, a control machine that dies, everybody done.

The tests of this module are one story on the same hosts, and run in their order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpufleet.campaign.rollout.progress import left_behind
from tests.support.lab_fleet import DEADLINE_S, KILL, ROOT, Fleet
from tests.support.machine import deadline

pytestmark = [pytest.mark.lab, pytest.mark.slow]

HOSTS = [f"lab{number}" for number in range(1, 7)]
UP = ("--hosts", ",".join(HOSTS))
ARTIFACTS = ("--cuda", "8.0")
# The smallest toolkit there is, since the course of things is what is tried here.
DECLARED = {"gpu_stacks": [], "gpu_toolkits": ["8.0.61"], "gpu_expect": {"count": 0}}
TOOLKIT = "/usr/local/cuda-8.0"
INSTALLED = f"test -e {TOOLKIT}/lib64/libcublas.so.8.0"
BATCHES = [["lab1"], ["lab2", "lab3"], ["lab4", "lab5"], ["lab6"]]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("rollout")
    return ("rollout", "-e", json.dumps(DECLARED), "--state", str(folder), "--report", str(folder))


def noted(words: tuple[str, ...]) -> dict[str, Any]:
    """The control machine's record of the rollout."""
    found: dict[str, Any] = json.loads((Path(words[4]) / "rollout.json").read_text())
    return found


def installed(fleet: Fleet) -> list[str]:
    return [host for host in HOSTS if fleet.on(host, f"{INSTALLED} && echo yes; :") == "yes\n"]


@contextmanager
def under_way(
    fleet: Fleet, words: tuple[str, ...], batch: int
) -> Iterator[subprocess.Popen[bytes]]:
    """A rollout that goes on, as soon as a host of this batch is being changed."""
    # The batch before it comes first.
    host, ends = BATCHES[batch][0], time.monotonic() + deadline(3 * DEADLINE_S)
    with subprocess.Popen(
        [ROOT / "gpufleet", *words, "--resume"],
        cwd=ROOT,
        env=fleet.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as running:
        while not (noted(words)["done"] == batch and noted(words)["step"] == "provision"):
            assert time.monotonic() < ends
            time.sleep(0.1)
        fleet.on(
            host,
            f"timeout {DEADLINE_S} sh -c"
            " 'until ls /var/lib/gpufleet/journal/toolkit-8.0.json; do :; done' 2>/dev/null",
        )
        yield running


def test_a_canary_that_breaks_stops_it_and_five_hosts_are_untouched(
    fleet: Fleet, words: tuple[str, ...]
) -> None:
    # A tree that somebody made by hand is refused, not overwritten.
    fleet.on("lab1", f"mkdir -p {TOOLKIT} && touch {TOOLKIT}/by-hand")
    before = {host: fleet.state(host) for host in HOSTS[1:]}
    output = fleet.gpufleet(*words, "--batch", "2", status=1).stdout
    assert "Stopped: lab1 not healthy" in output
    assert "5 hosts were not touched: lab2 lab3 lab4 lab5 lab6" in output
    assert "by hand" in output or TOOLKIT in output
    assert {host: fleet.state(host) for host in HOSTS[1:]} == before
    assert installed(fleet) == []
    assert [batch["hosts"] for batch in noted(words)["batches"]] == BATCHES


def test_another_one_is_refused_meanwhile(fleet: Fleet, words: tuple[str, ...]) -> None:
    output = fleet.gpufleet(*words, status=4).stdout
    assert "0 of 6 hosts are done" in output
    assert "--resume" in output


def test_the_control_process_killed_in_the_middle_is_continued(
    fleet: Fleet, words: tuple[str, ...]
) -> None:
    fleet.on("lab1", f"rm -r {TOOLKIT}")
    with under_way(fleet, words, 1) as running:
        # It alone: the playbook that it had started goes on working.
        running.kill()
        assert running.wait() == -signal.SIGKILL
        assert left_behind(noted(words)["started"]) != []
    assert noted(words)["status"] == "running"
    assert noted(words)["done"] == 1


def test_killed_with_all_that_it_had_started_it_is_continued(
    fleet: Fleet, words: tuple[str, ...]
) -> None:
    with under_way(fleet, words, 2) as running:
        os.killpg(running.pid, signal.SIGKILL)
    for host in BATCHES[2]:
        fleet.on(host, KILL, status=None)
    assert noted(words)["done"] == 2
    assert "lab6" not in installed(fleet)


def test_resumed_everybody_is_done_and_nobody_twice(fleet: Fleet, words: tuple[str, ...]) -> None:
    before = fleet.state("lab1")
    output = fleet.gpufleet(*words, "--resume").stdout
    assert "6 hosts are rolled out and healthy" in output
    assert "Batch 3 of 4" in output
    assert "Batch 2 of 4" not in output
    assert fleet.state("lab1") == before
    assert installed(fleet) == HOSTS
    assert noted(words)["status"] == "done"
    fleet.verdicts(0, "-e", json.dumps(DECLARED))
