"""How far a rollout has come: one file, written by rename after each step, and one lock.

The scheduler remembers who drained a node (hooks.py) and hosts remember what was half done there,
so little is left to be kept here: the batches, how they were asked for, and which are done.
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

from gpufleet.errors import ConfigurationError
from gpufleet.inventory import HostSelector
from gpufleet.verification.session import utc_now

from .batches import Batch

SCHEMA = 1
# By which processes of a rollout are told from all others, also once it is dead itself.
TOKEN = "GPUFLEET_ROLLOUT"


@dataclass
class Progress:
    """A rollout: what was asked for, and what is done. `status`: running, stopped, done."""

    question: dict[str, Any]
    settings: dict[str, Any]
    batches: list[Batch]
    done: int = 0
    step: str = ""
    status: str = "running"
    why: str = ""
    started: str = field(default_factory=utc_now)
    # Hosts that others had taken out of service and that are not healthy: why.
    left: dict[str, str] = field(default_factory=dict)

    @property
    def asked(self) -> HostSelector:
        """The question by which its hosts are found again."""
        return HostSelector(**self.question)

    @property
    def told(self) -> str:
        """In one sentence."""
        hosts = sum(len(batch.hosts) for batch in self.batches)
        finished = sum(len(batch.hosts) for batch in self.batches[: self.done])
        why = f": {self.why}" if self.why else ""
        return (f"rollout of {self.started}: {finished} of {hosts} hosts are done, in {self.done}"
                f" of {len(self.batches)} batches; {self.status}{why}")


@dataclass(frozen=True)
class Store:
    """The directory in which it is kept."""

    directory: Path

    @property
    def file(self) -> Path:
        """The document; readable by its owner alone, since options may hold secrets."""
        return self.directory / "rollout.json"

    def load(self) -> Progress | None:
        """The last one, or None; raises `ConfigurationError` for one that cannot be read."""
        try:
            document = json.loads(self.file.read_text(encoding="utf-8"))
            if document.pop("schema") != SCHEMA:
                raise ValueError("it was written by another release")
            made = Progress(**document)
            made.batches = [Batch(row["name"], tuple(row["hosts"])) for row in document["batches"]]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(
                f"What is noted of the last rollout cannot be read ({error}).", str(self.file),
                "See who is drained still, and move the file away.") from error
        return made

    def save(self, progress: Progress) -> None:
        """Note it, all or nothing."""
        partial = self.file.with_name(f".{self.file.name}.partial")
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            json.dump({"schema": SCHEMA, **asdict(progress)}, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        partial.replace(self.file)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One rollout at a time; raises `ConfigurationError` where there is one."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    "A rollout is at work, and there is one at a time.", str(self.directory),
                    "Wait for its end.") from None
            yield


def left_behind(started: str) -> list[int]:
    """Playbooks that a killed rollout has left running: they outlive who started them."""
    wanted, found = f"{TOKEN}={started}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if b"ansible-playbook" in (entry / "cmdline").read_bytes() and (
                    wanted in (entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
        except OSError:
            continue  # gone meanwhile, or another user's
    return found


def outlived(started: str, told: Callable[[str], None]) -> None:
    """Wait until nothing of a killed rollout runs, and mark what this one starts."""
    told_of: Sequence[int] = ()
    while running := left_behind(started):
        if running != told_of:
            told_of = running
            told("The run before was killed, and its playbook still works on hosts; waiting for"
                 f" its end (process {', '.join(map(str, running))})")
        time.sleep(1)
    os.environ[TOKEN] = started
