"""Distributed TensorFlow between two hosts: which pairs, their meetings, what is known afterwards.

`distributed.py` runs on both hosts at the same time over the connections of the fan-out; here each
side's words are handed to the other, and nothing else is done between them. What both said becomes
part of their snapshots (`pairs`), what was asked part of their plans, and `checks/pair.py` judges
the two like everything else.
"""

from __future__ import annotations

import json
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from ClusterShell.Event import EventHandler
from ClusterShell.Task import task_self

from gpufleet.errors import ConfigurationError
from gpufleet.inventory import Connection, InventoryHost
from gpufleet.probe import payload
from gpufleet.transport.connection import (
    NO_PYTHON,
    SUDO_REFUSED,
    command,
    failure_reason,
    with_password,
)

# As distributed.py has them.
MARK = b"gpufleet-pair: "
FINAL = {"ok", "failed", "lost", "hung", "stopped", "unconnected"}
KINDS = ("parameter-server", "all-reduce", "nccl")
MOST_BYTES = 4 << 20
SSH_FAILED = 255
# Beyond the side's own deadline, after which its host's kernel has ended it.
GRACE_S = 5
# A side reads its program by length, since the rest of standard input are its answers.
READER = "import sys; i = sys.stdin.buffer; exec(i.read(int(i.readline())).decode())"

Notify = Callable[[str], None]


@dataclass(frozen=True)
class PairOptions:
    """What the command line asks for: pairs by name, or a ring of all, in which stack."""

    pairs: Sequence[str] = ()
    ring: bool = False
    stack: str | None = None


NO_PAIRS = PairOptions()


@dataclass(frozen=True)
class Stack:
    """A release that both hosts of a pair have: by which name on each, and where."""

    release: str
    names: tuple[str, str]
    venvs: tuple[str, str]


@dataclass(frozen=True)
class Pair:
    """Two hosts and what is to run between them."""

    hosts: tuple[InventoryHost, InventoryHost]
    stacks: tuple[Stack, ...]

    @property
    def names(self) -> tuple[str, str]:
        """Their names in the inventory."""
        return self.hosts[0].name, self.hosts[1].name

    @property
    def gpus(self) -> tuple[int | None, int | None]:
        """How many GPUs each is declared to have."""
        return declared_gpus(self.hosts[0]), declared_gpus(self.hosts[1])

    @property
    def least(self) -> int | None:
        """How many of them both have."""
        first, second = self.gpus
        return None if first is None or second is None else min(first, second)


@dataclass(frozen=True)
class Job:
    """One kind of run of one stack between two hosts."""

    kind: str
    pair: Pair
    stack: Stack


def declared_gpus(host: InventoryHost) -> int | None:
    """`gpu_expect.count`, if it is said."""
    expect = host.variables.get("gpu_expect")
    count = expect.get("count") if isinstance(expect, dict) else None
    return count if isinstance(count, int) else None


# -- what is asked ---------------------------------------------------------------------------------


def pairs_of(hosts: Sequence[InventoryHost], asked: PairOptions) -> list[Pair]:
    """The pairs, or a `ConfigurationError` before anything starts."""
    known = {host.name: host for host in hosts}
    found: dict[frozenset[str], Pair] = {}
    for words, where in _named(list(known), asked):
        for name in words:
            if name not in known:
                raise ConfigurationError(
                    f"{name} is not among the hosts of this run.", where,
                    f"They are {', '.join(known)}: correct the name, or --limit.")
        if len(words) != 2 or words[0] == words[1]:
            raise ConfigurationError(
                "A pair is two different hosts.", where, "Say --pair HOST,OTHER.")
        first, second = (known[name] for name in words)
        for host in (first, second):
            address_of(host)
        found.setdefault(
            frozenset(words), Pair((first, second), _common(first, second, asked.stack, where)))
    return list(found.values())


def _named(names: list[str], asked: PairOptions) -> Iterator[tuple[list[str], str]]:
    for text in asked.pairs:
        yield [name.strip() for name in text.split(",") if name.strip()], f"--pair {text}"
    if asked.ring:
        if len(names) < 2:
            raise ConfigurationError(
                f"A ring needs two hosts; this run has {', '.join(names)} alone.", "--pairs",
                "Widen --limit.")
        for first, second in pairwise([*names, names[0]]):
            yield [first, second], "--pairs"
    if asked.stack and not asked.pairs and not asked.ring:
        raise ConfigurationError("It says in what, but not between which hosts.", "--pair-stack",
                                 "Add --pair HOST,OTHER or --pairs.")


