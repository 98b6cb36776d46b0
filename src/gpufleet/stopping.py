"""End what a command has started, whatever ends the command itself.

Each process that a command starts carries the command's mark, an environment variable. On SIGTERM,
SIGHUP and Ctrl-C the command ends the marked processes, and then itself. A guard, a process in a
session of its own, does it for a command that was killed, shows the terminal's cursor again, and
removes the command's temporary directories, Ansible's among them: their names carry the mark.

Works on Linux's /proc. Signals processes; writes to the terminal and below the temporary directory.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

# The marks of a command and of those that started it, separated by colons.
MARK = "GPUFLEET_RUN"
# The directory in which Ansible makes its own temporary directories, and where a person sets it.
ANSIBLE_DIRECTORY = "ANSIBLE_LOCAL_TEMP"
STOPPING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# How long interrupted processes may clean up, and how long killed ones may take to end: one that
# waits for a dead disk never does.
GRACE_S, KILLED_S = 6.0, 2.0
# A stopped command that has not ended by then hangs.
END_S = 8
# Nothing is left once so many scans in a row find nothing, for so long: what starts during one is
# in the next, and what the command has forked has no mark before it begins its program.
SCANS, QUIET_S = 2, 0.5
# How often an empty environment is read before it counts as one.
TRIES = 3
# How long ssh may take to tell the process of a shared connection that no more sessions follow.
SHARED_S = 3.0
# How ssh names the process of a shared connection, which overwrites its own environment.
SHARED = re.compile(rb"ssh: (.+) \[mux\]")
SHOW_CURSOR = b"\x1b[?25h"
PR_SET_PDEATHSIG = 1
# The flag of a kernel thread in /proc/PID/stat; and the field with the start, after the name.
PF_KTHREAD, STARTED = 0x00200000, 19


class Stopped(KeyboardInterrupt):
    """A signal stopped the command: handled wherever Ctrl-C is."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def status_of(stopped: KeyboardInterrupt) -> int:
    """The exit status of a stopped command, as a shell reports it."""
    return 128 + getattr(stopped, "number", signal.SIGINT)


def reason_of(stopped: KeyboardInterrupt) -> str:
    """The reason why the command stopped, as the beginning of a sentence."""
    number = getattr(stopped, "number", signal.SIGINT)
    return "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"


def guarded(command: Callable[[], int], grace_s: float) -> int:
    """Run a command; end what it started where it is stopped, or killed.

    `grace_s`: how long interrupted processes may clean up.
    """
    if not Path("/proc/self/environ").exists():
        return command()
    mark = f"{os.getpid()}-{secrets.token_hex(4)}"
    os.environ[MARK] = ":".join(filter(None, (os.environ.get(MARK, ""), mark)))
    if not os.environ.get(ANSIBLE_DIRECTORY) and (place := _temporary(mark, "ansible")):
        os.environ[ANSIBLE_DIRECTORY] = str(place)
    guard = _start_guard(mark, grace_s)
    stop = partial(_stop, grace_s=grace_s)
    for number in STOPPING:
        # A command that ignores a signal, as nohup does, means it.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        return command()
    finally:
        if signal.getsignal(signal.SIGTERM) is _at_once:
            # Stopped: a thread may have started another process while the first ones ended.
            _end(mark, 0, lambda pid: True)
        _remove_directories(mark)
        # A process that a finished command leaves, such as a shared ssh connection, may stay.
        os.kill(guard, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(guard, 0)


def temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """A temporary directory that is removed also where this command is killed."""
    mark = os.environ.get(MARK, "").rpartition(":")[2]
    return tempfile.TemporaryDirectory(prefix=f"gpufleet-{mark}-" if mark else "gpufleet-")


def _temporary(mark: str, name: str) -> Path | None:
    """The path of a command's temporary directory, or the pattern of the paths of all.

    None where no directory can be written, as on a full disk: a command that needs none runs there.
    """
    try:
        return Path(tempfile.gettempdir(), f"gpufleet-{mark}-{name}")
    except FileNotFoundError:
        return None


def _remove_directories(mark: str) -> None:
    """Remove what a command, and what it started, left below the temporary directory."""
    pattern = _temporary(mark, "*")
    for path in pattern.parent.glob(pattern.name) if pattern else ():
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                shutil.rmtree(path)


def end_started(
    grace_s: float = GRACE_S, *, interrupt: Callable[[int], bool] = lambda pid: True
) -> None:
    """Interrupt what this command has started, and kill what does not end by that.

    `interrupt`: whether a process is still to be interrupted.
    """
    if mark := os.environ.get(MARK, "").rpartition(":")[2]:
        _end(mark, grace_s, interrupt)
        _end_shared_connections(_started(os.getpid()))


def marked(mark: str) -> set[int]:
    """The processes that carry a mark, and all that these have started."""
    return set(_scan(mark)[0])


def _scan(mark: str) -> tuple[dict[int, int], bool]:
    """The start of each marked process in ticks since boot, and whether a mark was unreadable."""
    wanted, parents, starts, found, unreadable = mark.encode(), {}, {}, set[int](), False
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            # The command's name may contain blanks and brackets.
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            state, parent, flags = fields[0], int(fields[1]), int(fields[6])
            if state == b"Z" or flags & PF_KTHREAD:
                continue
            parents[int(entry.name)], starts[int(entry.name)] = parent, int(fields[STARTED])
            environment = _environment(entry)
            if environment is None:
                unreadable = True
            elif _has_mark(environment, wanted):
                found.add(int(entry.name))
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: starts[pid] for pid in found}, unreadable


