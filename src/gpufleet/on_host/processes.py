"""Processes that may hang: started in sessions of their own, killed and abandoned.

Whatever can hang (a dead NFS mount, a driver in a D state, a profile that waits for input) runs
in a process of its own session that writes to a file. When its deadline passes it is killed and
*abandoned*: waiting for a process in a D state would hang the probe with it.

It is also the one gate: every program that the probe starts, and every library that it loads, is
judged first by `trust`: root starts and loads nothing that others could have written.
"""

import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from .elf import unfit
from .privileges import forbid_new_privileges
from .session import end_with_parent
from .trust import CACHE, ORDINARY, SYSTEM_PATH, RefusedError, account_for, library_file

# The most bytes that a program may print, and the part of root's environment that programs get.
MOST_OUTPUT = 64 << 20
# {program: the account of its last start in this process, None for its own}.
STARTED_AS = {}
KEPT_VARIABLES = (
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "TERM",
    "TZ",
    "XDG_RUNTIME_DIR",
    "DOCKER_HOST",
    "CONTAINER_HOST",
)


def scratch_file():
    """A file with no name: in memory where the kernel can, so that a full disk is no obstacle."""
    if hasattr(os, "memfd_create"):
        try:
            return os.fdopen(os.memfd_create("gpufleet"), "w+b")
        except OSError:
            pass
    for directory in ("/dev/shm", "/tmp", "/var/tmp", "/run"):
        try:
            return tempfile.TemporaryFile(dir=directory)
        except OSError:
            continue
    raise OSError(errno.ENOSPC, "no directory to write a temporary file in")


def kill_session(pid):
    """Kill a process and its session's group; it is not waited for (it may be in a D state)."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            pass


def signal_description(number):
    """`killed by SIGSEGV`, with what it means where it means one thing."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "signal %d" % number
    hint = " (a file that it maps is cut short)" if name == "SIGBUS" else ""
    return "killed by %s%s" % (name, hint)


class NoAnswerError(Exception):
    """A program gave no answer within its time: the section is hung."""


class NoAnswer(str):
    """Why `run_command` has no status: the program gave no answer within its time.

    A class of its own, so that nothing decides by the text.
    """

    __slots__ = ()


class Child:
    """`function(*arguments)` in a forked process of its own session, its result in a file.

    As another `account`, where one is given: with no open file but those that are arguments.
    `patient`: the time that it waits for a processor does not count, as something else has a
    deadline for all of it; a number is that deadline.
    """

    def __init__(self, function, arguments, deadline_s, account=None, *, patient=False):
        self.account = account
        self.patient_until = float("inf") if patient is True else float(patient)
        self.started = time.monotonic()
        self.deadline = self.started + deadline_s
        self.deadline_s = deadline_s
        self.outcome = None
        self.output = scratch_file()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(function, arguments, parent)

    def _run(self, function, arguments, parent):
        status = 1
        try:
            os.setsid()
            # A relative path in a library's headers is no place of whoever called the probe.
            os.chdir("/")
            # An abandoned child must not hold the ssh session's pipes open.
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            if self.account:
                kept = {0, 1, 2, self.output.fileno()} | {
                    item.fileno() for item in arguments if hasattr(item, "fileno")
                }
                for name in os.listdir("/proc/self/fd"):
                    if int(name) not in kept:
                        try:
                            os.close(int(name))
                        except OSError:  # that of the listing itself
                            pass
                become(self.account)
            end_with_parent(parent)
            try:
                answer = ["ok", function(*arguments), None]
            except PermissionError as error:
                answer = ["denied", None, str(error)]
            except NoAnswerError as error:
                answer = ["hung", None, str(error)]
            except Exception as error:
                # A RuntimeError is this file's own, with a plain message.
                own = type(error) in (RuntimeError, RefusedError)
                kind = "" if own else type(error).__name__ + ": "
                answer = ["error", None, kind + str(error)]
            self.output.write(json.dumps(answer).encode("utf-8", "surrogatepass"))
            self.output.flush()
            status = 0
        finally:
            os._exit(status)

    def poll(self):
        """True when there is an outcome: (state, data, error, seconds)."""
        if self.outcome:
            return True
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        seconds = round(time.monotonic() - self.started, 3)
        if pid:
            self.outcome = (*self._read(status), seconds)
            # The processes that the command left behind end with it.
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except OSError:
                pass
        elif time.monotonic() > self.deadline and not (
            time.monotonic() < self.patient_until
            and time.monotonic() <= self.deadline + queued_s(self.pid)
        ):
            self.abandon()
            self.outcome = ("hung", None, "no answer within %g s" % self.deadline_s, seconds)
        if self.outcome:
            self.output.close()
        return bool(self.outcome)

    def abandon(self):
        """Kill it with all that it started, without waiting for its end."""
        kill_session(self.pid)

    def _read(self, status):
        if os.WIFSIGNALED(status):
            return "error", None, signal_description(os.WTERMSIG(status))
        self.output.seek(0)
        try:
            state, data, error = json.loads(self.output.read().decode("utf-8"))
        except ValueError:
            return "error", None, "exited without a result (status %d)" % os.WEXITSTATUS(status)
        return state, data, error


