"""Commands that run as ever, in forks of a process that has imported their packages already.

Imports are most of a short command's time. A fork has its own environment, directory, standard
files and exit status. Tests of just these, of signals, or of Ansible's own settings start a
process of their own instead: Ansible reads its settings as it is imported.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import math
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.machine import deadline

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
# A second import of a package in a fork costs nothing.
PACKAGES = (
    "ansible.cli.playbook",
    "ansible.executor.process.worker",
    "gpufleet.cli.main",
    "gpufleet.fleet.pytest_plugin",
    "pytest",
    "testinfra",
)


def run_warm(
    *words: str | Path,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    timeout: int = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a command as `subprocess.run` does: `-m` and a package, `-c` and a program, or a script."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        request = {
            "words": list(map(str, words)),
            "cwd": str(cwd),
            "env": dict(os.environ if env is None else env),
            "streams": [os.devnull, str(out), str(err)],
            "timeout": math.ceil(deadline(timeout)),
        }
        server = _server()
        assert server.stdin and server.stdout
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        if status == -signal.SIGALRM:
            raise subprocess.TimeoutExpired(request["words"], timeout)
        return subprocess.CompletedProcess(
            request["words"], status, out.read_text("utf-8"), err.read_text("utf-8")
        )


def run_playbook(
    playbook: Path, *words: str | Path, hosts: str = "localhost,", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a playbook on this machine, with this environment in addition."""
    return run_warm(
        BIN / "ansible-playbook",
        "-i",
        hosts,
        playbook,
        *words,
        # A module is handed over at once; only such a one can run in a fork.
        env={**os.environ, "ANSIBLE_PIPELINING": "true", **environment},
    )


@functools.cache
def _server() -> subprocess.Popen[str]:
    """The process that is forked. It ends with this one, which holds its standard input open."""
    server = subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    """End the process. What a command left running may hold its standard output open."""
    assert server.stdin
    server.stdin.close()
    server.wait()


def _serve() -> None:
    """Answer each request on standard input with the exit status of its command."""
    from tests.support import warm_ansible  # noqa: PLC0415 (Ansible, which is imported here alone)

    with os.fdopen(os.dup(1), "w") as answers:
        for name in PACKAGES:
            importlib.import_module(name)
        for name in ("gpufleet", "testinfra"):
            # pytest would warn that it cannot rewrite the assertions of what is imported already.
            importlib.import_module(name).__doc__ = "PYTEST_DONT_REWRITE"
        warm_ansible.prepare()
        # Collecting garbage would write to pages that all forks share.
        gc.freeze()
        fork = multiprocessing.get_context("fork")
        for line in sys.stdin:
            request = json.loads(line)
            command = fork.Process(target=_command, kwargs=request)
            command.start()
            command.join()
            print(command.exitcode, file=answers, flush=True)


def _command(
    words: Sequence[str], cwd: str, env: dict[str, str], streams: Sequence[str], timeout: int
) -> None:
    """Become the command."""
    signal.alarm(timeout)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, path in enumerate(streams):
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.orig_argv = [sys.executable, *words]
    if words[0] == "-c":
        sys.path[0] = cwd
        sys.argv = ["-c", *words[2:]]
        exec(words[1], {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.path[0] = cwd
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(BIN)
        sys.argv = list(words)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _serve()