def _environment(process: Path) -> bytes | None:
    """The environment of a process; None of one that begins a program at this moment."""
    for _ in range(TRIES):
        if environment := (process / "environ").read_bytes():
            return environment
        # Both are empty until the new program has them. Only the first is where it got them, or
        # left its former memory, between the two reads, and where a process has none.
        if not (process / "cmdline").read_bytes():
            return None
    return b""


def _has_mark(environment: bytes, mark: bytes) -> bool:
    name = f"{MARK}=".encode()
    return any(
        mark in line.removeprefix(name).split(b":")
        for line in environment.split(b"\0")
        if line.startswith(name)
    )


def _stop(number: int, frame: FrameType | None, grace_s: float) -> None:
    """The handler: end what was started, then raise `Stopped`."""
    for each in STOPPING:
        signal.signal(each, _at_once)
    # Ctrl-C at a terminal has reached the processes of this group, and a second one disturbs them.
    group = os.getpgrp() if number == signal.SIGINT else None
    end_started(grace_s, interrupt=lambda pid: _group(pid) != group)
    signal.signal(signal.SIGALRM, lambda *_: _exit(128 + number))
    signal.alarm(END_S)
    raise Stopped(number)


def _at_once(number: int, frame: FrameType | None) -> None:
    """The handler of a second signal: no more patience."""
    _signal(marked(os.environ.get(MARK, "").rpartition(":")[2]), signal.SIGKILL)


def _exit(status: int) -> None:
    _show_cursor(2)
    os._exit(status)


def _group(pid: int) -> int | None:
    with suppress(OSError):
        return os.getpgid(pid)
    return None


def _end(mark: str, grace_s: float, interrupt: Callable[[int], bool]) -> None:
    """Interrupt each marked process that runs now, and kill those that still run after a time.

    What these start to clean up, such as the commands of a test's teardown, is not interrupted.
    """
    begin = seen = time.monotonic()
    considered, empty, end, since = set[int](), 0, math.inf, math.inf
    while (empty < SCANS or time.monotonic() - seen < QUIET_S) and time.monotonic() < end:
        found, unreadable = _scan(mark)
        empty = 0 if found or unreadable else empty + 1
        if not empty:
            seen = time.monotonic()
        if time.monotonic() - begin < grace_s:
            # The moment of the first signal: what ran then may be found by a later scan only.
            since = min(since, _now())
            running = (pid for pid in found.keys() - considered if found[pid] < since)
            _signal(filter(interrupt, running), signal.SIGINT)
            considered |= found.keys()
        else:
            # From the first kill on, however late that is on a machine that was paused.
            end = min(end, time.monotonic() + KILLED_S)
            _signal(found, signal.SIGKILL)
        time.sleep(0.02)


def _now() -> int:
    """The ticks since boot."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _started(pid: int) -> int:
    """When a process started, in ticks since boot."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[STARTED])


def _end_shared_connections(since: int) -> None:
    """End the shared ssh connections that began after a time, each with its last session.

    Ansible leaves them open for the next task; on a host they keep running what waits for the end
    of the connection. Sessions that another command has in one of them go on.
    """
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, subprocess.SubprocessError):
            found = SHARED.match((entry / "cmdline").read_bytes())
            if found and entry.stat().st_uid == os.getuid() and _started(int(entry.name)) >= since:
                socket = os.fsdecode(found[1]).replace("%", "%%")
                subprocess.run(
                    ["ssh", "-o", f"ControlPath={socket}", "-O", "stop", "gpufleet"],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=False,
                    timeout=SHARED_S,
                )


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def _start_guard(mark: str, grace_s: float) -> int:
    parent, since = os.getpid(), _started(os.getpid())
    guard = os.fork()
    if guard == 0:
        try:
            _guard(parent, mark, since, grace_s)
        finally:
            os._exit(0)
    return guard


def _guard(parent: int, mark: str, since: int, grace_s: float) -> None:
    """Wait for the command's end, and end what it left behind."""
    # No signal of a terminal or of a process group reaches it.
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    # It holds none of the command's files and pipes open, except the terminal.
    terminal = next((number for number in (2, 1) if _is_terminal(number)), None)
    null = os.open(os.devnull, os.O_RDWR)
    for number in {0, 1, 2} - {terminal}:
        os.dup2(null, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # The kernel sends this signal when the command's process ends, by whatever cause.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
    while os.getppid() == parent:
        signal.sigwait({signal.SIGUSR1})
    _end(mark, grace_s, lambda pid: True)
    _remove_directories(mark)
    _end_shared_connections(since)
    if terminal is not None:
        _show_cursor(terminal)


def _is_terminal(number: int) -> bool:
    with suppress(OSError):
        return os.isatty(number)
    return False


def _show_cursor(number: int) -> None:
    if _is_terminal(number):
        with suppress(OSError):
            os.write(number, SHOW_CURSOR)