def address_of(host: InventoryHost) -> str:
    """Where the other host reaches this one."""
    said = host.variables.get("gpu_pair_address")
    if said is not None and not (isinstance(said, str) and said.strip()):
        raise ConfigurationError(
            f"It is {said!r}, not an address.", f"{host.name}: gpu_pair_address",
            "Name one that other hosts can reach, in quotes.")
    if said:
        return said
    if host.connection.kind == "local":
        raise ConfigurationError(
            "Other hosts cannot reach it by the connection 'local'.", host.name,
            "Set gpu_pair_address to an address of this machine that they can reach.")
    return host.connection.address or host.name


def _common(
    first: InventoryHost, second: InventoryHost, name: str | None, where: str
) -> tuple[Stack, ...]:
    from gpufleet import resolver  # noqa: PLC0415 (as in session.py)  # noqa: PLC0415 (as in session.py)

    mine, theirs = (
        [row for row in resolver.resolve(host.variables, None, host.name)["stacks"]
         if name in {None, row["name"]}]
        for host in (first, second)
    )
    found: dict[str, Stack] = {}
    for row in mine:
        same = [other for other in theirs if other["version"] == row["version"]]
        same.sort(key=lambda other: other["name"] != row["name"])
        if same:
            found.setdefault(row["version"], Stack(
                row["version"], (row["name"], same[0]["name"]), (row["venv"], same[0]["venv"])))
    if not found:
        have = "; ".join(
            f"{host.name}: {', '.join(row['name'] for row in rows) or 'none'}"
            for host, rows in ((first, mine), (second, theirs)))
        raise ConfigurationError(
            f"{first.name} and {second.name} have no stack"
            f" {name + ' ' if name else ''}of the same TensorFlow release ({have}).",
            where, "Declare one for both in gpu_stacks.")
    return tuple(found.values())


def jobs_of(pairs: Iterable[Pair]) -> list[Job]:
    """What can run between them; what cannot is excused by the checks themselves."""
    return [
        Job(kind, pair, stack)
        for pair in pairs
        for stack in pair.stacks
        for kind in KINDS
        if kind == "parameter-server"
        or (not stack.release.startswith("1.") and (kind == "all-reduce" or all(pair.gpus)))
    ]


def rounds(jobs: Sequence[Job], most: int) -> Iterator[list[Job]]:
    """Batches of `most` hosts at the same time (but 2 at least), none of which meets two others."""
    rest = list(jobs)
    while rest:
        batch: list[Job] = []
        taken: set[str] = set()
        for job in rest:
            if not taken & set(job.pair.names) and len(taken) + 2 <= max(2, most):
                batch.append(job)
                taken |= set(job.pair.names)
        rest = [job for job in rest if job not in batch]
        yield batch


# -- a meeting -------------------------------------------------------------------------------------


@dataclass
class _Side:
    """What one host of a meeting has said so far."""

    connection: Connection
    deadline_s: float
    worker: Any = None
    said: list[Any] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)
    words: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    received: int = 0
    status: int | None = None
    late: bool = False
    begin: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        return self.document.get("state") in FINAL

    def outcome(self) -> dict[str, Any]:
        """Its last document; where it could not say its last word, what is known of its end."""
        if self.over:
            return self.document
        words = "\n".join(self.words)
        name, stage = self.connection.name, self.document.get("stage", "starting")
        found = {**SILENT, **self.document, "remedy": "look at the host's load and kernel log"}
        if self.received > MOST_BYTES:
            return {**found, "state": "failed", "error": f"{name} sends without end"}
        if self.late:
            return {**found, "state": "hung", "error": f"no answer within {self.deadline_s:g} s"}
        if self.status == NO_PYTHON:
            return {**found, "state": "absent", "error": f"there is no {self.connection.python}"}
        if not self.document and self.status in {None, SUDO_REFUSED, SSH_FAILED}:
            cause, remedy = failure_reason(self.connection, self.status, words)
            return {**found, "state": "silent", "error": cause, "remedy": remedy}
        return {**found, "state": "failed",
                "error": f"it died while {stage} (status {self.status}): {words[-400:].strip()}"}


# The keys of a side that said nothing.
SILENT: dict[str, Any] = {
    "state": "silent", "stage": "starting", "error": None, "version": None, "device": None,
    "ports": [], "reach": [], "variables": [], "products": [], "sum": None, "communication": None,
    "in_sync": None, "replicas": [], "nccl": [], "seconds": None,
}


