"""SIGTERM, SIGKILL, a lost connection: a stopped verb leaves nothing running on a host.

On one host, which `verify` probes and `provision` changes. What ran there before does not count, nor
what the system itself starts; a package manager that is at work ends its transaction by itself.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass

import pytest

from tests.support.lab_fleet import ROOT, Fleet
from tests.support.machine import deadline
from tests.support.processes import started_with

pytestmark = pytest.mark.lab

UP = ("--hosts", "lab1")
STATE = "/var/lib/gpufleet"
LIMIT_S, PACKAGES_S = 20, 180
# The system's own, and this test's.
OTHERS = re.compile(r"systemd|\(sd-pam\)|dbus|agetty|\bps -eo|sshd: .*\[listener\]|/sbin/cron")
PACKAGES = re.compile(r"\b(apt-get|apt|dpkg|dpkg-deb|debconf|frontend|postinst|preinst|triggers)\b")
PROBING = "pgrep -f '[p]ython3 -I -S -'"
MOMENTS = {
    "verify": PROBING,
    "provision: probe": PROBING,
    "provision: packages are downloaded": f"test -e {STATE}/journal/stack-tensorflow-2.13.1.json",
    "provision: a toolkit is installed": f"test -e {STATE}/journal/toolkit-11.8.json",
}
SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)


@dataclass
class Run:
    """A verb on the host; what it has started here has `mark` in its environment."""

    fleet: Fleet
    process: subprocess.Popen[bytes]
    mark: str
    before: set[str]

    def left_here(self) -> dict[int, str]:
        # conmon, which holds the lab's containers, has no mark of the run.
        return started_with(f"THIS_TEST={self.mark}")

    def left_there(self) -> list[str]:
        return [line for pid, line in running(self.fleet).items() if pid not in self.before]

    def await_none(self) -> None:
        """Wait until nothing runs here, and nothing but package managers there; then nothing."""
        begin = time.monotonic()
        while True:
            here, there = self.left_here(), self.left_there()
            late = time.monotonic() - begin
            if not here and not there:
                return
            others = [line for line in there if not PACKAGES.search(line)]
            assert late < LIMIT_S or not (here or others), (here, others)
            assert late < PACKAGES_S, there
            time.sleep(0.2)


def running(fleet: Fleet, *, waits: bool = False) -> dict[str, str]:
    """The command lines of the host's processes; with `waits` those that wait for a moment."""
    lines = fleet.on("lab1", "ps -eo pid=,stat=,args=").splitlines()
    rows = [line.split(None, 2) for line in lines]
    return {
        row[0]: row[2]
        for row in rows
        if len(row) == 3
        and not row[1].startswith("Z")
        and not OTHERS.search(row[2])
        and ("sleep 0.02" in row[2]) == waits
    }


def start(fleet: Fleet, verb: str) -> Run:
    before, mark = set(running(fleet)), secrets.token_hex(8)
    words = [verb, "--limit", "lab1", *(["-i", str(ROOT / "inventory/lab")])]
    process = subprocess.Popen(
        [ROOT / "gpufleet", *words],
        cwd=ROOT,
        env={**fleet.environment, "THIS_TEST": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    return Run(fleet, process, mark, before)


def stopped(run: Run, number: signal.Signals) -> str:
    run.process.send_signal(number)
    output = run.process.communicate(timeout=deadline(60))[0].decode()
    run.await_none()
    return output


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)],
    ids=lambda number: number.name,
)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_verb_stopped_at_a_moment_leaves_nothing(
    fleet: Fleet, moment: str, number: signal.Signals
) -> None:
    if moment != "verify":
        fleet.on("lab1", f"rm -rf /usr/local/cuda* {STATE} /var/cache/gpufleet /opt/gpufleet")
    # The host itself waits for the moment: the probe of an empty host takes less than a second.
    wait = f"timeout 300 sh -c {shlex.quote(f'until {MOMENTS[moment]}; do sleep 0.02; done')}"
    python = ROOT / ".venv/bin/python"
    with subprocess.Popen(
        [python, "-m", "lab", "exec", "lab1", "--", "sh", "-c", wait],
        cwd=ROOT,
        env=fleet.environment,
    ) as waiting:
        while not running(fleet, waits=True):
            assert waiting.poll() is None
        run = start(fleet, moment.partition(":")[0])
        assert waiting.wait() == 0, run.process.communicate()[0].decode()[-3000:]
    output = stopped(run, number)
    assert run.process.returncode, output


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("verb", ["verify", "provision"])
def test_a_verb_stopped_at_any_moment_leaves_nothing(fleet: Fleet, verb: str, seed: int) -> None:
    moment = random.Random(f"{verb} {seed}")
    run = start(fleet, verb)
    # Which moment is left to chance.
    time.sleep(moment.uniform(0.5, 12 if verb == "verify" else 60))
    if run.process.poll() is None:
        stopped(run, moment.choice(SIGNALS))
    else:
        run.process.communicate()
        run.await_none()


def test_a_killed_ssh_client_ends_the_probe(fleet: Fleet) -> None:
    """As at the loss of a connection: here everything goes on."""
    run = start(fleet, "verify")
    ends = time.monotonic() + deadline(120)
    probe: list[str] = []
    while not probe:
        assert run.process.poll() is None and time.monotonic() < ends
        probe = [pid for pid, line in running(fleet).items() if "python3 -I -S -" in line]
    for pid, line in run.left_here().items():
        if line.startswith("ssh\0") and "ControlMaster=no" in line:
            os.kill(pid, signal.SIGKILL)
    begin = time.monotonic()
    while set(probe) & set(running(fleet)):
        assert time.monotonic() < begin + LIMIT_S
    run.process.communicate(timeout=120)
    assert run.process.returncode == 1
    run.await_none()
