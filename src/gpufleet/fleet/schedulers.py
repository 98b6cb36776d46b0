"""Drain and resume hosts in their scheduler: Slurm, Kubernetes, or none.

Runs the scheduler's own commands, on this machine or over ssh. The scheduler keeps the mark of who
drained a node: a reason (Slurm) or an annotation (Kubernetes) that begins with our name and ends
with our promise. A killed run recognizes its own nodes by that mark. A node that a person or the
scheduler drained is never resumed, nor one that a person took over: by another reason, or by
text added to ours.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import Become, Connection, HostSelector, InventoryHost
from gpufleet.fleet.transport.connection import (
    NO_PYTHON,
    READY,
    SUDO_REFUSED,
    command,
    failure_reason,
    with_password,
)
from gpufleet.fleet.transport.slurm import node_name, scheduler_connections

Log = Callable[[str], None]

MARK = "gpufleet"
# The end of each of our reasons; exact: a person who adds to it has taken the node over.
PROMISE = " (returns by itself)"
# Time limit of one scheduler command; scontrol itself gives up after about ten seconds.
COMMAND_S = 60
SSH_FAILED = 255
SUDO_DENIED = "^(sudo: |Sorry, user )"
# Interval between two queries while jobs are waited for.
POLL_S = 2.0
# How long a resumed node may take to respond: it may have just booted.
BACK_S = 120.0
AT_ONCE = 8
LONGEST_REASON = 250


class SchedulerError(ConfigurationError):
    """A scheduler command that failed, or a host that the scheduler does not know."""


@dataclass(frozen=True)
class NodeState:
    """A node's state in its scheduler.

    `unschedulable`: it is drained, cordoned or down, and gets no new jobs. `busy`: jobs still run.
    `unresponsive`: it takes no jobs, drained or not, since the scheduler gets no answer from it.
    """

    unschedulable: bool = False
    busy: bool = False
    reason: str = ""
    state: str = ""
    unresponsive: bool = False

    @property
    def unavailable(self) -> bool:
        """True if the node takes no jobs, for either cause."""
        return self.unschedulable or self.unresponsive

    def ours(self, owner: str = r"\w+") -> bool:
        """Return whether gpufleet drained the node, or one owner in it (`rollout`, `nightly`)."""
        return self.unschedulable and bool(
            re.fullmatch(rf"{MARK} {owner}: .*{re.escape(PROMISE)}", self.reason)
        )


# The reason ends with the user and time that set it; a comment may follow.
REASON = r" Reason=(.*?)(?: \[[^\s@]+@[^]]*\](?:\s+[A-Z]\w+=.*)?)?\s*$"
# States of a slurmd that does not respond (so does a * after the state), or contradicts slurm.conf.
UNRESPONSIVE = {"DOWN", "UNKNOWN", "NOT_RESPONDING", "INVAL", "INVALID_REG"}


def slurm_states(output: str) -> dict[str, NodeState]:
    """Parse the output of `scontrol show node --oneliner`; by node name."""
    found = {}
    for line in output.splitlines():
        # The reason is free text: assignments in it are not the node's values.
        head = line.partition(" Reason=")[0]
        values = dict(re.findall(r"(?:^|\s)(NodeName|State|CPUAlloc)=(\S*)", head))
        if "NodeName" not in values:
            continue
        # A base and flags: IDLE+DRAIN, MIXED+DRAIN, DOWN*. ALLOCATED+DRAIN: drained, jobs run.
        flags = set(re.findall(r"[A-Z_]+", values.get("State", "")))
        reason = re.search(REASON, line)
        found[values["NodeName"]] = NodeState(
            unschedulable=bool(flags & {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"}),
            busy=bool(flags & {"ALLOCATED", "MIXED", "COMPLETING"})
            or values.get("CPUAlloc", "0") != "0",
            reason=reason[1] if reason else "",
            state=values.get("State", ""),
            unresponsive="*" in values.get("State", "") or bool(flags & UNRESPONSIVE),
        )
    return found


def kubernetes_states(output: str) -> dict[str, NodeState]:
    """Parse the output of `kubectl get nodes -o json`; it does not show which nodes are busy."""
    found = {}
    for node in json.loads(output)["items"]:
        cordoned = bool(node["spec"].get("unschedulable"))
        annotations = node["metadata"].get("annotations") or {}
        ready = any(
            it["type"] == "Ready" and it["status"] == "True"
            for it in node.get("status", {}).get("conditions") or ()
        )
        found[node["metadata"]["name"]] = NodeState(
            cordoned,
            reason=annotations.get(ANNOTATION, ""),
            unresponsive=not ready,
            state=("cordoned" if cordoned else "in service") + ("" if ready else ", not ready"),
        )
    return found


ANNOTATION = f"{MARK}/drained"


@dataclass(frozen=True)
class SchedulerCommands:
    """A scheduler's commands as argv templates with {node}, {reason} and {seconds}."""

    name: str
    list_nodes: tuple[str, ...]
    parse: Callable[[str], dict[str, NodeState]]
    drain: tuple[str, ...]
    resume: tuple[str, ...]
    # Evicts what runs on a node; empty: running jobs are waited for.
    evict: tuple[str, ...] = ()
    # Lists the jobs that are waited for.
    jobs: tuple[str, ...] = ()
    # Removes a mark that stayed when a person resumed the node.
    clear_mark: tuple[str, ...] = ()
    # The shell command with which a person resumes a node.
    by_hand: str = ""


