"""Probe all hosts in parallel by ClusterShell.

One local process per host, each with its own deadline, which includes the connection. When the host
is ready, it receives the probe on standard input, with the time that is left. The result is a
snapshot or the reason why there is none, never an exception.

Starts processes (ssh, sh, srun) and reads their output; writes no file.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ClusterShell.Event import EventHandler
from ClusterShell.Task import task_self
from ClusterShell.Worker.EngineClient import E_READ, E_WRITE
from ClusterShell.Worker.Popen import PopenClient, WorkerPopen
from ClusterShell.Worker.Worker import WorkerSimple

from gpufleet.documents import clock, received
from gpufleet.documents.snapshot import Snapshot
from gpufleet.fleet.inventory import Connection

from . import gateways
from .compression import compressed_field
from .connection import READY, command, failure_reason, password, standard_input, timeout_reason

# More output is not from the probe.
MOST_BYTES = received.MOST_BYTES
# The end of standard error is kept: it has the reason, after banners and warnings.
MOST_STDERR_BYTES = 32 << 10
# Reserved from the remaining time to start the probe, and to write and transfer the snapshot: a
# busy host takes seconds for each, and one section that hangs lasts until the probe's deadline.
RETURN_S, RETURN_SHARE = 10.0, 0.25
TIMES: Final = ("started", "finished")
_READY_LINE = f"\n{READY}\n".encode()


@dataclass(frozen=True)
class Target:
    """A host to probe, and the probe's configuration for it."""

    connection: Connection
    config: Mapping[str, Any]


@compressed_field("snapshot")
@dataclass(frozen=True)
class Outcome:
    """A snapshot, or cause, remedy and evidence of why there is none.

    `refused`: the host was reached, and what it sent may not be read. `answer`: the host's answer
    to the challenge, which is no part of the snapshot: no document tells it to another host.
    """

    snapshot: Snapshot | None
    cause: str = ""
    remedy: str = ""
    evidence: str = ""
    refused: bool = False
    answer: str | None = None


Report = Callable[[str, Outcome], None]
# Receives an outcome with a snapshot, and the snapshot, which nobody has to decompress here.
Arrived = Callable[[Outcome, Snapshot], None]


@dataclass
class _HostOutput:
    """The output of one host so far."""

    target: Target
    deadline_s: float
    arrived: Arrived = lambda outcome, snapshot: None
    started: float = 0.0
    # When the probe was sent, or earlier.
    sent: clock.Moment = field(default_factory=clock.Moment)
    # Until the host is ready, the end of its output; from then on all of it.
    ready: bool = False
    stdout: bytearray = field(default_factory=lambda: bytearray(b"\n"))
    stderr: bytes = b""
    received: int = 0
    status: int | None = None
    late: bool = False

    @property
    def endless(self) -> bool:
        """True if the host sent more than a snapshot can have."""
        return self.received > MOST_BYTES

    def receive(self, chunk: bytes, is_stderr: bool) -> bool:
        """Add output; True when it makes the host ready."""
        self.received += len(chunk)
        if is_stderr:
            self.stderr = (self.stderr + chunk)[-MOST_STDERR_BYTES:]
            return False
        self.stdout += chunk
        if self.ready:
            return False
        _, mark, rest = self.stdout.partition(_READY_LINE)
        self.ready = bool(mark)
        self.stdout = rest if mark else self.stdout[-len(_READY_LINE) :]
        return self.ready

    def config(self) -> dict[str, Any]:
        """The probe's configuration, with the time that is left as its deadline."""
        spent = time.monotonic() - self.started if self.started else 0.0
        left = max(0.0, self.deadline_s - spent)
        return {**self.target.config, "deadline_s": left - min(RETURN_S, left * RETURN_SHARE)}

    def probe(self) -> bytes:
        """The probe, as standard input, which is sent now."""
        self.sent = clock.Moment()
        return standard_input(self.target.connection, self.config())

    def outcome(self) -> Outcome:
        """The snapshot in the output, or why there is none."""
        connection = self.target.connection
        stderr = received.output(self.stderr)
        # The snapshot is the last line, after any other output.
        line = bytes(self.stdout.strip().rpartition(b"\n")[2])
        self.stdout.clear()
        if self.endless:
            return Outcome(
                None,
                f"{connection.name} sends endless output instead of a snapshot",
                "check the profile files of the login user's shell",
                stderr,
            )
        if self.late:
            return Outcome(None, *timeout_reason(connection, self.deadline_s, self.ready), stderr)
        try:
            document = received.parsed(line, "snapshot") if line.startswith(b"{") else None
            answer = received.answer_in(document)
            if found := received.snapshot_in(document, connection.name):
                outcome = Outcome(_by_own_clock(found, self.sent), answer=answer)
                self.arrived(outcome, found)
                return outcome
        except received.UnfitError as error:
            return Outcome(
                None,
                f"{connection.name} sent a snapshot that is not read: {error}",
                received.REMEDY,
                stderr,
                refused=True,
            )
        except ValueError:
            pass
        return Outcome(None, *failure_reason(connection, self.status, stderr, self.ready), stderr)


