"""SIGKILL of `provision` and of the nightly at any moment, and two `provision` at once on a host.

The next run finishes, and nothing is left: the files of the host are those of a host where nothing
was killed, its processes and mounts those from before, and the control machine has no process and
no temporary file. Moments are chosen by a seed; `GPUFLEET_KILLS` and `GPUFLEET_SEED` set others.
What is known to be critical has a moment of its own in `test_killed.py` and its siblings.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpufleet.stopping import ANSIBLE_DIRECTORY
from tests.support.lab_fleet import FREEZE, KILL, ROOT, Fleet, end_of
from tests.support.machine import deadline
from tests.support.moments import wait_until
from tests.support.processes import await_ended

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ARTIFACTS = ("--cuda", "8.0", "--cuda", "11.8")
UP = ("--hosts", "lab1")
KILLS = int(os.environ.get("GPUFLEET_KILLS") or 50)
# Kills without a whole run between them, in turns: most runs are killed amid a recovery.
IN_A_ROW = (1, 1, 3, 5)
ROUNDS = -(-KILLS * len(IN_A_ROW) // sum(IN_A_ROW))
NIGHTS, PAIRS = max(1, KILLS // 5), max(1, KILLS // 10)
SEED = os.environ.get("GPUFLEET_SEED") or "1"

STATE = "/var/lib/gpufleet"
EMPTY = (
    f"rm -rf /usr/local/cuda* {STATE} /var/cache/gpufleet /opt/gpufleet;"
    " find /etc -name '*gpufleet*' -delete"
)
DECLARED = {
    "gpu_stacks": [],
    # Every fourth kill has the libraries of a whole toolkit to install, the others stand-ins.
    "gpu_toolkits": [{"cuda": "8.0", "cudnn": ["5.1"]}],
}
WHOLE = {"gpu_stacks": [], "gpu_toolkits": [{"cuda": "11.8", "cudnn": ["8.6"]}]}
# Names alone: the times and contents are the checks' business. Python compiles what it imports.
FILES = (
    "find /usr/local /opt /etc /var/lib/gpufleet /var/cache/gpufleet /tmp /var/tmp /dev/shm"
    " /root /home -not -path '*/__pycache__*' -not -path '*/systemd-private-*'"
    # What a killed module leaves in the temporary directory, which its like removes a day later, or
    # Ansible's own modules, which nobody removes but the system.
    " -not -path '/tmp/ansible_*_payload_*' -not -path '/home/deploy/.ansible/tmp/*'"
    " -not -path '/tmp/gpufleet-*'"
    " -printf '%p %y %l\\n' 2>/dev/null"
    # NVIDIA's installers of CUDA before 10.1 leave a log with the number of their process.
    " | sed 's,/cuda_install_[0-9]*.log,/cuda_install_N.log,' | sort -u"
)
MOUNTS = "cut -d' ' -f2,3 /proc/mounts | sort"
# What the system itself runs.
SYSTEM = re.compile(r"systemd|\(sd-pam\)|dbus|agetty|\bps -eo|/sbin/(cron|init)")
# A shared connection of Ansible stays open for a minute, for the next command.
SHARED = re.compile(r"sshd: ")
LIMIT_S = 120


@dataclass(frozen=True)
class Control:
    """A control machine of this test alone: its temporary directory, inventory and reports."""

    fleet: Fleet
    place: Path

    @classmethod
    def of(cls, fleet: Fleet, place: Path, declared: dict[str, object]) -> Control:
        for name in ("tmp", "state", "reports"):
            (place / name).mkdir()
        # Variables of the group in a file yield to those in `group_vars` of the lab.
        document = {"gpu_hosts": {"hosts": {"lab1": declared}}}
        (place / "declared.yml").write_text(json.dumps(document))
        return cls(fleet, place)

    @property
    def temporary(self) -> Path:
        return self.place / "tmp"

    def words(self, verb: str) -> list[str]:
        inventories = [str(ROOT / "inventory/lab"), str(self.place / "declared.yml")]
        if verb == "provision":
            given = [word for each in inventories for word in ("-i", each)]
            return [verb, *given, "--limit", "lab1", "--report", str(self.place / "reports")]
        settings = {
            "inventory": inventories,
            "limit": "lab1",
            "state_dir": str(self.place / "state"),
            "reports_dir": str(self.place / "reports"),
        }
        (self.place / "nightly.yml").write_text(json.dumps(settings))
        return [verb, "--config", str(self.place / "nightly.yml")]

    def start(self, verb: str, mark: str = "none") -> subprocess.Popen[bytes]:
        """The verb as a person starts it, with its output in a file."""
        variables = {**self.fleet.environment, "THIS_TEST": mark, "TMPDIR": str(self.temporary)}
        variables.pop(ANSIBLE_DIRECTORY, None)  # that of the run of tests
        with (self.place / f"{mark}.log").open("wb") as output:
            return subprocess.Popen(
                [ROOT / "gpufleet", *self.words(verb)],
                cwd=ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def output(self, mark: str = "none") -> str:
        return (self.place / f"{mark}.log").read_text(errors="replace")

    def run(self, verb: str) -> float:
        """Run the verb to its healthy end; the seconds that it took."""
        begin = time.monotonic()
        assert self.start(verb).wait(deadline(900)) == 0, end_of(self.output())
        return time.monotonic() - begin

    def temporary_files(self) -> list[str]:
        return sorted(path.name for path in self.temporary.iterdir())


@dataclass(frozen=True)
class Host:
    """The state of a host when no run was killed, for each declaration."""

    fleet: Fleet
    files: str
    mounts: str
    processes: frozenset[str]
    seconds: float

    @classmethod
    def after_a_whole_run(cls, control: Control) -> Host:
        fleet = control.fleet
        fleet.on("lab1", EMPTY)
        seconds = control.run("provision")
        wait_until(lambda: not started(fleet), LIMIT_S)
        return cls(
            fleet,
            fleet.on("lab1", FILES),
            fleet.on("lab1", MOUNTS),
            frozenset(started(fleet)),
            seconds,
        )

    def left(self) -> list[str]:
        """All that differs from it: files, mounts and processes."""
        before = [*self.files.splitlines(), *self.mounts.splitlines()]
        now = [
            *self.fleet.on("lab1", FILES).splitlines(),
            *self.fleet.on("lab1", MOUNTS).splitlines(),
        ]
        found = sorted(
            {f"- {line}" for line in set(before) - set(now)}
            | {f"+ {line}" for line in set(now) - set(before)}
            | {f"runs: {line}" for line in started(self.fleet)}
        )
        print(*found, sep="\n", end="\n" * bool(found), flush=True)
        return found


def started(fleet: Fleet) -> list[str]:
    """The command lines on the host that are not the system's."""
    rows = [line.split(None, 1) for line in fleet.on("lab1", "ps -eo stat=,args=").splitlines()]
    return [
        row[1]
        for row in rows
        if len(row) == 2
        and row[0][0] != "Z"
        and not row[1].startswith("[")
        and not SYSTEM.search(row[1])
        and not SHARED.match(row[1])
    ]