SLURM = SchedulerCommands(
    "Slurm",
    list_nodes=("scontrol", "show", "node", "--oneliner"),
    parse=slurm_states,
    drain=("scontrol", "update", "NodeName={node}", "State=DRAIN", "Reason={reason}"),
    resume=("scontrol", "update", "NodeName={node}", "State=RESUME"),
    jobs=("squeue", "--noheader", "--nodelist={node}", "--states=R,CG,S", "--format=%i"),
    by_hand="scontrol update NodeName={node} State=RESUME",
)
# One patch sets both, so that our cordon is never without our mark.
KUBERNETES = SchedulerCommands(
    "Kubernetes",
    list_nodes=("kubectl", "get", "nodes", "--output=json"),
    parse=kubernetes_states,
    drain=(
        "kubectl",
        "patch",
        "node",
        "{node}",
        "--type=merge",
        "--patch",
        json.dumps(
            {"metadata": {"annotations": {ANNOTATION: "{reason}"}}, "spec": {"unschedulable": True}}
        ),
    ),
    resume=(
        "kubectl",
        "patch",
        "node",
        "{node}",
        "--type=merge",
        "--patch",
        json.dumps(
            {"metadata": {"annotations": {ANNOTATION: None}}, "spec": {"unschedulable": None}}
        ),
    ),
    evict=(
        "kubectl",
        "drain",
        "{node}",
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--timeout={seconds}s",
    ),
    clear_mark=("kubectl", "annotate", "node", "{node}", f"{ANNOTATION}-"),
    by_hand=f"kubectl uncordon {{node}} && kubectl annotate node {{node}} {ANNOTATION}-",
)
SCHEDULERS: Mapping[str, SchedulerCommands | None] = {
    "none": None,
    "slurm": SLURM,
    "kubernetes": KUBERNETES,
}

Runner = Callable[[Connection | None, Sequence[str], float], str]


