"""Obstacles that keep even root from repairing a host: each is named, and its remedy helps.

One loop for all: verify names the fault, provision fails and says why, what it says is done by
hand, and the next provision repairs the host.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from tests.support.lab_fleet import STACK, TOOLKIT, Fleet

pytestmark = [pytest.mark.lab, pytest.mark.slow]
UP = ("--hosts", "lab1")


class Obstacle(NamedTuple):
    """Shell commands on the host, and what verify and provision say; `by_hand` is the remedy's."""

    inject: str
    check: str
    remedy: str
    reason: str
    by_hand: str


PTXAS = f"{TOOLKIT}/bin/ptxas"
SITE = f"{STACK}/lib/python3.11/site-packages"
OBSTACLES = {
    "immutable file of a toolkit": Obstacle(
        f"truncate -s 100 {PTXAS}; chattr +i {PTXAS}",
        "toolkit.files",
        rf"chattr -i {PTXAS} .*; then \./gpufleet provision",
        f"{PTXAS} has the attribute immutable",
        f"chattr -i {PTXAS}",
    ),
    "immutable directory of a stack": Obstacle(
        f"rm {SITE}/wrapt/decorators.py; chattr +i {SITE}/wrapt",
        "stack.files",
        rf"chattr -i {SITE}/wrapt .*; then \./gpufleet provision",
        f"{SITE}/wrapt has the attribute immutable",
        f"chattr -i {SITE}/wrapt",
    ),
    "read-only mount on a toolkit": Obstacle(
        f"rm {PTXAS}; mount --bind {TOOLKIT} {TOOLKIT}; mount -o remount,bind,ro {TOOLKIT}",
        "toolkit.files",
        rf"is mounted read-only at {TOOLKIT}: unmount it .*; then \./gpufleet provision",
        f"is mounted at {TOOLKIT}",
        f"umount {TOOLKIT}",
    ),
    "full file system of the artifacts": Obstacle(
        f"rm {PTXAS}; mount -t tmpfs -o size=1m tmpfs /var/cache/gpufleet;"
        " head -c 2000000 /dev/zero >/var/cache/gpufleet/full || :",
        "host.disk",
        "find what fills it",
        "/var/cache/gpufleet",
        "rm -f /var/cache/gpufleet/full; umount /var/cache/gpufleet",
    ),
    "mount over the records": Obstacle(
        "mount -t tmpfs tmpfs /var/lib/gpufleet",
        "host.plan",
        "unmount it on the host: umount /var/lib/gpufleet",
        "tmpfs is mounted at /var/lib/gpufleet, over the records of what gpufleet installed",
        "umount /var/lib/gpufleet",
    ),
}


@pytest.fixture(scope="module")
def provisioned(fleet: Fleet) -> Fleet:
    """A host that is as declared, before and after each test."""
    fleet.gpufleet("provision", "--limit", "lab1")
    return fleet


@pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES)
def test_it_is_named_and_its_remedy_helps(provisioned: Fleet, obstacle: Obstacle) -> None:
    fleet = provisioned
    fleet.on("lab1", obstacle.inject)
    try:
        check = fleet.verdicts(None, "--limit", "lab1")["lab1"][obstacle.check]
        assert check["verdict"] == "FAIL", check
        assert re.search(obstacle.remedy, check["remedy"]), check["remedy"]
        done = fleet.gpufleet("provision", "--limit", "lab1", status=None)
        assert done.returncode != 0
        assert obstacle.reason in " ".join((done.stdout + done.stderr).split())
    finally:
        fleet.on("lab1", obstacle.by_hand)
    fleet.gpufleet("provision", "--limit", "lab1")
    fleet.verdicts(0, "--limit", "lab1")


def test_a_damaged_linker_cache_is_rebuilt(provisioned: Fleet) -> None:
    provisioned.on(
        "lab1", "head -c 300 /etc/ld.so.cache >/etc/ld.so.new; mv /etc/ld.so.new /etc/ld.so.cache"
    )
    check = provisioned.verdicts(1, "--limit", "lab1")["lab1"]["linker.cache"]
    assert "is damaged" in check["cause"]
    assert "./gpufleet provision" in check["remedy"]
    provisioned.gpufleet("provision", "--limit", "lab1")
    provisioned.verdicts(0, "--limit", "lab1")