def _by_own_clock(found: Snapshot, sent: clock.Moment) -> Snapshot:
    """The snapshot; where the host's clock is wrong, with that and this machine's times.

    Raises `received.UnfitError` where it has no times: each probe writes them.
    """
    # A host's own word for it is not read.
    found.pop("clock_offset_s", None)
    earliest, latest = sent.until_now()
    try:
        off = clock.offset((clock.read(found[key]) for key in TIMES), earliest, latest)
    except (KeyError, ValueError):
        named = " and ".join(f"snapshot.{name}" for name in TIMES)
        raise received.UnfitError(f"{named} should be times") from None
    if off:
        found["clock_offset_s"] = off.total_seconds()
        found["started"], found["finished"] = (
            f"{each:{clock.FORM}}" for each in (earliest, latest)
        )
    return found


class _GatewayHandler(EventHandler):  # type: ignore[misc]
    """Collects the output of one host behind a gateway, line by line."""

    def __init__(self, output: _HostOutput, report: Callable[[Outcome], None]) -> None:
        super().__init__()
        self.output, self.report, self.given_up = output, report, False
        # By the channel: why what the gateway sent is not accepted.
        self.refused = ""

    def ev_read(self, worker: Any, node: Any, sname: str, msg: bytes) -> None:
        if self.output.endless:
            return  # what the gateway sends after it was asked to stop
        self.output.receive(msg + b"\n", sname == worker.SNAME_STDERR)
        if self.output.endless:
            worker.abort()

    def ev_hup(self, worker: Any, node: Any, rc: int) -> None:
        self.output.status = rc

    def ev_close(self, worker: Any, timedout: bool) -> None:
        output = self.output
        output.late = timedout
        outcome = output.outcome()
        reached = outcome.snapshot or output.ready or timedout or output.endless
        if self.refused and not outcome.snapshot:
            outcome = Outcome(None, *gateways.refused_reason(self.refused), outcome.evidence)
        elif not reached and output.status in gateways.NOT_REACHED:
            reason = (
                gateways.NO_ANSWER
                if self.given_up
                else gateways.unreachable_reason(outcome.evidence)
            )
            outcome = Outcome(None, *reason, outcome.evidence)
        self.report(outcome)


class _GatewayTimeout(EventHandler):  # type: ignore[misc]
    """Aborts the workers of a gateway that hangs: ClusterShell has no deadline for its channel."""

    def __init__(self, workers: list[Any]) -> None:
        super().__init__()
        self.workers = workers

    def ev_timer(self, timer: Any) -> None:
        for worker in self.workers:
            worker.eh.given_up = True
            worker.abort()


