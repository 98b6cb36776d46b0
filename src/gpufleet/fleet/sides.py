"""Sides: a program on each of some hosts at the same time, which hand each other messages.

The hosts are connected to the control machine only: each side's message goes to all sides as soon
as all have sent theirs. How a side ends is recorded, also where it cannot say so itself. A side
ends with its standard input, at its own deadline, or by its kernel's alarm
(`workload/rendezvous.py`).
"""

from __future__ import annotations

import json
import shlex
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ClusterShell.Event import EventHandler
from ClusterShell.Task import task_self

from gpufleet.documents import received
from gpufleet.documents.validator import faults
from gpufleet.fleet.inventory import Connection
from gpufleet.fleet.transport.connection import (
    NO_PYTHON,
    READY,
    SUDO_REFUSED,
    command,
    failure_reason,
    with_password,
)
from gpufleet.on_host import payload

# As in workload/rendezvous.py.
MARK = b"gpufleet-pair: "
FINAL = {"ok", "failed", "lost", "hung", "stopped", "unconnected"}
MOST_BYTES = 4 << 20
SSH_FAILED = 255
# A text of JAX before it aborts a process whose coordinator is gone (0.5.3, 0.10.2).
OTHER_GONE = "another task died"
WHO_KILLED = (
    "see in the kernel log what killed it, such as a lack of memory: dmesg -T | grep -i kill"
)
# Beyond the side's own deadline, at which the host's kernel has ended it.
GRACE_S = 5
# Reads a program by its length, and not a byte more: what follows on standard input is for the next
# program, or for this one.
READER = """\
import sys
given, text = open(0, "rb", 0, closefd=False), b""
size = int(given.readline())
while len(text) < size:
    text += given.read(size - len(text)) or sys.exit("standard input ended")
exec(text.decode())
"""


@dataclass
class Side:
    """The messages and the output of one host of a run so far."""

    connection: Connection
    python: str
    deadline_s: float
    # The document of a side that reported nothing, and the type of its messages.
    empty: Mapping[str, Any]
    message: type
    worker: Any = None
    messages: list[Any] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)
    output: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    received: int = 0
    status: int | None = None
    late: bool = False
    # Why a message of it may not be read.
    refused: str = ""
    begin: float = field(default_factory=time.monotonic)

    @property
    def finished(self) -> bool:
        """True if the side has reported how it ended."""
        return self.document.get("state") in FINAL

    def outcome(self) -> dict[str, Any]:
        """Its last document; if it did not report its end, with the reason of its end."""
        if self.finished and not self.refused:
            ended = dict(self.document)
            return {**ended, "remedy": WHO_KILLED} if ended.get("killed") else ended
        output = "\n".join(self.output)
        name = self.connection.name
        found = {**self.empty, **self.document}
        if self.refused:
            return {
                **found,
                "state": "failed",
                "error": f"{name} sent a message that is not read: {self.refused}",
                "remedy": received.REMEDY,
            }
        if self.received > MOST_BYTES:
            return {**found, "state": "failed", "error": f"{name} sends endless output"}
        if self.late:
            return {**found, "state": "hung", "error": f"no answer within {self.deadline_s:g} s"}
        if self.status == NO_PYTHON:
            return {**found, "state": "absent", "error": f"{self.python} was not found"}
        if not self.document and self.status in {None, SUDO_REFUSED, SSH_FAILED}:
            cause, remedy = failure_reason(self.connection, self.status, output)
            return {**found, "state": "silent", "error": cause, "remedy": remedy}
        tail = output[-400:].strip() or "it wrote nothing"
        if OTHER_GONE in output:
            return {**found, "state": "lost", "error": tail}
        if self.status == 128 + signal.SIGKILL:
            return {
                **found,
                "state": "failed",
                "error": "it was killed (SIGKILL)",
                "remedy": WHO_KILLED,
            }
        return {**found, "state": "failed", "error": f"it ended with status {self.status}: {tail}"}


