"""What takes a host out of service and gives it back: Slurm, Kubernetes, or nobody.

The scheduler itself keeps the mark of who drained a node: a reason (Slurm) or an annotation
(Kubernetes) that begins with our name and ends with our promise. So a run that was killed knows
its own again, and what a person or the scheduler took out of service is never given back by us:
nor what a person took over, by another reason or by a word added to ours.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from gpufleet.errors import ConfigurationError
from gpufleet.inventory import Become, Connection, HostSelector, InventoryHost
from gpufleet.transport.connection import (
    NO_PYTHON,
    READY,
    SUDO_REFUSED,
    command,
    failure_reason,
    with_password,
)
from gpufleet.transport.slurm import node_name, scheduler_connections

Told = Callable[[str], None]

MARK = "gpufleet"
# The end of each reason of ours: whoever adds to it has made the node his own.
PROMISE = " (returns by itself)"
# How long one command of a scheduler may take; scontrol itself gives up after some ten seconds.
COMMAND_S = 60
SSH_FAILED = 255
SUDO_SAYS_NO = "^(sudo: |Sorry, user )"
# Between two looks at jobs that are waited for.
POLL_S = 2.0
# How long a node that was given back may take to be heard of: it was perhaps just booted.
BACK_S = 120.0
AT_ONCE = 8
LONGEST_REASON = 250


class HookError(ConfigurationError):
    """A scheduler that does not do, or does not know, what it was asked."""


@dataclass(frozen=True)
class Place:
    """A node as its scheduler has it: `taken` if it gets no new jobs, `busy` if some still run.

    `away`: whether taken or not, it takes none, since the scheduler does not hear it.
    """

    taken: bool = False
    busy: bool = False
    reason: str = ""
    state: str = ""
    away: bool = False

    @property
    def out(self) -> bool:
        """Whether no job gets there."""
        return self.taken or self.away

    def ours(self, room: str = r"\w+") -> bool:
        """Whether gpufleet took it, or just one room of it (`rollout`, `nightly`)."""
        return self.taken and bool(
            re.fullmatch(rf"{MARK} {room}: .*{re.escape(PROMISE)}", self.reason))


# Who gave it, and when, ends it; a comment may follow.
REASON = r" Reason=(.*?)(?: \[[^\s@]+@[^]]*\](?:\s+[A-Z]\w+=.*)?)?\s*$"
# A slurmd that is silent, as is one with * behind its state, or lacks what slurm.conf says.
AWAY = {"DOWN", "UNKNOWN", "NOT_RESPONDING", "INVAL", "INVALID_REG"}


def slurm_places(said: str) -> dict[str, Place]:
    """What `scontrol show node --oneliner` says of each node."""
    found = {}
    for line in said.splitlines():
        # Whatever people write into the reason is no value of the node's.
        head = line.partition(" Reason=")[0]
        values = dict(re.findall(r"(?:^|\s)(NodeName|State|CPUAlloc)=(\S*)", head))
        if "NodeName" not in values:
            continue
        # IDLE+DRAIN, MIXED+DRAIN, DOWN*: a base and flags. Drained with jobs is ALLOCATED+DRAIN.
        flags = set(re.findall(r"[A-Z_]+", values.get("State", "")))
        reason = re.search(REASON, line)
        found[values["NodeName"]] = Place(
            taken=bool(flags & {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"}),
            busy=bool(flags & {"ALLOCATED", "MIXED", "COMPLETING"})
            or values.get("CPUAlloc", "0") != "0",
            reason=reason[1] if reason else "",
            state=values.get("State", ""),
            away="*" in values.get("State", "") or bool(flags & AWAY))
    return found


def kubernetes_places(said: str) -> dict[str, Place]:
    """What `kubectl get nodes -o json` says of each node. Who runs there, `kubectl drain` knows."""
    found = {}
    for node in json.loads(said)["items"]:
        taken = bool(node["spec"].get("unschedulable"))
        marks = node["metadata"].get("annotations") or {}
        ready = any(it["type"] == "Ready" and it["status"] == "True"
                    for it in node.get("status", {}).get("conditions") or ())
        found[node["metadata"]["name"]] = Place(
            taken, reason=marks.get(ANNOTATION, ""), away=not ready,
            state=("cordoned" if taken else "in service") + ("" if ready else ", not ready"))
    return found


ANNOTATION = f"{MARK}/drained"


@dataclass(frozen=True)
class Scheduler:
    """Its commands, as data: {node}, {reason} and {seconds} are filled in, each within its word."""

    name: str
    look: tuple[str, ...]
    read: Callable[[str], dict[str, Place]]
    drain: tuple[str, ...]
    resume: tuple[str, ...]
    # By which what runs there is sent away; without it, it is waited for.
    evict: tuple[str, ...] = ()
    # By which the jobs that are waited for are named.
    jobs: tuple[str, ...] = ()
    # By which a mark is taken off that stayed when a person gave the node back.
    forget: tuple[str, ...] = ()
    # How a person gives a node back.
    by_hand: str = ""


SLURM = Scheduler(
    "Slurm",
    look=("scontrol", "show", "node", "--oneliner"),
    read=slurm_places,
    drain=("scontrol", "update", "NodeName={node}", "State=DRAIN", "Reason={reason}"),
    resume=("scontrol", "update", "NodeName={node}", "State=RESUME"),
    jobs=("squeue", "--noheader", "--nodelist={node}", "--states=R,CG,S", "--format=%i"),
    by_hand="scontrol update NodeName={node} State=RESUME",
)
# One patch for both, so that there is no moment in which a cordon of ours bears no mark.
KUBERNETES = Scheduler(
    "Kubernetes",
    look=("kubectl", "get", "nodes", "--output=json"),
    read=kubernetes_places,
    drain=("kubectl", "patch", "node", "{node}", "--type=merge", "--patch", json.dumps(
        {"metadata": {"annotations": {ANNOTATION: "{reason}"}}, "spec": {"unschedulable": True}})),
    resume=("kubectl", "patch", "node", "{node}", "--type=merge", "--patch", json.dumps(
        {"metadata": {"annotations": {ANNOTATION: None}}, "spec": {"unschedulable": None}})),
    evict=("kubectl", "drain", "{node}", "--ignore-daemonsets", "--delete-emptydir-data",
           "--timeout={seconds}s"),
    forget=("kubectl", "annotate", "node", "{node}", f"{ANNOTATION}-"),
    by_hand=f"kubectl uncordon {{node}} && kubectl annotate node {{node}} {ANNOTATION}-",
)
SCHEDULERS: Mapping[str, Scheduler | None] = {
    "none": None, "slurm": SLURM, "kubernetes": KUBERNETES}

Runner = Callable[[Connection | None, Sequence[str], float], str]


def run(there: Connection | None, words: Sequence[str], limit_s: float = COMMAND_S) -> str:
    """What a command says, on the control machine or on a host; raises `HookError`."""
    where = f" on {there.name}" if there else ""
    local = command(there, shlex.join(words)) if there else list(words)
    try:
        done = subprocess.run(
            local, input=with_password(there, b"") if there else b"", capture_output=True,
            timeout=limit_s, check=False)
    except FileNotFoundError:
        raise HookError(
            f"There is no {words[0]} on this machine.", "",
            "Name the host that has it in gpu_scheduler_host.") from None
    except subprocess.TimeoutExpired:
        raise HookError(
            f"{shlex.join(words)}{where} gave no answer within {limit_s:g} s.", "",
            "See whether the scheduler answers there.") from None
    said = done.stdout.decode("utf-8", "replace")
    if there and there.become.enabled is None and done.returncode and re.search(
            SUDO_SAYS_NO, done.stderr.decode("utf-8", "replace"), re.MULTILINE):
        # sudo is for other programs there; the account may be an operator itself.
        return run(replace(there, become=Become(enabled=False)), words, limit_s)
    if there and done.returncode in {SSH_FAILED, SUDO_REFUSED, NO_PYTHON}:
        stderr = done.stderr.decode("utf-8", "replace")
        cause, remedy = failure_reason(there, done.returncode, stderr)
        raise HookError(f"{cause}:", "gpu_scheduler_host", remedy)
    if done.returncode:
        last = (done.stderr.decode("utf-8", "replace").strip() or said.strip()).splitlines()[-3:]
        raise HookError(
            f"{shlex.join(words)}{where} ended with status {done.returncode}: {' '.join(last)}",
            "", "Try it there by hand; it has to work for the account that is used.")
    return said.partition(f"\n{READY}\n")[2] if there else said


@dataclass(frozen=True)
class Hook:
    """The scheduler of some hosts; without one nobody is asked and nothing is in the way."""

    scheduler: Scheduler | None = None
    nodes: Mapping[str, str] = field(default_factory=dict)
    # On which machine a host's scheduler is spoken to; None: on this one.
    via: Mapping[str, Connection | None] = field(default_factory=dict)
    runner: Runner = run

    def look(
        self, hosts: Iterable[str] | None = None, *, known_only: bool = False
    ) -> dict[str, Place]:
        """Each host's place, one command for all of a scheduler.

        A host that it lacks is a `HookError`, or with `known_only` left out.
        """
        asked = list(self.nodes if hosts is None else hosts)
        if not self.scheduler:
            return dict.fromkeys(asked, Place())
        known: dict[str, dict[str, Place]] = {}
        found = {}
        for host in asked:
            there = self.via.get(host)
            name = there.name if there else ""
            if name not in known:
                known[name] = self.scheduler.read(
                    self.runner(there, self.scheduler.look, COMMAND_S))
            if self.nodes[host] not in known[name]:
                if known_only:
                    continue
                raise HookError(
                    f"{self.scheduler.name} knows no node {self.nodes[host]}.", host,
                    "Set its gpu_node_name to the name that it has there.")
            found[host] = known[name][self.nodes[host]]
        return found

    def drain(self, host: str, reason: str) -> None:
        """Have it get no new jobs. The reason begins with our mark: `gpufleet ROOM: ...`."""
        self._do(host, "drain", reason=" ".join(reason.split())[:LONGEST_REASON] + PROMISE)

    def resume(self, host: str) -> None:
        """Give it back."""
        self._do(host, "resume")

    def forget(self, places: Mapping[str, Place]) -> None:
        """Take our mark off nodes that are in service: a later cordon is whoever's it will be."""
        for host, place in places.items():
            if self.scheduler and self.scheduler.forget and not place.taken and place.reason:
                self._do(host, "forget")

    def empty(self, hosts: Sequence[str], limit_s: float, told: Told = lambda text: None) -> None:
        """Come back once nothing runs there any more; raises `HookError` after `limit_s`."""
        if not self.scheduler or not hosts:
            return
        if self.scheduler.evict:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda host: self._do(host, "evict", limit_s), hosts))
            return
        until, waiting = time.monotonic() + limit_s, ""
        while busy := [host for host, place in self.look(hosts).items() if place.busy]:
            if time.monotonic() > until:
                jobs = "; ".join(f"{host}: {' '.join(self._do(host, 'jobs').split())}"
                                 for host in busy)
                raise HookError(
                    f"Jobs still run after {limit_s:g} s ({jobs}).", "",
                    "Wait for them or end them; --resume --drain-wait S gives more time.")
            if waiting != ", ".join(busy):
                waiting = ", ".join(busy)
                told(f"jobs still run on {waiting}")
            time.sleep(POLL_S)

    def missing(self, hosts: Sequence[str]) -> dict[str, Place]:
        """Those that are not in service and heard of after a while."""
        until = time.monotonic() + BACK_S
        while out := {host: place for host, place in self.look(hosts).items() if place.out}:
            if time.monotonic() > until:
                break
            time.sleep(POLL_S)
        return out

    def by_hand(self, host: str) -> str:
        """The command by which a person gives it back."""
        return self.scheduler.by_hand.format(node=self.nodes[host]) if self.scheduler else ""

    def _do(self, host: str, what: str, limit_s: float = 0, **values: str) -> str:
        if not self.scheduler:
            return ""
        filling = {"node": self.nodes[host], "seconds": f"{limit_s:.0f}", **values}
        words = [filled(word, filling) for word in getattr(self.scheduler, what)]
        return self.runner(self.via.get(host), words, limit_s + COMMAND_S)


def filled(word: str, values: Mapping[str, str]) -> str:
    """A word of a command with its places filled in; within JSON, as JSON writes it."""
    for name, value in values.items():
        within = json.dumps(value)[1:-1] if word.startswith("{\"") else value
        word = word.replace(f"{{{name}}}", within)
    return word


def hook(kind: str, hosts: Sequence[InventoryHost], question: HostSelector) -> Hook:
    """The hook of these hosts, as their inventory variables say; raises `ConfigurationError`."""
    if kind not in SCHEDULERS:
        raise ConfigurationError(
            f"There is no hook {kind!r}.", "--hook", f"Known are {', '.join(SCHEDULERS)}.")
    scheduler = SCHEDULERS[kind]
    nodes = {host.name: node_name(host) for host in hosts}
    return Hook(scheduler, nodes, scheduler_connections(hosts, question) if scheduler else {})