def kill_command(fleet: Fleet, process: subprocess.Popen[bytes]) -> None:
    """The command alone, as the kernel does it where memory is short."""
    process.kill()


def kill_group(fleet: Fleet, process: subprocess.Popen[bytes]) -> None:
    """The command and all of its session."""
    os.killpg(process.pid, signal.SIGKILL)


def kill_both_sides(fleet: Fleet, process: subprocess.Popen[bytes]) -> None:
    """Also what it has started on the host."""
    fleet.on("lab1", f"{FREEZE}\n{KILL}\npkill -KILL -f '[p]ython3 -I -S -'\nkill -s CONT -- -1")
    os.killpg(process.pid, signal.SIGKILL)


WAYS: tuple[Callable[[Fleet, subprocess.Popen[bytes]], None], ...] = (
    kill_command,
    kill_group,
    kill_both_sides,
)


def stage(output: str) -> str:
    """The last that a killed run printed: Ansible's task, or the step before it."""
    tasks = re.findall(r"(?m)^TASK \[(.+?)\]", output)
    lines = [line for line in output.splitlines() if line.strip()]
    return tasks[-1] if tasks else lines[-1][:80] if lines else "it has printed nothing"


def killed(control: Control, verb: str, seconds: float, seed: str) -> str:
    """Kill a run of the verb at a moment of its usual duration; the stage that it had reached."""
    moment = random.Random(seed)
    way = moment.choice(WAYS)
    while True:
        mark, begin = secrets.token_hex(8), time.monotonic()
        process = control.start(verb, mark)
        # Which moment is left to chance.
        try:
            ended = process.wait(moment.uniform(0, seconds))
        except subprocess.TimeoutExpired:
            way(control.fleet, process)
            process.wait(LIMIT_S)
            await_ended(f"THIS_TEST={mark}", LIMIT_S)
            return f"{way.__name__}: {stage(control.output(mark))}"
        # The machine is faster than before, or little was left to do: once more, from the start.
        assert ended == 0, end_of(control.output(mark))
        seconds = time.monotonic() - begin
        if verb == "provision":
            control.fleet.on("lab1", EMPTY)


