"""Processes that may hang: started in sessions of their own, killed and abandoned.

Whatever can hang (a dead NFS mount, a driver in a D state, a profile that waits for input) runs
in a process of its own session that writes to a file. When its deadline passes it is killed and
*abandoned*: waiting for a process in a D state would hang the probe with it.
"""
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time


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


class Child:
    """`function(*arguments)` in a forked process of its own session, its result in a file."""

    def __init__(self, function, arguments, deadline_s):
        self.started = time.monotonic()
        self.deadline = self.started + deadline_s
        self.deadline_s = deadline_s
        self.outcome = None
        self.output = scratch_file()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(function, arguments)

    def _run(self, function, arguments):
        status = 1
        try:
            os.setsid()
            # An abandoned child must not hold the ssh session's pipes open.
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            try:
                answer = ["ok", function(*arguments), None]
            except PermissionError as error:
                answer = ["denied", None, str(error)]
            except NoAnswerError as error:
                answer = ["hung", None, str(error)]
            except Exception as error:
                # A RuntimeError is this file's own, with a plain message.
                kind = "" if type(error) is RuntimeError else type(error).__name__ + ": "
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
            # What it started and left behind goes with it.
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except OSError:
                pass
        elif time.monotonic() > self.deadline:
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


def await_all(children):
    # A list, so that each is polled each time: the first that hangs must not hide the others' end.
    while not all([child.poll() for child in children]):  # noqa: C419
        time.sleep(0.003)
    return [child.outcome for child in children]


def in_child(function, arguments, deadline_s):
    """(state, value, error) of a call that may crash or hang."""
    return await_all([Child(function, arguments, deadline_s)])[0][:3]


def run_command(argv, deadline_s, env=None, cwd=None, partial=False):
    """(status, stdout, stderr); status None when it could not be started or did not end.

    Its output before it hung is kept if `partial`; stderr then is the plain reason.
    """
    out, err = scratch_file(), scratch_file()
    try:
        with open(os.devnull) as null:
            process = subprocess.Popen(argv, stdin=null, stdout=out, stderr=err, env=env, cwd=cwd,
                                       start_new_session=True)
    except OSError as error:
        return None, "", "%s: %s" % (argv[0], error.strerror)
    deadline = time.monotonic() + deadline_s
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.003)
    hung = process.returncode is None
    if hung:
        kill_session(process.pid)
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read().decode("utf-8", "replace"))
        stream.close()
    if hung:
        return None, texts[0] if partial else "", "no answer within %g s" % deadline_s
    return process.returncode, texts[0], texts[1]
