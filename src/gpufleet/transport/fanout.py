"""The snapshots of all hosts at the same time, by ClusterShell.

One local process per host, each with its own deadline, connecting included. Once the host says
that it is ready, the probe travels on standard input, with the time that is left. What comes back
is a snapshot or the plain reason why there is none, never an exception.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ClusterShell.Event import EventHandler
from ClusterShell.Task import task_self
from ClusterShell.Worker.Popen import PopenClient, WorkerPopen
from ClusterShell.Worker.Worker import WorkerSimple

from gpufleet.inventory import Connection

from . import gateways
from .compression import compressed_field
from .connection import (
    READY,
    command,
    failure_reason,
    password,
    standard_input,
    timeout_reason,
)

# A snapshot is some hundred kilobytes; whoever sends more is not our probe.
MOST_BYTES = 8 << 20
# Of standard error the end is kept: the reason stands there, after banners and warnings.
MOST_WORDS = 32 << 10
# Kept back of what is left for the probe: the snapshot has to be written, and to come here.
RETURN_S, RETURN_SHARE = 5.0, 0.2
_READY_LINE = f"\n{READY}\n".encode()


@dataclass(frozen=True)
class Target:
    """A host to look at, and the probe's configuration for it."""

    connection: Connection
    config: Mapping[str, Any]


@compressed_field("snapshot")
@dataclass(frozen=True)
class Outcome:
    """A snapshot, or why there is none."""

    snapshot: dict[str, Any] | None
    cause: str = ""
    remedy: str = ""
    evidence: str = ""


Report = Callable[[str, Outcome], None]


@dataclass
class _Conversation:
    """What one host has said so far."""

    target: Target
    deadline_s: float
    started: float = 0.0
    # Until it is ready, the end of what it wrote; from then on all of it.
    ready: bool = False
    said: bytearray = field(default_factory=lambda: bytearray(b"\n"))
    complained: bytes = b""
    received: int = 0
    status: int | None = None
    late: bool = False

    @property
    def endless(self) -> bool:
        """Whether it sent more than a snapshot can be."""
        return self.received > MOST_BYTES

    def hear(self, chunk: bytes, complaint: bool) -> bool:
        """Take in what came; True at the moment in which the host is ready."""
        self.received += len(chunk)
        if complaint:
            self.complained = (self.complained + chunk)[-MOST_WORDS:]
            return False
        self.said += chunk
        if self.ready:
            return False
        _, mark, rest = self.said.partition(_READY_LINE)
        self.ready = bool(mark)
        self.said = rest if mark else self.said[-len(_READY_LINE):]
        return self.ready

    def config(self) -> dict[str, Any]:
        """What the probe is told, with how much of the host's time is left."""
        spent = time.monotonic() - self.started if self.started else 0.0
        left = max(0.0, self.deadline_s - spent)
        return {**self.target.config, "deadline_s": left - min(RETURN_S, left * RETURN_SHARE)}

    def probe(self) -> bytes:
        """The probe, as standard input."""
        return standard_input(self.target.connection, self.config())

    def outcome(self) -> Outcome:
        connection = self.target.connection
        words = self.complained.decode("utf-8", "replace")
        if self.endless:
            return Outcome(None, f"{connection.name} sends without end instead of a snapshot",
                           "look at the login's profile files there", words)
        if self.late:
            return Outcome(None, *timeout_reason(connection, self.deadline_s, self.ready), words)
        try:
            # Whatever else was written stands before it.
            snapshot = json.loads(self.said.strip().rpartition(b"\n")[2])
            if snapshot["schema"] and snapshot["sections"]:
                return Outcome({**snapshot, "host": connection.name})
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        return Outcome(None, *failure_reason(connection, self.status, words, self.ready), words)