@pytest.fixture(scope="module")
def hosts(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Host]:
    """The host after a whole run of the kill with a number, measured once for each declaration."""
    known: dict[bool, Host] = {}

    def host(number: int) -> Host:
        whole = number % 4 == 3
        if whole not in known:
            place = tmp_path_factory.mktemp("whole-run")
            known[whole] = Host.after_a_whole_run(Control.of(fleet, place, declared(number)))
        return known[whole]

    return host


def declared(number: int) -> dict[str, object]:
    return WHOLE if number % 4 == 3 else DECLARED


@pytest.mark.parametrize("number", range(ROUNDS))
def test_provision_killed_at_any_moment(
    fleet: Fleet,
    hosts: Callable[[int], Host],
    tmp_path: Path,
    number: int,
    record_property: Callable[[str, object], None],
) -> None:
    host = hosts(number)
    control = Control.of(fleet, tmp_path, declared(number))
    fleet.on("lab1", EMPTY)
    reached = []
    for kill in range(IN_A_ROW[number % len(IN_A_ROW)]):
        seed = f"provision {SEED} {number} {kill}"
        reached.append(killed(control, "provision", host.seconds, seed))
        print(reached[-1], flush=True)
        record_property("stage", reached[-1])
        assert control.temporary_files() == [], reached
    control.run("provision")
    wait_until(lambda: not started(fleet), LIMIT_S)
    assert host.left() == [], reached
    assert control.temporary_files() == [], reached


@pytest.mark.parametrize("number", range(PAIRS))
def test_two_provisions_at_once(
    fleet: Fleet, hosts: Callable[[int], Host], tmp_path: Path, number: int
) -> None:
    host = hosts(number)
    control = Control.of(fleet, tmp_path, declared(number))
    fleet.on("lab1", EMPTY)
    moment = random.Random(f"pair {SEED} {number}")
    first = control.start("provision", "first")
    # The first pair starts at the same moment.
    time.sleep(moment.uniform(0, host.seconds) if number else 0)
    second = control.start("provision", "second")
    for process, mark in ((first, "first"), (second, "second")):
        assert process.wait(deadline(900)) == 0, end_of(control.output(mark))
    wait_until(lambda: not started(fleet), LIMIT_S)
    assert host.left() == []
    assert control.temporary_files() == []


@pytest.mark.parametrize("number", range(NIGHTS))
def test_a_nightly_killed_at_any_moment(
    fleet: Fleet, hosts: Callable[[int], Host], tmp_path: Path, number: int
) -> None:
    host = hosts(0)
    control = Control.of(fleet, tmp_path, declared(0))
    if host.left():
        control.run("provision")
    seconds = control.run("nightly")
    names = state_names(control)
    reached = killed(control, "nightly", seconds, f"nightly {SEED} {number}")
    print(reached)
    assert control.temporary_files() == [], reached
    control.run("nightly")
    wait_until(lambda: not started(fleet), LIMIT_S)
    assert host.left() == [], reached
    assert (state_names(control), control.temporary_files()) == (names, []), reached
    reports = [path.name for path in (control.place / "reports").iterdir()]
    assert not [name for name in reports if name.startswith(".") or "partial" in name], reports


def test_a_later_run_removes_what_killed_modules_have_left(
    fleet: Fleet, hosts: Callable[[int], Host], tmp_path: Path
) -> None:
    hosts(0)
    payload = "/tmp/ansible_gpufleet.gpu.gpu_stack_payload_killed"
    fleet.on(
        "lab1",
        f"{EMPTY}; mkdir -p {payload};"
        " find /tmp -path '/tmp/ansible_gpufleet*' -exec touch -d '9 days ago' {} +",
    )
    Control.of(fleet, tmp_path, declared(0)).run("provision")
    assert fleet.on("lab1", "find /tmp -name 'ansible_gpufleet*'") == ""


def state_names(control: Control) -> list[str]:
    """The names of the nightly's own files; those of single nights differ."""
    found = (path.relative_to(control.place) for path in (control.place / "state").rglob("*"))
    return sorted({re.sub(r"\d{4}-\d\d-\d\dT?[\d:.Z-]*", "NIGHT", str(path)) for path in found})
