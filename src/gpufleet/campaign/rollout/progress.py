"""A rollout's progress: one file, written by rename after each step, and one lock.

The scheduler remembers who drained a node (schedulers.py), and hosts keep a journal of unfinished
installations. So the file holds only the batches, the options, and how many batches are done.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpufleet.documents.clock import utc_now
from gpufleet.errors import ConfigurationError
from gpufleet.files import open_lock
from gpufleet.fleet.inventory import HostSelector

from .batches import Batch

SCHEMA = 1
# Environment variable that marks a rollout's processes, also after the rollout itself has died.
TOKEN = "GPUFLEET_ROLLOUT"


@dataclass
class Progress:
    """A rollout: its options, and what is done. `status`: running, stopped, done, abandoned.

    The names of the fields are the keys of `rollout.json`; `question` is its `HostSelector`.
    """

    question: dict[str, Any]
    settings: dict[str, Any]
    batches: list[Batch]
    done: int = 0
    step: str = ""
    status: str = "running"
    why: str = ""
    started: str = field(default_factory=utc_now)
    # Unhealthy hosts that were out of service before, not by gpufleet: {host: why}.
    left: dict[str, str] = field(default_factory=dict)

    @property
    def selector(self) -> HostSelector:
        """The selector that finds its hosts again."""
        return HostSelector(**self.question)

    @property
    def summary(self) -> str:
        """Its progress in one sentence."""
        hosts = sum(len(batch.hosts) for batch in self.batches)
        finished = sum(len(batch.hosts) for batch in self.batches[: self.done])
        why = f": {self.why}" if self.why else ""
        return (
            f"rollout of {self.started}: {finished} of {hosts} hosts are done, in {self.done}"
            f" of {len(self.batches)} batches; {self.status}{why}"
        )


@dataclass(frozen=True)
class Store:
    """The directory that holds a rollout's file and lock."""

    directory: Path

    @property
    def file(self) -> Path:
        """The document; readable by its owner only, since options may hold secrets."""
        return self.directory / "rollout.json"

    def load(self) -> Progress | None:
        """Return the last rollout, or None; `ConfigurationError` if the file cannot be read."""
        try:
            document = json.loads(self.file.read_text(encoding="utf-8"))
            if document.pop("schema") != SCHEMA:
                raise ValueError("it was written by another release")
            progress = Progress(**document)
            progress.batches = [
                Batch(row["name"], tuple(row["hosts"])) for row in document["batches"]
            ]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(
                f"The state of the last rollout cannot be read ({error}).",
                str(self.file),
                "Check which hosts are still drained, then move the file away.",
            ) from error
        return progress

    def save(self, progress: Progress) -> None:
        """Write the document, all or nothing."""
        partial = self.file.with_name(f".{self.file.name}.partial")
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            json.dump({"schema": SCHEMA, **asdict(progress)}, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        partial.replace(self.file)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of this directory; `ConfigurationError` while another rollout runs."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with open_lock(self.directory / "lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    "A rollout is running, and only one can run at a time.",
                    str(self.directory),
                    "Wait until it ends.",
                ) from None
            yield


def left_behind(started: str) -> list[int]:
    """Return the process ids of playbooks that a killed rollout has left running."""
    wanted, found = f"{TOKEN}={started}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if b"ansible-playbook" in (entry / "cmdline").read_bytes() and (
                wanted in (entry / "environ").read_bytes().split(b"\0")
            ):
                found.append(int(entry.name))
        except OSError:
            continue  # ended meanwhile, or another user's
    return found


def wait_for_leftovers(started: str, log: Callable[[str], None]) -> None:
    """Wait until no playbook of a killed rollout runs, and mark what this one starts."""
    logged: Sequence[int] = ()
    while running := left_behind(started):
        if running != logged:
            logged = running
            log(
                "The previous run was killed, but its playbook still runs; waiting until it ends"
                f" (process {', '.join(map(str, running))})"
            )
        time.sleep(1)
    os.environ[TOKEN] = started