class StartAfter:
    """A child that is started when another has ended or was abandoned."""

    def __init__(self, other, start):
        self.other, self.start, self.child = other, start, None

    def poll(self):
        if self.child is None and self.other.poll():
            self.child = self.start()
        return self.child is not None and self.child.poll()

    @property
    def outcome(self):
        return self.child and self.child.outcome


def await_all(children, each_time=lambda: None):
    # A list, so that each is polled each time: the first that hangs must not hide the others' end.
    while not all([child.poll() for child in children]):  # noqa: C419
        time.sleep(0.003)
        each_time()
    return [child.outcome for child in children]


def in_child(function, arguments, deadline_s, account=None):
    """State, value and error of a call that may crash or hang."""
    return await_all([Child(function, arguments, deadline_s, account, patient=True)])[0][:3]


def queued_s(pid):
    """How long a process was ready to run, and others ran: on a busy host it is late, not hung."""
    try:
        with open("/proc/%d/schedstat" % pid) as stream:
            return int(stream.read().split()[1]) / 1e9
    except (OSError, LookupError, ValueError):
        return 0


def become(account):
    """Become another account for good: none of root's groups, no way back by a setuid program."""
    os.setgroups(account.groups)
    os.setgid(account.gid)
    os.setuid(account.uid)
    forbid_new_privileges()


def open_library(path, mode=ctypes.DEFAULT_MODE):
    """A library by ctypes, unless root would load what others could have written."""
    account_for([path if "/" in path else library_file(path) or CACHE], as_owner=False)
    try:
        return ctypes.CDLL(path, mode=mode)
    except OSError as error:
        reason = unfit(path)
        raise RuntimeError("%s: %s" % (path, reason) if reason else str(error)) from None


def environment(given):
    """Variables for a program: of root's own only what steers no library, module or program."""
    if os.geteuid() != 0:
        return given
    if given is None:
        import pwd

        given = {key: os.environ[key] for key in KEPT_VARIABLES if key in os.environ}
        given["HOME"] = pwd.getpwuid(0).pw_dir
    return dict({"PATH": SYSTEM_PATH}, **given)


def all_code(path, code):
    """A program and the rest that it loads, by path, each with the name that leads to it."""
    given = code() if callable(code) else code or ()
    return dict({path: ""}, **(given if isinstance(given, dict) else dict.fromkeys(given, "")))


def run_command(argv, deadline_s, env=None, cwd=None, *, partial=False, code=None, ordinary=False):
    """Status, stdout and stderr; status None when it could not be started or did not end.

    Its output before it hung is kept if `partial`; stderr then is the plain reason, a `NoAnswer`
    if it did not end. `code`: what else it loads, of a program that may run as its owner; a list,
    or a function that lists it. `ordinary`: root runs it as an account without any rights. Raises
    RefusedError where root would run what others could have written.
    """
    path = argv[0]
    if os.geteuid() == 0 and "/" not in path:
        path = shutil.which(path, path=SYSTEM_PATH) or path
    out, err = scratch_file(), scratch_file()
    parent = os.getpid()

    def prepare():
        # Nothing in it looks anything up, as threads may hold locks.
        if account:
            become(account)
        end_with_parent(parent)

    try:
        with open(os.devnull) as null:
            # Judged last of all: between this and the start lies nothing else.
            account = None
            if "/" in path:
                account = account_for(lambda: all_code(path, code), as_owner=code is not None)
                STARTED_AS[path] = account
            if ordinary and account is None and os.geteuid() == 0:
                account = ORDINARY
            process = subprocess.Popen(
                [path, *argv[1:]],
                stdin=null,
                stdout=out,
                stderr=err,
                env=environment(env),
                cwd=cwd or ("/" if account else None),
                start_new_session=True,
                preexec_fn=prepare,  # noqa: PLW1509
            )
    except OSError as error:
        return None, "", "%s: %s" % (argv[0], unfit(path) or error.strerror)
    deadline, endless = time.monotonic() + deadline_s, False
    while (
        process.poll() is None
        and not endless
        and (time.monotonic() < deadline or time.monotonic() < deadline + queued_s(process.pid))
    ):
        time.sleep(0.003)
        endless = any(os.fstat(stream.fileno()).st_size > MOST_OUTPUT for stream in (out, err))
    hung = process.returncode is None
    if hung:
        kill_session(process.pid)
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read(MOST_OUTPUT).decode("utf-8", "replace"))
        stream.close()
    if endless:
        return None, "", "it prints without end"
    if hung:
        return None, texts[0] if partial else "", NoAnswer("no answer within %g s" % deadline_s)
    return process.returncode, texts[0], texts[1]