class _ChunkClient(PopenClient):  # type: ignore[misc]
    """Passes on output in chunks.

    ClusterShell's own client collects a whole line; an endless line would fill the memory. It also
    starts each command by a fork, which takes this large process milliseconds.
    """

    def _exec_nonblock(self, commandlist: str, shell: bool = False, env: Any = None) -> Any:
        names = (self.worker.SNAME_STDIN, self.worker.SNAME_STDOUT, self.worker.SNAME_STDERR)
        pipes = [os.pipe() for _ in names]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", commandlist], stdin=theirs[0], stdout=theirs[1], stderr=theirs[2]
            )
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        for name, descriptor in zip(names, (pipes[0][1], pipes[1][0], pipes[2][0]), strict=True):
            os.set_blocking(descriptor, False)
            writes = name == names[0]
            self.streams.set_stream(
                name, descriptor, E_WRITE if writes else E_READ, retain=not writes
            )
        return process

    def _handle_read(self, sname: str) -> None:
        self.worker.eh.received(self.worker, self._read(sname), sname == self.worker.SNAME_STDERR)


class _Worker(WorkerPopen):  # type: ignore[misc]
    """A local command that is read by `_ChunkClient`."""

    def __init__(self, line: str, key: str, handler: EventHandler, timeout: float) -> None:
        WorkerSimple.__init__(
            self,
            None,
            None,
            None,
            key,
            handler,
            stderr=True,
            timeout=timeout,
            client_class=_ChunkClient,
        )
        self.command, self.key = line, key


class _HostHandler(EventHandler):  # type: ignore[misc]
    """Collects the output of one host, and sends the probe when it is ready."""

    def __init__(self, output: _HostOutput, report: Callable[[Outcome], None]) -> None:
        super().__init__()
        self.output, self.report = output, report

    def ev_start(self, worker: Any) -> None:
        self.output.started = time.monotonic()

    def received(self, worker: Any, chunk: bytes, is_stderr: bool) -> None:
        """Called by `_ChunkClient` with each chunk of output."""
        if self.output.receive(chunk, is_stderr):
            worker.write(self.output.probe())
            worker.set_write_eof()
        if self.output.endless:
            worker.abort()

    def ev_hup(self, worker: Any, node: Any, rc: int) -> None:
        self.output.status = rc

    def ev_close(self, worker: Any, timedout: bool) -> None:
        self.output.late = timedout
        self.report(self.output.outcome())


def probe_targets(
    targets: Iterable[Target],
    fanout: int = 32,
    report: Report = lambda name, outcome: None,
    topology: Path | None = None,
    arrived: Arrived = lambda outcome, snapshot: None,
) -> dict[str, Outcome]:
    """Probe all targets; {name: outcome}. `report` is called with each outcome as it arrives.

    `topology` is ClusterShell's topology.conf of the gateways. `arrived` is called with each
    snapshot before it is reported, while the others are probed.
    """
    outcomes: dict[str, Outcome] = {}

    def recorder(name: str) -> Callable[[Outcome], None]:
        def record(outcome: Outcome) -> None:
            outcomes[name] = outcome
            report(name, outcome)

        return record

    task = task_self()
    task.set_info("fanout", fanout)
    task.set_default("stdout_msgtree", False)
    task.set_default("stderr_msgtree", False)
    behind = gateways.load_topology(task, topology) if topology else None
    gateway_workers: list[gateways.Worker] = []
    for target in targets:
        name = target.connection.name
        output = _HostOutput(target, target.config["deadline_s"], arrived)
        if behind and gateways.is_behind(behind, target.connection):
            if password(target.connection):
                recorder(name)(Outcome(None, *gateways.NO_PASSWORD))
                continue
            gateway_workers.append(
                gateways.Worker(
                    gateways.node(target.connection),
                    _GatewayHandler(output, recorder(name)),
                    output.deadline_s,
                    stderr=True,
                    command=gateways.command(target.connection, output.config()),
                )
            )
            task.schedule(gateway_workers[-1])
            continue
        worker = _Worker(
            f"exec {shlex.join(command(target.connection))}",
            name,
            _HostHandler(output, recorder(name)),
            output.deadline_s,
        )
        task.schedule(worker)
        if password(target.connection):
            worker.write(password(target.connection))
    if gateway_workers:
        limit_s = gateways.limit_s(len(gateway_workers), fanout, gateway_workers[0].timeout)
        task.timer(limit_s, _GatewayTimeout(gateway_workers), autoclose=True)
    task.resume()
    return outcomes