def run(connection: Connection | None, args: Sequence[str], limit_s: float = COMMAND_S) -> str:
    """Return a command's standard output; None as connection: on this machine.

    Raises `SchedulerError` where it cannot run, fails, or takes longer than `limit_s`.
    """
    where = f" on {connection.name}" if connection else ""
    local = command(connection, shlex.join(args)) if connection else list(args)
    try:
        done = subprocess.run(
            local,
            input=with_password(connection, b"") if connection else b"",
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except FileNotFoundError:
        raise SchedulerError(
            f"{args[0]} is not installed on this machine.",
            "",
            "Set gpu_scheduler_host to the host that has it.",
        ) from None
    except subprocess.TimeoutExpired:
        raise SchedulerError(
            f"{shlex.join(args)}{where} gave no answer within {limit_s:g} s.",
            "",
            "Check whether the scheduler responds there.",
        ) from None
    output = done.stdout.decode("utf-8", "replace")
    if (
        connection
        and connection.become.enabled is None
        and done.returncode
        and re.search(SUDO_DENIED, done.stderr.decode("utf-8", "replace"), re.MULTILINE)
    ):
        # sudo is allowed for other programs there; the account itself may be a Slurm operator.
        return run(replace(connection, become=Become(enabled=False)), args, limit_s)
    if connection and done.returncode in {SSH_FAILED, SUDO_REFUSED, NO_PYTHON}:
        stderr = done.stderr.decode("utf-8", "replace")
        cause, remedy = failure_reason(connection, done.returncode, stderr)
        raise SchedulerError(f"{cause}:", "gpu_scheduler_host", remedy)
    if done.returncode:
        last = (done.stderr.decode("utf-8", "replace").strip() or output.strip()).splitlines()[-3:]
        raise SchedulerError(
            f"{shlex.join(args)}{where} failed with status {done.returncode}: {' '.join(last)}",
            "",
            "Run it there by hand; the connecting account needs the right to run it.",
        )
    return output.partition(f"\n{READY}\n")[2] if connection else output


@dataclass(frozen=True)
class Scheduler:
    """The scheduler of some hosts. Without commands nothing is run and every host is available."""

    commands: SchedulerCommands | None = None
    # Node names by host.
    nodes: Mapping[str, str] = field(default_factory=dict)
    # By host, the machine on which the scheduler's commands run; None: this one.
    via: Mapping[str, Connection | None] = field(default_factory=dict)
    runner: Runner = run

    def states(
        self, hosts: Iterable[str] | None = None, *, known_only: bool = False
    ) -> dict[str, NodeState]:
        """Return the state of each host; one command for each scheduler.

        A host without a node raises `SchedulerError`, or is left out with `known_only`.
        """
        requested = list(self.nodes if hosts is None else hosts)
        if not self.commands:
            return dict.fromkeys(requested, NodeState())
        known: dict[str, dict[str, NodeState]] = {}
        found = {}
        for host in requested:
            connection = self.via.get(host)
            name = connection.name if connection else ""
            if name not in known:
                known[name] = self.commands.parse(
                    self.runner(connection, self.commands.list_nodes, COMMAND_S)
                )
            if self.nodes[host] not in known[name]:
                if known_only:
                    continue
                raise self.unknown(host)
            found[host] = known[name][self.nodes[host]]
        return found

    def answering(self) -> tuple[dict[str, NodeState], dict[str, SchedulerError]]:
        """The state of each host that its scheduler knows, and what is wrong with silent ones.

        A scheduler that does not answer is the error of its own hosts, and of no others.
        """
        found: dict[str, NodeState] = {}
        silent: dict[str, SchedulerError] = {}
        own: dict[str, list[str]] = defaultdict(list)
        for host in self.nodes:
            connection = self.via.get(host)
            own[connection.name if connection else ""].append(host)
        for hosts in own.values():
            try:
                found |= self.states(hosts, known_only=True)
            except SchedulerError as error:
                silent |= dict.fromkeys(hosts, error)
        return found, silent

    def unknown(self, host: str) -> SchedulerError:
        """The error of a host that the scheduler does not know."""
        name = self.commands.name if self.commands else "No scheduler"
        return SchedulerError(
            f"{name} knows no node {self.nodes[host]}.",
            host,
            "Set its gpu_node_name to its node name in the scheduler.",
        )

    def drain(self, host: str, reason: str) -> None:
        """Stop new jobs on a host. The reason begins with our mark: `gpufleet OWNER: ...`."""
        self._run(host, "drain", reason=promised(reason))

    def drain_command(self, host: str, reason: str) -> str:
        """The shell command with which a person does the same."""
        return shlex.join(self._arguments(host, "drain", {"reason": promised(reason)}))

    def resume(self, host: str) -> None:
        """Return a host to service."""
        self._run(host, "resume")

    def clear_marks(self, states: Mapping[str, NodeState]) -> None:
        """Remove our mark from nodes that are in service: a later cordon may be somebody else's."""
        for host, state in states.items():
            if (
                self.commands
                and self.commands.clear_mark
                and state.reason
                and not state.unschedulable
            ):
                self._run(host, "clear_mark")

    def wait_until_idle(
        self, hosts: Sequence[str], limit_s: float, log: Log = lambda text: None
    ) -> None:
        """Wait until no job runs on the hosts; raise `SchedulerError` after `limit_s` seconds."""
        if late := list(self.not_idle(hosts, limit_s, log).values()):
            causes = " ".join(error.message for error in late)
            raise SchedulerError(causes, late[0].where, late[0].remedy)

    def not_idle(
        self, hosts: Sequence[str], limit_s: float, log: Log = lambda text: None
    ) -> dict[str, SchedulerError]:
        """Wait until no job runs on the hosts; what is wrong with those where that failed."""
        if not self.commands or not hosts:
            return {}
        if self.commands.evict:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                ends = pool.map(lambda host: self._not_evicted(host, limit_s), hosts)
                return {host: error for host, error in zip(hosts, ends, strict=True) if error}
        until, waiting = time.monotonic() + limit_s, ""
        while busy := [host for host, state in self.states(hosts).items() if state.busy]:
            if time.monotonic() > until:
                return {host: self._jobs_run(host, limit_s) for host in busy}
            if waiting != ", ".join(busy):
                waiting = ", ".join(busy)
                log(f"jobs still run on {waiting}")
            time.sleep(POLL_S)

        return {}

    def _not_evicted(self, host: str, limit_s: float) -> SchedulerError | None:
        try:
            self._run(host, "evict", limit_s)
        except SchedulerError as error:
            return error
        return None

    def _jobs_run(self, host: str, limit_s: float) -> SchedulerError:
        jobs = " ".join(self._run(host, "jobs").split())
        return SchedulerError(
            f"Jobs still run after {limit_s:g} s ({host}: {jobs}).",
            "",
            "Wait for them or cancel them; --drain-wait S gives them more time.",
        )

    def not_returned(self, hosts: Sequence[str]) -> dict[str, NodeState]:
        """Return the hosts that are still unavailable after `BACK_S` seconds."""
        until = time.monotonic() + BACK_S
        while late := {
            host: state for host, state in self.states(hosts).items() if state.unavailable
        }:
            if time.monotonic() > until:
                break
            time.sleep(POLL_S)
        return late

    def resume_command(self, host: str) -> str:
        """The shell command with which a person resumes a host."""
        return self.commands.by_hand.format(node=self.nodes[host]) if self.commands else ""

    def _run(self, host: str, command: str, limit_s: float = 0, **values: str) -> str:
        if not self.commands:
            return ""
        args = self._arguments(host, command, {"seconds": f"{limit_s:.0f}", **values})
        return self.runner(self.via.get(host), args, limit_s + COMMAND_S)

    def _arguments(self, host: str, command: str, values: Mapping[str, str]) -> list[str]:
        fields = {"node": self.nodes[host], **values}
        return [filled(arg, fields) for arg in getattr(self.commands, command)]


def promised(reason: str) -> str:
    """A reason in one line, as long as schedulers keep."""
    return " ".join(reason.split())[:LONGEST_REASON] + PROMISE


def filled(argument: str, values: Mapping[str, str]) -> str:
    """Fill in the fields of an argument; within JSON, escaped as JSON."""
    for name, value in values.items():
        escaped = json.dumps(value)[1:-1] if argument.startswith('{"') else value
        argument = argument.replace(f"{{{name}}}", escaped)
    return argument


def scheduler_of(kind: str, hosts: Sequence[InventoryHost], selector: HostSelector) -> Scheduler:
    """Return the scheduler of these hosts by their inventory variables.

    `kind` is a key of `SCHEDULERS`; another one raises `ConfigurationError`.
    """
    if kind not in SCHEDULERS:
        raise ConfigurationError(
            f"There is no scheduler {kind!r}.", "--hook", f"Use one of {', '.join(SCHEDULERS)}."
        )
    commands = SCHEDULERS[kind]
    nodes = {host.name: node_name(host) for host in hosts}
    return Scheduler(commands, nodes, scheduler_connections(hosts, selector) if commands else {})
