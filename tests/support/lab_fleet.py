"""Two throwaway hosts of this suite's own, and the launcher as a person types it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab import hosts
from lab.command import environment as command_environment
from lab.settings import Lab

ROOT = Path(__file__).resolve().parents[2]
RUNFILE = "cuda_11.8.0_520.61.05_linux.run"
STACK = "/opt/gpufleet/stacks/tensorflow-2.13.1"
TOOLKIT = "/usr/local/cuda-11.8"

Done = subprocess.CompletedProcess[str]

# A run that is to be killed: how long it may take, and, once it ended, how long the host may take
# to show what it did.
DEADLINE_S, AFTERWARDS_S = 900, 10

# On the host, in one system call: looking for processes takes so long that some end meanwhile.
FREEZE = "kill -s STOP -- -1"
# On the host: everything that Ansible started there, and what that started. Brackets keep the
# patterns from matching the shell that carries them.
KILL = """
for parent in $(pgrep -f '[B]ECOME-SUCCESS'); do pkill -KILL -P $parent; kill -KILL $parent; done
pkill -KILL -f '[c]uda-installer|[l]inux.run|[g]pufleet-cuda'
pkill -KILL -f '[a]pt-get |[d]pkg |/sbin/[d]kms|[m]ake |/bin/[d]nf '
"""
# On the host: nobody waits for the moment any longer.
GIVEN_UP = "/run/kill-given-up"


@dataclass
class Fleet:
    """The lab's instance that these tests have for themselves."""

    instance: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every command."""
        return {**os.environ, "GPUFLEET_LAB": self.instance, "COLUMNS": "160"}

    def run(
        self, *words: str | Path, status: int | None = 0, env: Mapping[str, str] | None = None
    ) -> Done:
        """Run a command; how its output ends is in the message when it ends unexpectedly."""
        env = env or self.environment
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert status is None or done.returncode == status, (
            f"{words} ended with {done.returncode}, not {status}:\n"
            f"{end_of(done.stdout)}\n{end_of(done.stderr)}"
        )
        return done

    def gpufleet(self, *words: str, status: int | None = 0) -> Done:
        """The launcher."""
        return self.run(ROOT / "gpufleet", *words, status=status)

    def on(self, host: str, command: str, status: int | None = 0) -> str:
        """Run a shell command as root on a host, as `lab exec` does; returns its output."""
        of_lab = Lab.from_environment(self.environment)
        words = hosts.command(of_lab, host, ["sh", "-c", command], interactive=False)
        return self.run(*words, status=status, env=command_environment()).stdout

    def verdicts(self, status: int | None, *words: str) -> dict[str, dict[str, dict[str, Any]]]:
        """The checks of verify, by host and check id."""
        done = self.gpufleet("verify", "--json", *words, status=None)
        assert done.stdout.startswith("{"), end_of(done.stderr)
        found = {
            name: {check["id"]: check for check in host["checks"]}
            for name, host in json.loads(done.stdout)["hosts"].items()
        }
        unhealthy = [
            f"{name}: {check['id']} {check['verdict']}: {check['cause']}"
            for name, checks in found.items()
            for check in checks.values()
            if check["verdict"] not in {"PASS", "NOT-DECLARED"}
        ]
        assert status in {None, done.returncode}, (done.returncode, unhealthy)
        return found

    def killed(self, condition: str, *words: str | Path) -> None:
        """Run a command, and kill it and all it started on lab1 as soon as a condition holds there.

        As at a power failure: SIGKILL, on the host first, where the condition was seen.
        """
        wait = f"until {condition} || [ -e {GIVEN_UP} ]; do :; done; [ ! -e {GIVEN_UP} ] || exit 1"
        until = f"rm -f {GIVEN_UP}; {wait}; {FREEZE}{KILL}kill -s CONT -- -1"
        with (
            tempfile.TemporaryFile("w+") as output,
            subprocess.Popen(
                words, cwd=ROOT, env=self.environment, stdout=output, start_new_session=True
            ) as running,
        ):
            python = ROOT / ".venv" / "bin" / "python"
            watch = subprocess.Popen(
                [python, "-m", "lab", "exec", "lab1", "--", "sh", "-c", until],
                cwd=ROOT,
                env=self.environment,
            )
            deadline, ended = time.monotonic() + DEADLINE_S, False
            while watch.poll() is None and time.monotonic() < deadline:
                if not ended and running.poll() is not None:
                    deadline, ended = time.monotonic() + AFTERWARDS_S, True
                time.sleep(0.01)
            seen = watch.poll() == 0
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
            if not seen:
                # A watcher left behind would kill what a later run does.
                self.on("lab1", f"touch {GIVEN_UP}", None)
            watch.wait()
            output.seek(0)
            printed = output.read()
        assert seen, (
            f"never seen: {condition}; the watch ended with {watch.returncode}, the run with"
            f" {running.returncode} after:\n{end_of(printed)}"
        )
        assert running.returncode, f"the run ended before it was killed: {condition}"

    def state(self, host: str) -> str:
        """A digest of everything that provisioning may touch on a host."""
        places = "/usr/local /opt /etc /var/lib/gpufleet /var/cache/gpufleet"
        return self.on(
            host,
            f"find {places} -not -path '*/__pycache__*' -printf '%p %y %s %l %T@\\n' 2>/dev/null"
            " | sort | sha256sum",
        )


def end_of(output: str) -> str:
    """The last lines of an output, where it says what went wrong."""
    return "\n".join(output.splitlines()[-40:])[-6000:]


def lab(fleet: Fleet, *words: str) -> None:
    """A verb of the lab."""
    fleet.run(ROOT / ".venv" / "bin" / "python", "-m", "lab", *words)


def instance(name: str) -> str:
    """The name of a lab of tests. The same tests may run in another checkout at the same time."""
    checkout = hashlib.sha256(str(ROOT).encode()).hexdigest()[:4]
    # A lab's name has 20 letters at most.
    return f"test-{checkout}-{name}"[:20]


@contextmanager
def fresh(name: str) -> Iterator[Fleet]:
    """A lab with nothing in it before and after, whatever becomes of it meanwhile."""
    made = Fleet(instance(name))
    lab(made, "down")
    try:
        yield made
    finally:
        lab(made, "down")


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Fresh hosts for one module of tests, which may say in `UP` and `ARTIFACTS` what it needs."""
    # Modules whose last words are the same run at the same time, too.
    module = request.module.__name__
    word, number = module.rpartition("_")[2], hashlib.sha256(module.encode()).hexdigest()
    with fresh(f"{word[:5]}-{number[:4]}") as made:
        lab(made, "artifacts", *getattr(request.module, "ARTIFACTS", ()))
        lab(made, "up", *getattr(request.module, "UP", ()))
        yield made
