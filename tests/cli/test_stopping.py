"""A command that is stopped, killed or loses its terminal leaves no process, and a usable terminal.

Stand-ins for ansible-playbook and ssh start what real ones do: workers in sessions of their own,
and some that ignore signals. What is left is found by a variable in the processes' environment.
"""

from __future__ import annotations

import os
import pty
import random
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpufleet import stopping
from gpufleet.cli.main import grace_s
from tests.support.machine import deadline
from tests.support.processes import await_ended, started_with

ROOT = Path(__file__).resolve().parents[2]
# How long interrupted processes may clean up here: some of these wait until they are killed.
GRACE_S = 1.5
# Beyond that time, on a busy machine.
LIMIT_S = deadline(30)
HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"
# A stand-in that starts a worker in a session of its own, and reports that it runs. A shell's
# background processes ignore SIGINT unless `env` says otherwise.
STAND_IN = """#!/bin/sh
{trap}
setsid {env} sh -c '{trap}; {env} sleep 600 & sleep 600; :' &
{env} sleep 600 &
touch {running}
{last}
"""
STUBBORN = 'trap "" INT TERM HUP'
# A stand-in for pytest that takes a fixture down when it is interrupted.
CLEANS_UP = """#!{python}
import pathlib, signal, subprocess
try:
    pathlib.Path({running!r}).touch()
    signal.pause()
except KeyboardInterrupt:
    subprocess.run(["sh", "-c", "sleep 0.5; touch {cleaned}"], check=True)
"""
INVENTORY = """
gpu_hosts:
  hosts:
    gpu01: {{ansible_host: 192.0.2.1, ansible_ssh_executable: {ssh}, gpu_expect: {{count: 0}}}}
    gpu02: {{ansible_host: 192.0.2.2, ansible_ssh_executable: {ssh}, gpu_expect: {{count: 0}}}}
"""
# The program's directory is that of the stand-ins.
START = (
    "import sys; sys.executable = {python!r}; sys.argv[0] = 'gpufleet';"
    " from gpufleet import stopping; guarded = stopping.guarded;"
    " stopping.guarded = lambda command, grace_s: guarded(command, {grace_s});"
    " from gpufleet.__main__ import main; sys.exit(main())"
)
VERBS = {
    "verify": ("verify", "-i", "hosts.yml"),
    "provision": ("provision", "-i", "hosts.yml", "--force"),
    "provision: probe": ("provision", "-i", "hosts.yml"),
    "rollout": ("rollout", "-i", "hosts.yml", "--force", "--state", "state"),
    "playbook": ("playbook", "site", "-i", "hosts.yml"),
    "remove": ("remove", "-i", "hosts.yml", "--driver", "--yes"),
    "nightly": ("nightly", "--config", "nightly.yml"),
    "test": ("test", "started.py"),
}
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGINT)


