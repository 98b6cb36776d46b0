"""`gpufleet fabric test` on eight hosts: the culprit by its name, bounded time, nothing left.

The hosts have no GPU: the lab's stand-in of NCCL computes over their network.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import collectives
from tests.support.lab_fleet import ROOT, Fleet
from tests.support.machine import deadline

pytestmark = pytest.mark.lab

NAMES = [f"lab{number}" for number in range(1, 9)]
UP = ("--hosts", ",".join(NAMES))
ARTIFACTS = ("--cuda", "8.0")
PLACE = "/opt/nccl"
# A byte takes 60 ns in the stand-in.
FULL_GB_PER_S = "0.0166"
# grep ends with 1 where nothing matches.
RUNNING = "grep -ls libnccl /proc/[0-9]*/maps"
TEST = (
    *("fabric", "test", "--json", "--shared", "--operations", "all_reduce", "--sizes", "1M"),
    *("--repeats", "2", "--tolerance", "60", "--at-least", FULL_GB_PER_S),
    *("-e", f"gpu_nccl_dir={PLACE}", "-e", json.dumps({"gpu_expect": None})),
)


@pytest.fixture(scope="module")
def with_nccl(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The hosts, each with the stand-in."""
    built = collectives.build(tmp_path_factory.mktemp("nccl") / "nccl")
    archive = shutil.make_archive(str(built), "tar", built)
    text = subprocess.run(
        ["base64", "--wrap=0", archive], capture_output=True, text=True, check=True
    ).stdout
    for name in NAMES:
        fleet.on(name, f"mkdir -p {PLACE}; echo {text} | base64 -d | tar x -C {PLACE}")
    yield fleet
    for name in NAMES:
        assert fleet.on(name, RUNNING, None) == ""


def planted(fleet: Fleet, faults: dict[str, str]) -> None:
    for name in NAMES:
        fleet.on(
            name, f"printf '%s\\n' 'name {name}' '{faults.get(name, '')}' >{PLACE}/lib64/faults"
        )


def outcome(fleet: Fleet, faults: dict[str, str], *more: str) -> dict[str, Any]:
    planted(fleet, faults)
    done = fleet.gpufleet(*TEST, *more, status=None)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_healthy_hosts_pass(with_nccl: Fleet) -> None:
    found = outcome(with_nccl, {})
    assert (found["verdict"], found["ranks"], found["hosts"]) == ("PASS", 8, NAMES)
    assert [row["wrong"] for row in found["results"]] == [0]


@pytest.mark.parametrize(
    ("faults", "culprits"),
    [
        ({"lab3": "slow 6", "lab6": "wrong 1"}, {("member", "lab3"), ("member", "lab6")}),
        pytest.param(
            {"lab4": "link lab5 6", "lab5": "link lab4 6"},
            {("pair", "lab4 lab5")},
            marks=pytest.mark.slow,
        ),
        pytest.param({"lab8": "hang 2"}, {("member", "lab8")}, marks=pytest.mark.slow),
    ],
    ids=["slow and wrong", "link", "hung"],
)
def test_who_is_at_fault_is_named_in_bounded_time(
    with_nccl: Fleet, faults: dict[str, str], culprits: set[tuple[str, str]]
) -> None:
    begin = time.monotonic()
    found = outcome(with_nccl, faults, "--deadline", "20")
    assert time.monotonic() - begin < 300
    assert {(each["kind"], " ".join(each["hosts"])) for each in found["culprits"]} == culprits
    assert found["verdict"] == "FAIL"


def test_a_killed_test_leaves_no_process_on_any_host(with_nccl: Fleet) -> None:
    planted(with_nccl, {"lab8": "hang 2"})
    loaded = '[ -n "$(grep -ls libnccl /proc/[0-9]*/maps)" ]'
    with_nccl.killed(loaded, ROOT / "gpufleet", *TEST, "--deadline", "120")
    end = time.monotonic() + deadline(20)
    while any(with_nccl.on(name, RUNNING, None) for name in NAMES):
        assert time.monotonic() < end
    assert Path(PLACE).exists() is False, "the stand-in is on the hosts alone"