class _Meeting:
    """Hands what both sides said to both, and tells one when the other has ended."""

    def __init__(self, job: Job, deadline_s: float) -> None:
        self.job, self.handed = job, 0
        self.sides = [
            _Side(replace(host.connection, python=f"{venv}/bin/python"), deadline_s)
            for host, venv in zip(job.pair.hosts, job.stack.venvs, strict=True)
        ]

    def start(self, task: Any) -> None:
        """Have both sides' commands ready to run."""
        pair = self.job.pair
        addresses = [address_of(host) for host in pair.hosts]
        gpus = pair.gpus if self.job.kind == "parameter-server" else (pair.least, pair.least)
        for index, side in enumerate(self.sides):
            config = {
                "kind": self.job.kind, "index": index, "addresses": addresses,
                "gpus": gpus[index], "deadline_s": side.deadline_s}
            run = (f"env -i PATH=/usr/bin:/bin {shlex.quote(side.connection.python)}"
                   f" -I -c {shlex.quote(READER)}")
            side.worker = task.shell(
                f"exec {shlex.join(command(side.connection, run))}", key=side.connection.name,
                handler=_Listener(self, side), stderr=True, timeout=side.deadline_s + GRACE_S)
            side.worker.write(with_password(side.connection, program(config)))

    def heard(self, side: _Side) -> None:
        """One said something: if both have, each gets to know it."""
        if side.over:
            # Its command may still wait for standard input (for sudo's password).
            side.worker.set_write_eof()
        if all(len(each.said) > self.handed for each in self.sides):
            both = json.dumps([each.said[self.handed] for each in self.sides])
            self.handed += 1
            for each in self.sides:
                each.worker.write(f"{both}\n".encode())

    def ended(self, side: _Side) -> None:
        """One is gone: the other waits for nobody, but for its own deadline."""
        if side.document.get("state") not in {"ok", "hung", "unconnected"} and not side.late:
            for each in self.sides:
                each.worker.set_write_eof()

    def record(self) -> dict[str, Any]:
        """The meeting as it stands in the snapshots of both hosts."""
        pair = self.job.pair
        return {"kind": self.job.kind, "release": self.job.stack.release,
                "hosts": list(pair.names), "stacks": list(self.job.stack.names),
                "gpus": list(pair.gpus), "sides": [side.outcome() for side in self.sides]}


def program(config: Mapping[str, Any]) -> bytes:
    """What a side is fed: the length, its configuration, the program."""
    text = f"CONFIG = {json.dumps(config)!r}\n{payload.distributed()}".encode()
    return b"%d\n%s" % (len(text), text)


class _Listener(EventHandler):  # type: ignore[misc]
    """Collects one side's words; ClusterShell calls it."""

    def __init__(self, meeting: _Meeting, side: _Side) -> None:
        super().__init__()
        self.meeting, self.side = meeting, side

    def ev_read(self, worker: Any, node: Any, sname: str, msg: bytes) -> None:
        side = self.side
        side.received += len(msg)
        if side.received > MOST_BYTES:
            worker.abort()
        elif msg.startswith(MARK):
            try:
                line = json.loads(msg[len(MARK):])
            except ValueError:
                return
            side.document = line["document"]
            if line["said"] is not None:
                side.said.append(line["said"])
            self.meeting.heard(side)
        elif msg.strip():
            side.words.append(msg.decode("utf-8", "replace"))

    def ev_hup(self, worker: Any, node: Any, rc: int) -> None:
        self.side.status = rc

    def ev_close(self, worker: Any, timedout: bool) -> None:
        late = time.monotonic() - self.side.begin >= self.side.deadline_s
        self.side.late = timedout or late
        self.meeting.ended(self.side)


def meet(
    pairs: Sequence[Pair], deadline_s: float, fanout: int, told: Notify = lambda text: None
) -> list[dict[str, Any]]:
    """Run everything between all pairs; the records."""
    records: list[dict[str, Any]] = []
    task = task_self()
    task.set_default("stdout_msgtree", False)
    task.set_default("stderr_msgtree", False)
    for batch in rounds(jobs_of(pairs), fanout):
        meetings = [_Meeting(job, deadline_s) for job in batch]
        # Both sides of each must run, or neither would ever end.
        task.set_info("fanout", 2 * len(batch))
        for meeting in meetings:
            told(f"Between {' and '.join(meeting.job.pair.names)}: {meeting.job.kind},"
                 f" TensorFlow {meeting.job.stack.release}")
            meeting.start(task)
        task.resume()
        records += [meeting.record() for meeting in meetings]
    return records


# -- what the documents say of it ------------------------------------------------------------------


def planned(host: str, pairs: Iterable[Pair]) -> list[dict[str, Any]]:
    """A plan's `pairs`: whom a host is to meet, and in what; empty for one that meets nobody."""
    return [
        {"with": pair.names[1 - me], "gpus": pair.gpus[1 - me],
         "stacks": [{"name": stack.names[me], "release": stack.release} for stack in pair.stacks]}
        for pair in pairs
        if host in pair.names
        for me in [pair.names.index(host)]
    ]
