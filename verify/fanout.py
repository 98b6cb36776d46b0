"""The snapshots of all hosts at the same time, by ClusterShell.

One local process per host, each with its own deadline; the probe travels on standard input. What
comes back is a snapshot or the plain reason why there is none, never an exception.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ClusterShell.Event import EventHandler
from ClusterShell.Task import task_self

from .connection import Connection, command, standard_input, why_not

# A snapshot is some hundred kilobytes; whoever sends more is not our probe.
MOST_BYTES = 32 << 20
MOST_WORDS = 100
# Beyond the probe's own deadline: connecting, sudo, the transfer.
GRACE_S = 30


@dataclass(frozen=True)
class Target:
    """A host to look at, and the probe's configuration for it."""

    connection: Connection
    config: Mapping[str, Any]


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
    last_line: bytes = b""
    stderr: list[str] = field(default_factory=list)
    received: int = 0
    status: int | None = None
    late: bool = False

    def outcome(self) -> Outcome:
        connection = self.target.connection
        words = "\n".join(self.stderr)
        if self.received > MOST_BYTES:
            return Outcome(None, f"{connection.name} sends without end instead of a snapshot",
                           "look at the login's profile files there", words)
        if self.late:
            return Outcome(
                None, f"No answer within {self.deadline_s:g} s",
                "look at the host's console, its load and its network mounts", words)
        try:
            snapshot = json.loads(self.last_line)
            if snapshot["schema"] and snapshot["sections"]:
                return Outcome({**snapshot, "host": connection.name})
        except (ValueError, TypeError, KeyError):
            pass
        return Outcome(None, *why_not(connection, self.status, words), words)


class _Listener(EventHandler):  # type: ignore[misc]
    """Collects one host's words; ClusterShell calls it."""

    def __init__(self, conversation: _Conversation, report: Callable[[Outcome], None]) -> None:
        super().__init__()
        self.conversation, self.report = conversation, report

    def ev_read(self, worker: Any, node: Any, sname: str, msg: bytes) -> None:
        said = self.conversation
        flooded = said.received > MOST_BYTES
        said.received += len(msg)
        if flooded:
            return
        if said.received > MOST_BYTES:
            worker.abort()
        elif sname == worker.SNAME_STDERR:
            if len(said.stderr) < MOST_WORDS:
                said.stderr.append(msg.decode("utf-8", "replace"))
        elif msg.strip():
            said.last_line = msg

    def ev_hup(self, worker: Any, node: Any, rc: int) -> None:
        self.conversation.status = rc

    def ev_close(self, worker: Any, timedout: bool) -> None:
        self.conversation.late = timedout
        self.report(self.conversation.outcome())


def look(
    targets: Iterable[Target], fanout: int = 32, report: Report = lambda name, outcome: None
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
    for target in targets:
        name = target.connection.name
        conversation = _Conversation(target, target.config["deadline_s"] + GRACE_S)
        worker = task.shell(
            f"exec {shlex.join(command(target.connection))}",
            key=name,
            handler=_Listener(conversation, arrived(name)),
            stderr=True,
            timeout=conversation.deadline_s,
        )
        worker.write(standard_input(target.connection, target.config))
        worker.set_write_eof()
    task.resume()
    return outcomes