class _Behind(EventHandler):  # type: ignore[misc]
    """Collects the words of one host behind a gateway; they come line by line."""

    def __init__(self, conversation: _Conversation, report: Callable[[Outcome], None]) -> None:
        super().__init__()
        self.conversation, self.report, self.given_up = conversation, report, False

    def ev_read(self, worker: Any, node: Any, sname: str, msg: bytes) -> None:
        self.conversation.hear(msg + b"\n", sname == worker.SNAME_STDERR)
        if self.conversation.endless:
            worker.abort()

    def ev_hup(self, worker: Any, node: Any, rc: int) -> None:
        self.conversation.status = rc

    def ev_close(self, worker: Any, timedout: bool) -> None:
        said = self.conversation
        said.late = timedout
        outcome = said.outcome()
        arrived = outcome.snapshot or said.ready or timedout or said.endless
        if not arrived and said.status in gateways.NOT_THERE:
            told = gateways.SILENT if self.given_up else gateways.lost(outcome.evidence)
            outcome = Outcome(None, *told, outcome.evidence)
        self.report(outcome)


class _Patience(EventHandler):  # type: ignore[misc]
    """Ends what a gateway has not ended in time: ClusterShell gives its channel no deadline."""

    def __init__(self, workers: list[Any]) -> None:
        super().__init__()
        self.workers = workers

    def ev_timer(self, timer: Any) -> None:
        for worker in self.workers:
            worker.eh.given_up = True
            worker.abort()


class _Client(PopenClient):  # type: ignore[misc]
    """Hands on what arrives as it comes.

    ClusterShell's own would collect a line, and one without an end until there is no memory left.
    """

    def _handle_read(self, sname: str) -> None:
        self.worker.eh.heard(self.worker, self._read(sname), sname == self.worker.SNAME_STDERR)


class _Worker(WorkerPopen):  # type: ignore[misc]
    """A local command that is heard by `_Client`."""

    def __init__(self, line: str, key: str, handler: EventHandler, timeout: float) -> None:
        WorkerSimple.__init__(self, None, None, None, key, handler, stderr=True, timeout=timeout,
                              client_class=_Client)
        self.command, self.key = line, key


class _Listener(EventHandler):  # type: ignore[misc]
    """Collects one host's words; ClusterShell calls it."""

    def __init__(self, conversation: _Conversation, report: Callable[[Outcome], None]) -> None:
        super().__init__()
        self.conversation, self.report = conversation, report

    def ev_start(self, worker: Any) -> None:
        self.conversation.started = time.monotonic()

    def heard(self, worker: Any, chunk: bytes, complaint: bool) -> None:
        """Something arrived."""
        if self.conversation.hear(chunk, complaint):
            worker.write(self.conversation.probe())
            worker.set_write_eof()
        if self.conversation.endless:
            worker.abort()

    def ev_hup(self, worker: Any, node: Any, rc: int) -> None:
        self.conversation.status = rc

    def ev_close(self, worker: Any, timedout: bool) -> None:
        self.conversation.late = timedout
        self.report(self.conversation.outcome())


def probe_targets(
    targets: Iterable[Target], fanout: int = 32, report: Report = lambda name, outcome: None,
    topology: Path | None = None,
) -> dict[str, Outcome]:
    """Each host's outcome by name; `report` hears of each as soon as it is there."""
    outcomes: dict[str, Outcome] = {}

    def arrived(name: str) -> Callable[[Outcome], None]:
        def keep(outcome: Outcome) -> None:
            outcomes[name] = outcome
            report(name, outcome)
        return keep

    task = task_self()
    task.set_info("fanout", fanout)
    task.set_default("stdout_msgtree", False)
    task.set_default("stderr_msgtree", False)
    behind, far = gateways.load(task, topology) if topology else None, []
    for target in targets:
        name = target.connection.name
        conversation = _Conversation(target, target.config["deadline_s"])
        if behind and gateways.is_behind(behind, target.connection):
            if password(target.connection):
                arrived(name)(Outcome(None, *gateways.NO_PASSWORD))
                continue
            far.append(gateways.Worker(
                gateways.node(target.connection), _Behind(conversation, arrived(name)),
                conversation.deadline_s, stderr=True,
                command=gateways.command(target.connection, conversation.config())))
            task.schedule(far[-1])
            continue
        worker = _Worker(
            f"exec {shlex.join(command(target.connection))}", name,
            _Listener(conversation, arrived(name)), conversation.deadline_s)
        task.schedule(worker)
        if password(target.connection):
            worker.write(password(target.connection))
    if far:
        task.timer(gateways.limit_s(len(far), fanout, far[0].timeout), _Patience(far),
                   autoclose=True)
    task.resume()
    return outcomes
