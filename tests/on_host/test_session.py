"""The probe ends with its session, and so does everything that it has started."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.on_host import payload, processes, session
from tests.support.machine import deadline
from tests.support.moments import wait_until
from tests.support.processes import await_ended, started_with

LIMIT_S = 20


class Host:
    """A root directory whose first section starts programs that do not end."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.mark = directory, secrets.token_hex(8)
        self.started = directory / "started"
        (directory / "tmp").mkdir()

    def program(self) -> bytes:
        """The probe; its section `os` starts a program that starts others, in other sessions."""
        hang = f"""
import os, subprocess, time
from gpufleet.on_host import runner
from gpufleet.on_host.processes import run_command
def section(host):
    script = "setsid sleep 600 & (setsid sh -c 'trap : HUP TERM; sleep 600; sleep 600' &) ; sleep 600"
    run_command(["/bin/sh", "-c", script + " & touch {self.started}; wait"], 600, {{"THIS_TEST": {self.mark!r}}})
runner.SECTIONS["os"] = section
"""
        text = payload.probe().replace("\nmain(", f"{hang}\nmain(")
        config = {"root": str(self.directory), "deadline_s": 500, "mode": "full"}
        return f"CONFIG = {json.dumps(config)!r}\n{text}".encode()

    def left(self) -> list[int]:
        return [*started_with(f"THIS_TEST={self.mark}")]

    def await_started(self) -> None:
        wait_until(lambda: self.started.exists() and len(self.left()) >= 5)

    def await_none(self) -> None:
        await_ended(f"THIS_TEST={self.mark}", LIMIT_S)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    for pid in made.left():
        os.kill(pid, signal.SIGKILL)


def start(host: Host, *above: str, **more: Any) -> subprocess.Popen[bytes]:
    """The probe as a session starts it, by programs `above` it."""
    running = subprocess.Popen(
        [*above, sys.executable, "-I", "-S", "-"],
        stdin=subprocess.PIPE,
        env={**os.environ, "THIS_TEST": host.mark},
        start_new_session=True,
        # Under nohup the tests, and all that they start, ignore hangups.
        **{"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, **more},
    )
    assert running.stdin is not None
    running.stdin.write(host.program())
    running.stdin.close()
    host.await_started()
    return running


def children(host: Host, parent: int) -> list[int]:
    """The processes that `parent` has started and that have not ended."""
    known = {pid: session.status_of(pid) for pid in host.left()}
    return [pid for pid, status in known.items() if status and status[1] == parent]


def test_it_ends_when_nobody_can_read_its_output(host: Host) -> None:
    running = start(host)
    assert running.stdout is not None
    running.stdout.close()
    assert running.wait(LIMIT_S) == 1
    host.await_none()


def test_it_ends_with_the_process_that_started_it(host: Host, tmp_path: Path) -> None:
    """As a lost ssh connection ends the daemon's process for it; sudo between them stays."""
    output = (tmp_path / "output").open("wb")
    above = ("/bin/sh", "-c", 'sh -c \'"$@"; :\' x "$@"; :', "x")
    running = start(host, *above, stdout=output)
    [inner] = children(host, running.pid)
    os.kill(inner, signal.SIGKILL)
    host.await_none()
    running.wait(LIMIT_S)
    output.close()


def test_what_it_started_ends_with_it_where_it_is_killed(host: Host) -> None:
    """The kernel ends its sections, and their programs; not what these have started."""
    running = start(host)
    known = {pid: session.status_of(pid) for pid in host.left()}
    name = known[running.pid][0]
    sections = [pid for pid, it in known.items() if it and it[:2] == (name, running.pid)]
    programs = [pid for pid, it in known.items() if it and it[1] in sections]
    assert programs
    sections = [*sections, *programs]
    running.kill()
    running.wait(LIMIT_S)
    ends = time.monotonic() + deadline(LIMIT_S)
    while any(session.status_of(pid) for pid in sections):
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_who_ignores_the_end_of_a_terminal_goes_on(host: Host, tmp_path: Path) -> None:
    """`nohup python3 probe.py >output &`, and a logout."""
    output = (tmp_path / "output").open("wb")
    above = ("/bin/sh", "-c", 'trap "" HUP; exec 3<&0; "$@" <&3 & wait', "x")
    running = start(host, *above, stdout=output)
    [probe] = children(host, running.pid)
    running.kill()
    running.wait(LIMIT_S)
    time.sleep(3 * session.CHECK_S)
    assert session.status_of(probe)
    output.close()


@pytest.mark.costly
def test_a_section_that_hangs_leaves_no_program_behind(host: Host) -> None:
    program = host.program().replace(b'"deadline_s": 500', b'"deadline_s": 4')
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-"],
        input=program,
        env={**os.environ, "THIS_TEST": host.mark},
        capture_output=True,
        timeout=deadline(60),
        check=True,
    )
    snapshot = json.loads(done.stdout.strip().rpartition(b"\n")[2])
    assert snapshot["sections"]["os"]["state"] == "hung"
    host.await_none()


def test_the_nearest_ssh_daemon_is_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    above = {
        50: (b"sudo", 40, b"5"),
        40: (b"sh", 30, b"4"),
        30: (b"sshd-session", 20, b"3"),
        20: (b"sshd-session", 10, b"2"),
        10: (b"sshd", 1, b"1"),
    }
    monkeypatch.setattr(session, "status_of", above.get)
    monkeypatch.setattr(os, "getppid", lambda: 50)
    # Where the tests run under nohup, a session would be one that goes on.
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)
    found = session.Session()
    assert (found.is_ssh, found.above) == (True, (30, b"3"))
    found.checked = 0
    assert not found.ended()
    # Another process has its number now.
    above[30] = (b"cron", 1, b"9")
    found.checked = 0
    assert found.ended()
    # Without ssh: the process that started it.
    del above[30]
    found = session.Session()
    assert (found.is_ssh, found.above) == (False, (50, b"5"))


def test_a_child_whose_parent_is_gone_already_ends() -> None:
    child = os.fork()
    if not child:
        session.end_with_parent(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_a_program_of_another_account_ends_with_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of account would lose what ends it."""
    shutil.chown(tmp_path, "nobody")
    sleep, number = shutil.which("sleep"), tmp_path / "pid"
    assert sleep is not None

    def section() -> None:
        processes.run_command(
            ["/bin/sh", "-c", f"echo $$ >{number}.new; mv {number}.new {number}; exec sleep 600"],
            600,
            cwd=str(tmp_path),
            ordinary=True,
        )

    tmp_path.chmod(0o777)
    for parent in tmp_path.parents:
        if parent.owner() == "root" and parent != Path("/") and parent.stat().st_mode & 1 == 0:
            monkeypatch.setattr(processes, "ORDINARY", None)
    child = processes.Child(section, (), 600)
    ends = time.monotonic() + deadline(LIMIT_S)
    while not number.exists():
        assert time.monotonic() < ends and not child.poll(), child.outcome
        time.sleep(0.02)
    started = int(number.read_text())
    os.kill(child.pid, signal.SIGKILL)
    while session.status_of(started):
        assert time.monotonic() < ends
        time.sleep(0.02)
    while not child.poll():
        time.sleep(0.02)