def ignore_no_signals() -> None:
    """A test run in the background, or by nohup, ignores some, and so would all that it starts."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@dataclass(frozen=True)
class Site:
    """A directory with an inventory and stand-ins; `running` is there once one of them runs."""

    directory: Path
    mark: str

    @property
    def running(self) -> Path:
        return self.directory / "running"

    @property
    def temporary(self) -> Path:
        return self.directory / "tmp"

    def start(self, verb: str, grace_s: float = GRACE_S, **more: object) -> subprocess.Popen[bytes]:
        python = str(self.directory / "bin" / "python")
        start = START.format(python=python, grace_s=grace_s)
        return subprocess.Popen(
            [sys.executable, "-c", start, *VERBS[verb]],
            cwd=self.directory,
            env={
                **os.environ,
                **{"THIS_TEST": self.mark, "GPUFLEET_TEST_ROOT": str(ROOT)},
                # Not that of the run of tests.
                stopping.ANSIBLE_DIRECTORY: "",
                "TMPDIR": str(self.temporary),
            },
            start_new_session=True,
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.STDOUT,
                "preexec_fn": ignore_no_signals,
            }
            | more,  # type: ignore[call-overload]
        )

    def left(self) -> dict[int, str]:
        """The command lines of all processes that the command has started."""
        return started_with(f"THIS_TEST={self.mark}")

    def await_running(self, process: subprocess.Popen[bytes]) -> None:
        ends = time.monotonic() + deadline(60)
        while not self.running.exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < ends
            time.sleep(0.02)

    def await_none(self) -> float:
        """Wait until no process and no temporary file is left; the seconds that it took."""
        begin = time.monotonic()
        await_ended(f"THIS_TEST={self.mark}", LIMIT_S)
        assert [*self.temporary.iterdir()] == []
        return time.monotonic() - begin


def site_of(directory: Path, trap: str = "") -> Site:
    env = "" if trap else "env --default-signal=INT"
    programs, running = directory / "bin", directory / "running"
    programs.mkdir()
    (directory / "tmp").mkdir()
    # Not called ssh: a stopped command ends shared connections, of other tests too, by the real one.
    for name in ("ansible-playbook", "remote-shell", "pytest"):
        stand_in = programs / name
        stand_in.write_text(
            STAND_IN.format(trap=trap, env=env, running=running, last="sleep 600; :")
        )
        stand_in.chmod(0o755)
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (directory / "hosts.yml").write_text(INVENTORY.format(ssh=programs / "remote-shell"))
    (directory / "nightly.yml").write_text(
        f"inventory: [{directory}/hosts.yml]\nstate_dir: {directory}/nightly\n"
        f"reports_dir: {directory}/reports\n"
    )
    return Site(directory, secrets.token_hex(8))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = site_of(tmp_path)
    yield made
    for pid in made.left():
        os.kill(pid, signal.SIGKILL)


def stopped(site: Site, process: subprocess.Popen[bytes], number: signal.Signals) -> str:
    """Send the signal; what the command has printed, once it and all that it started have ended."""
    process.send_signal(number)
    output, _ = process.communicate(timeout=LIMIT_S)
    site.await_none()
    return output.decode()


@pytest.mark.parametrize(
    ("verb", "number"),
    [
        # Each verb with two signals, each signal with four verbs; the others are slow tests. A
        # provisioning is enough for a try.
        pytest.param(
            *(verb, number),
            id=f"{verb}-{number.name}",
            marks=[pytest.mark.slow] * ((row + column) % 2)
            + [pytest.mark.costly] * (verb != "provision"),
        )
        for row, verb in enumerate(VERBS)
        for column, number in enumerate(SIGNALS)
    ],
)
def test_a_stopped_verb_leaves_no_process(site: Site, verb: str, number: signal.Signals) -> None:
    process = site.start(verb)
    site.await_running(process)
    assert len(site.left()) > 3
    output = stopped(site, process, number)
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        return
    # A nightly run that is stopped still reports, and says so by its own status.
    assert process.returncode == (5 if verb == "nightly" else 128 + number), output
    assert "Traceback" not in output
    reason = "interrupted" if number == signal.SIGINT else f"stopped by {number.name}"
    said = f"({number.name})" if verb == "nightly" else f"gpufleet: {reason}."
    assert output.count(said) == 1, output


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_is_stopped_at_any_moment_leaves_no_process(
    site: Site, verb: str, seed: int
) -> None:
    moment = random.Random(f"{verb} {seed}")
    process = site.start(verb)
    # Imports, the inventory, the start of the stand-ins: which of them is left to chance.
    time.sleep(moment.uniform(0, 3))
    number = moment.choice(SIGNALS)
    output = stopped(site, process, number)
    assert process.returncode, output
    # Before its own handlers are set, a signal ends Python as it ends any program.
    assert process.returncode in {5, 128 + number, -number, 1}, output


@pytest.mark.costly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda it: it.name)
def test_what_ignores_signals_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    site = site_of(tmp_path, STUBBORN)
    process = site.start("provision")
    site.await_running(process)
    stopped(site, process, number)


def test_a_process_that_begins_a_program_is_not_taken_for_ended(site: Site) -> None:
    """/proc shows no environment of it at that moment, and this one is often in it."""
    mark = secrets.token_hex(8)
    again = 'test $1 -gt 0 && exec sh -c "$0" "$0" $(($1 - 1)); exec sleep 600'
    process = subprocess.Popen(
        ["sh", "-c", f"trap '' INT; {again}", again, "20000"],
        env={**os.environ, "THIS_TEST": site.mark, stopping.MARK: mark},
    )
    stopping._end(mark, 1, lambda pid: True)
    assert process.wait(0) == -signal.SIGKILL


def test_a_child_that_begins_its_program_late_is_ended_too() -> None:
    """Between fork and exec it has the environment that the command itself began with."""
    mark = secrets.token_hex(4)
    program = f"sleep 0.2; exec env GPUFLEET_RUN={mark} sleep 600"
    with subprocess.Popen(["sh", "-c", program]) as child:
        stopping._end(mark, 0, lambda pid: True)
        # Ends it in any case.
        child.send_signal(signal.SIGTERM)
        assert child.wait(LIMIT_S) == -signal.SIGKILL


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_what_cleans_up_is_not_interrupted(site: Site, number: signal.Signals) -> None:
    cleaned = site.directory / "cleaned"
    stand_in = site.directory / "bin" / "pytest"
    stand_in.write_text(
        CLEANS_UP.format(python=sys.executable, running=str(site.running), cleaned=cleaned)
    )
    process = site.start("test", grace_s=LIMIT_S)
    site.await_running(process)
    if number == signal.SIGINT:
        # Ctrl-C at a terminal.
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.communicate(timeout=LIMIT_S)
    assert site.await_none() < LIMIT_S
    assert cleaned.exists()


def test_tests_have_time_to_remove_their_hosts() -> None:
    assert grace_s(["test", "--hosts"]) >= 60
    assert grace_s(["verify"]) == grace_s(["no-verb"]) == grace_s([]) == stopping.GRACE_S < 10


@pytest.mark.costly
def test_a_second_signal_ends_the_patience(tmp_path: Path) -> None:
    site = site_of(tmp_path, STUBBORN)
    process = site.start("provision", grace_s=10 * LIMIT_S)
    site.await_running(process)
    begin = time.monotonic()
    # The same signal twice: of two that arrive together, Python handles the lower number first.
    while site.left().keys() - {process.pid} and process.poll() is None:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
    site.await_none()
    assert time.monotonic() - begin < LIMIT_S


def test_a_killed_process_group_leaves_no_process(site: Site) -> None:
    process = site.start("provision")
    site.await_running(process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=LIMIT_S)
    site.await_none()


@pytest.mark.parametrize(
    "end",
    [
        SIGNALS[0],
        *(pytest.param(end, marks=pytest.mark.costly) for end in (*SIGNALS[1:], "closed")),
    ],
    ids=str,
)
def test_the_terminal_has_its_cursor_again(site: Site, end: signal.Signals | str) -> None:
    terminal, theirs = pty.openpty()
    process = site.start("verify", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while HIDE not in shown:
        assert select.select([terminal], [], [], 60)[0], shown
        shown += os.read(terminal, 4096)
    site.await_running(process)
    if end == "closed":
        os.close(terminal)
        # The kernel sends it to the session of a terminal; here nobody has made it one.
        process.send_signal(signal.SIGHUP)
        process.wait(LIMIT_S)
        site.await_none()
        return
    process.send_signal(end)
    while True:
        try:
            assert select.select([terminal], [], [], LIMIT_S)[0], shown
            shown += os.read(terminal, 4096)
        except OSError:  # nobody has it open any more
            break
    process.wait(LIMIT_S)
    site.await_none()
    os.close(terminal)
    assert shown.rfind(SHOW) > shown.rfind(HIDE), shown


def test_a_finished_command_keeps_what_is_meant_to_stay(site: Site, tmp_path: Path) -> None:
    """A shared ssh connection serves the next command, too."""
    stand_in = tmp_path / "bin" / "ansible-playbook"
    stand_in.write_text("#!/bin/sh\nsetsid sleep 600 </dev/null >/dev/null 2>&1 &\n")
    process = site.start("playbook")
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    assert len(site.left()) == 1


@pytest.mark.costly
def test_who_ignores_the_end_of_a_terminal_is_not_stopped_by_it(site: Site) -> None:
    process = site.start(
        "provision",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    site.await_running(process)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    stopped(site, process, signal.SIGTERM)


def test_a_command_that_needs_no_temporary_directory_runs_where_none_can_be_written() -> None:
    program = (
        "import sys, tempfile\n"
        "from gpufleet import stopping\n"
        "def none(): raise FileNotFoundError('No usable temporary directory found')\n"
        "tempfile.gettempdir = none\n"
        "sys.exit(stopping.guarded(lambda: 3, 1))\n"
    )
    env = {key: value for key, value in os.environ.items() if key != stopping.ANSIBLE_DIRECTORY}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (3, "")