class Exchange:
    """Some sides at the same time: exchanges their messages, and stops all when one has ended."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self.sides, self.exchanged = sides, 0

    def start_all(self, task: Any) -> None:
        """Schedule the commands of all sides, each by `start`."""
        raise NotImplementedError

    def start(self, task: Any, side: Side, text: bytes) -> None:
        """Schedule a side's command; `text` are its programs (see `READER`)."""
        reader = (
            f"env -i PATH=/usr/bin:/bin {shlex.quote(side.connection.python)}"
            f" -I -S -c {shlex.quote(READER)}"
        )
        # By a shell that stays: it says which signal ended its command, ssh does not.
        run = f"/bin/sh -c {shlex.quote(f'{reader}; exit $?')}"
        side.worker = task.shell(
            f"exec {shlex.join(command(side.connection, run))}",
            key=side.connection.name,
            handler=_SideHandler(self, side),
            stderr=True,
            timeout=side.deadline_s + GRACE_S,
        )
        side.worker.write(with_password(side.connection, text))

    def received(self, side: Side) -> None:
        """A side sent a message: once all have, send all messages to all."""
        if side.finished:
            # Its command may still wait for standard input (for sudo's password).
            side.worker.set_write_eof()
        if all(len(one.messages) > self.exchanged for one in self.sides):
            line = json.dumps([one.messages[self.exchanged] for one in self.sides])
            self.exchanged += 1
            for one in self.sides:
                one.worker.write(f"{line}\n".encode())

    def ended(self, side: Side) -> None:
        """A side ended: stop the others, unless it ends at its own deadline."""
        if side.document.get("state") not in {"ok", "hung", "unconnected"} and not side.late:
            for one in self.sides:
                one.worker.set_write_eof()


def run_together(exchanges: Sequence[Exchange]) -> None:
    """Run all sides of these exchanges at the same time: else no exchange ends."""
    task = task_self()
    task.set_default("stdout_msgtree", False)
    task.set_default("stderr_msgtree", False)
    task.set_info("fanout", sum(len(exchange.sides) for exchange in exchanges) or 1)
    for exchange in exchanges:
        exchange.start_all(task)
    task.resume()


def gate(python: str | None, code: Sequence[str] = ()) -> bytes:
    """The first program of a side: it becomes the stack's interpreter, as root only if root may.

    None: it stays the interpreter that runs it. `code`: what is loaded besides, as for
    `trust.account_for`.
    """
    config = {
        "argv": [python, "-I", "-c", READER],
        "absent": NO_PYTHON,
        "code": list(code),
    }
    return framed(config, payload.as_owner())


def framed(config: Mapping[str, Any], program: str) -> bytes:
    text = f"CONFIG = {json.dumps(config)!r}\n{program}".encode()
    return b"%d\n%s" % (len(text), text)


class _SideHandler(EventHandler):  # type: ignore[misc]
    """Collects the messages and the output of one side."""

    def __init__(self, run: Exchange, side: Side) -> None:
        super().__init__()
        self.run, self.side = run, side

    def ev_read(self, worker: Any, node: Any, sname: str, msg: bytes) -> None:
        side = self.side
        side.received += len(msg)
        if side.received > MOST_BYTES:
            worker.abort()
        elif msg.startswith(MARK):
            try:
                line = received.document(msg[len(MARK) :], "message")
            except received.UnfitError as error:
                self.refuse(str(error))
                return
            except ValueError:
                return
            if wrong := faults(side.message, line, "message"):
                self.refuse(wrong[0])
                return
            side.document = line["document"]
            side.document.pop("remedy", None)  # what to do is never a host's own word
            if line["said"] is not None:
                side.messages.append(line["said"])
            self.run.received(side)
        elif msg.strip() not in {b"", READY.encode()}:
            side.output.append(received.output(msg))

    def refuse(self, why: str) -> None:
        """End a side whose message may not be read; what it sent before stands."""
        self.side.refused = why
        self.side.worker.abort()

    def ev_hup(self, worker: Any, node: Any, rc: int) -> None:
        self.side.status = rc

    def ev_close(self, worker: Any, timedout: bool) -> None:
        late = time.monotonic() - self.side.begin >= self.side.deadline_s
        self.side.late = timedout or late
        self.run.ended(self.side)
