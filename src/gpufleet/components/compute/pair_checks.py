"""Two hosts together: the results of a distributed run, of hosts that took part.

A plan's `pairs` name the other hosts and stacks, a snapshot's `pairs` have the results. A fault is
reported on the host where it happened; the other host's check is INCONCLUSIVE and names it, so that
one broken host does not fail two. A fault of the network between them is reported on both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpufleet.components.base.registry import (
    COMPUTES_ON_PAIR,
    INSPECT,
    PAIR_CHECKS,
    Evidence,
    Finding,
    SkipReason,
    check,
    no_gpus_declared,
    required,
    shortened,
    wrong_results,
)
from gpufleet.components.base.remedies import Component, Remedy, provision, see
from gpufleet.components.base.sections import Sections
from gpufleet.documents import pairs
from gpufleet.documents.plan import Plan
from gpufleet.documents.text import brief, gpufleet, quantity
from gpufleet.documents.verdict import Verdict
from gpufleet.frameworks import framework_id, framework_of

PORTS = range(20000, 32768)
SOME_PORTS = f"TCP ports {PORTS[0]} to {PORTS[-1]}"
ALL_PORTS = "all TCP ports (gloo and NCCL choose theirs)"
DEVICE = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)/(?:device:)?(\w+:\d+)$")
WRONG_NUMBERS = (
    "test the device with ./gpufleet verify --deep; wrong numbers from exact operands are a fault"
    " of hardware, library or network"
)
# Every process on a host reads that file, the check's as well as a job's (NCCL's user guide).
OTHER_INTERFACE = (
    ", and the interface that NCCL took (NET/Socket in its lines): NCCL_SOCKET_IFNAME=NAME in"
    " /etc/nccl.conf of each host has it take another one"
)


@dataclass(frozen=True)
class Meeting:
    """One run, from the view of one host: its own side is `own`, at `index` of `sides`."""

    plan: Plan
    record: pairs.Meeting
    index: int

    @property
    def own(self) -> pairs.Side:
        return self.record["sides"][self.index]

    @property
    def other(self) -> pairs.Side:
        return self.record["sides"][1 - self.index]

    @property
    def peer(self) -> str:
        return self.record["hosts"][1 - self.index]

    @property
    def gpus(self) -> int | None:
        return self.record["gpus"][self.index]

    @property
    def what(self) -> str:
        return f"{self.record['stacks'][self.index]} with {self.peer}"


Judge = Callable[[Meeting], Iterator[Finding | Evidence]]


def not_applicable(
    kind: pairs.Kind, plan: Plan, pair: pairs.PlannedMeeting, stack: pairs.SharedStack
) -> str | None:
    """The declaration by which a kind of run between two hosts does not apply, or None."""
    if kind == "nccl" and no_gpus_declared(plan):
        return no_gpus_declared(plan)
    if kind == "nccl" and not pair["gpus"]:
        reason = "not set" if pair["gpus"] is None else "{count: 0}"
        return f"gpu_expect of {pair['with']}: {reason}"
    own = plan["expect"]["count"] if plan["expect"] else None
    return pairs.lacking(kind, framework_id(stack), stack["release"], (own, pair["gpus"]))


def skip_unless_applicable(kind: pairs.Kind) -> SkipReason:
    """The skip reason where the run applies to no pair and no stack."""

    def skip_reason(plan: Plan) -> str | None:
        reasons = [
            not_applicable(kind, plan, pair, stack)
            for pair in plan["pairs"]
            for stack in pair["stacks"]
        ]
        return "; ".join(dict.fromkeys(filter(None, reasons))) if all(reasons) else None

    return skip_reason


def meeting_results(
    kind: pairs.Kind, plan: Plan, observed: Sections, judge: Judge
) -> Iterator[Finding | Evidence]:
    """Judge the run of each pair and stack to which it applies."""
    for pair in plan["pairs"]:
        for stack in pair["stacks"]:
            what = f"{stack['name']} with {pair['with']}"
            reason = not_applicable(kind, plan, pair, stack)
            if reason:
                yield Evidence(f"{what}: not applicable ({reason})")
                continue
            found = [
                record
                for record in observed.snapshot.get("pairs") or []
                if (record["kind"], record["release"]) == (kind, stack["release"])
                and framework_id(record) == framework_id(stack)
                and set(record["hosts"]) == {plan["host"], pair["with"]}
            ]
            if not found:
                yield Finding(
                    f"{what}: nothing ran between the two hosts",
                    "see host.reachable of both; then "
                    + gpufleet("verify", "--pair", f"{plan['host']},{pair['with']}"),
                    verdict=Verdict.INCONCLUSIVE,
                )
            for record in found:
                meeting = Meeting(plan, record, record["hosts"].index(plan["host"]))
                problem = list(connection_failures(meeting)) or list(incomplete_side(meeting, kind))
                yield from problem or judge(meeting)


def connection_failures(meeting: Meeting) -> Iterator[Finding]:
    """Connections that failed, in either direction, and ended the run or explain its end."""
    hosts, aside = meeting.record["hosts"], not other_ports_matter(meeting)
    for number, side in enumerate(meeting.record["sides"]):
        for target, name in enumerate(hosts):
            failed = [
                row
                for row in side["reach"]
                if row["to"] == target and row["error"] and not (aside and row["port"] not in PORTS)
            ]
            if failed and target == number:
                yield Finding(
                    f"{meeting.what}: {name} is not reached at its address {failed[0]['address']}"
                    f" port {failed[0]['port']}: {failed[0]['error']}",
                    f"set gpu_pair_address of {name} to an address of its own, which both hosts"
                    " reach",
                    brief(failed),
                )
            elif failed:
                ports = " and ".join(str(row["port"]) for row in failed)
                declared = all(row["port"] in PORTS for row in failed)
                yield Finding(
                    f"{meeting.what}: {hosts[number]} cannot reach {name} ({failed[0]['address']})"
                    f" port {ports}: {failed[0]['error']}",
                    f"allow {SOME_PORTS if declared else ALL_PORTS} from {hosts[number]} to {name}"
                    " in every firewall between; to use another address of"
                    f" {name}, set its gpu_pair_address",
                    brief(failed),
                )


def other_ports_matter(meeting: Meeting) -> bool:
    """Return whether a closed port outside PORTS is a fault: NCCL may use another network.

    Then its run goes on, and only where that broke or hung is the port the explanation.
    """
    states = {side["state"] for side in meeting.record["sides"]}
    return meeting.record["kind"] != "nccl" or (
        "failed" not in states and bool(states & {"hung", "lost", "unconnected"})
    )


def incomplete_side(meeting: Meeting, kind: str) -> Iterator[Finding]:
    """Why a side did not finish, if it did not."""
    own, other = meeting.own, meeting.other
    state, stage = own["state"], f"{meeting.what}: while {own['stage']}"
    waited = state == "hung" and own["stage"].startswith("waiting")
    blames = other["state"] not in {"ok", "stopped", "unconnected", "lost"}
    interface = OTHER_INTERFACE if kind == "nccl" else ""
    if state == "absent":
        yield Finding(
            f"{meeting.what}: {own['error']}: nothing ran",
            _repair(meeting),
            verdict=Verdict.INCONCLUSIVE,
        )
    elif state == "silent":
        yield Finding(
            f"{meeting.what}: {own['error']}", own["remedy"], verdict=Verdict.INCONCLUSIVE
        )
    elif state == "failed":
        yield Finding(
            f"{stage}: {own['error']}",
            own.get("remedy") or see("stack.matmul of this host", _repair(meeting)),
            brief(own),
        )
    elif state == "hung" and not (waited and blames and not _waits(other)):
        yield Finding(
            f"{stage}: {own['error']}",
            f"check the load of both hosts (ps -eo pid,stat,wchan:32,cmd) and the network"
            f" between them{interface}; then "
            + gpufleet("verify", "--pair", ",".join(meeting.record["hosts"])),
            brief(own),
            Verdict.HUNG,
        )
    elif state == "lost" and not blames:
        yield Finding(
            f"{stage}, the connection to {meeting.peer} broke: {own['error']}",
            "check the network between the hosts, and firewalls that close connections" + interface,
            brief(own),
        )
    elif state != "ok" or other["state"] != "ok":
        yield Finding(
            f"{meeting.what}: the side of {meeting.peer} did not finish"
            f" ({other['error'] or own['error']})",
            f"see pair.{kind} of {meeting.peer}",
            verdict=Verdict.INCONCLUSIVE,
        )
    elif own["version"] != meeting.record["release"].partition("+")[0]:
        title = framework_of(meeting.record).title
        yield Finding(
            f"{meeting.what}: what ran is {title} {own['version']}, planned is"
            f" {meeting.record['release']}",
            _repair(meeting),
        )


def _repair(meeting: Meeting) -> Remedy:
    return provision(
        meeting.plan,
        *(
            Component("stack", row["name"])
            for row in meeting.plan["stacks"]
            if (framework_id(row), row["version"])
            == (framework_id(meeting.record), meeting.record["release"])
        ),
    )


def _waits(side: pairs.Side) -> bool:
    return side["stage"].startswith("waiting")


# -- results ---------------------------------------------------------------------------------------


def judge_graph(meeting: Meeting) -> Iterator[Finding | Evidence]:
    """Judge this host's parts of both sides' graphs, and the sum by its own master."""
    index, own = meeting.index, meeting.own
    wanted = own["device"] if meeting.gpus is None else "GPU:0" if meeting.gpus else "CPU:0"
    if sorted(row["task"] for row in own["products"]) != [0, 1] or len(own["variables"]) != 3:
        raise ValueError("a side does not report every part of its graph")
    good = True
    for side in meeting.record["sides"]:
        parts: list[tuple[str, str | None, pairs.RemoteProduct | pairs.Variable, int | None]]
        parts = [("worker", wanted, row, row["wrong"]) for row in side["products"]]
        parts += [("ps", "CPU:0", row, 0) for row in side["variables"]]
        for job, device, row, wrong in parts:
            if row["task"] != index:
                continue
            if parse_device(row["device"]) != (job, index, device):
                good = False
                yield Finding(
                    f"{meeting.what}: what was placed on /job:{job}/task:{index}/device:{device}"
                    f" ran on {row['device'] or 'an unknown device'} instead",
                    see("stack.gpu and stack.libraries", _repair(meeting)),
                    brief(row),
                )
            elif wrong != 0:
                good = False
                yield Finding(
                    f"{meeting.what}: the product on {row['device']} has"
                    f" {wrong_results(wrong, 'row')}",
                    WRONG_NUMBERS,
                    brief(row),
                )
    total = required(own["sum"], "the sum of both hosts' products")
    if total["wrong"] != 0:
        yield Finding(
            f"{meeting.what}: the sum of both hosts' products has"
            f" {wrong_results(total['wrong'], 'row')}",
            WRONG_NUMBERS,
            brief(total),
        )
    elif good:
        yield Evidence(
            f"{meeting.what}: exact, on"
            f" {shortened([str(row['device']) for row in own['products']])}, variables on"
            f" {shortened([str(row['device']) for row in own['variables'][:2]])}"
        )


def parse_device(device: str | None) -> tuple[str, int, str] | None:
    """`/job:ps/replica:0/task:1/device:CPU:0` and 1.0's `.../cpu:0` as ("ps", 1, "CPU:0")."""
    found = DEVICE.search(device or "")
    return (found.group(1), int(found.group(2)), found.group(3).upper()) if found else None


def judge_reduction(communication: str) -> Judge:
    """Judge that every replica of this host got the exact sum, by this communication."""

    def judge(meeting: Meeting) -> Iterator[Finding | Evidence]:
        own, declared = meeting.own, meeting.record["gpus"]
        # As many on each host.
        known = [count for count in declared if count is not None]
        gpus = min(known) if len(known) == len(declared) else None
        replicas = own["replicas"]
        kinds = [str(row["device"]).upper().split(":")[-2] for row in replicas]
        wanted = (["GPU"] * gpus if gpus else ["CPU"]) if gpus is not None else kinds
        total = len(replicas) + len(meeting.other["replicas"])
        wrong = [row for row in replicas if row["wrong"] != 0]
        # Not every framework has a ring of its own.
        wanted_one = (
            framework_of(meeting.record).distributed.communication
            if communication == "RING"
            else communication
        )
        if not replicas or own["communication"] != wanted_one:
            raise ValueError("a side does not report its replicas")
        if kinds != wanted:
            yield Finding(
                f"{meeting.what}: it ran on {shortened(kinds)}, declared is {shortened(wanted)}",
                "see gpu.count and stack.gpu",
                brief(replicas),
            )
        elif own["in_sync"] != total:
            yield Finding(
                f"{meeting.what}: {quantity(own['in_sync'], 'replica')} took part, not {total}",
                "see stack.matmul of both hosts",
                brief(replicas),
            )
        elif wrong:
            yield Finding(
                f"{meeting.what}: the sum of all {total} replicas has"
                f" {wrong_results(wrong[0]['wrong'], 'row')}",
                WRONG_NUMBERS,
                brief(wrong),
            )
        elif communication == "NCCL" and not own["nccl"]:
            yield Finding(
                f"{meeting.what}: NCCL did not report that it ran",
                "run it by hand with NCCL_DEBUG=INFO",
                verdict=Verdict.INCONCLUSIVE,
            )
        else:
            yield Evidence(
                "\n".join([f"{meeting.what}: {wanted_one}, {total} replicas, exact", *own["nccl"]])
            )

    return judge


# -- the checks ------------------------------------------------------------------------------------


@check(
    "pair.parameter-server",
    reads=(),
    repair=INSPECT,
    registry=PAIR_CHECKS,
    effect=COMPUTES_ON_PAIR,
    skip_reason=skip_unless_applicable("parameter-server"),
)
def parameter_server(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Workers and parameter servers of two hosts compute an exact sum together."""
    yield from meeting_results("parameter-server", plan, observed, judge_graph)


@check(
    "pair.all-reduce",
    reads=(),
    repair=INSPECT,
    registry=PAIR_CHECKS,
    effect=COMPUTES_ON_PAIR,
    skip_reason=skip_unless_applicable("all-reduce"),
)
def all_reduce(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """An all-reduce over two hosts gives every replica the exact sum."""
    yield from meeting_results("all-reduce", plan, observed, judge_reduction("RING"))


@check(
    "pair.nccl",
    reads=(),
    repair=INSPECT,
    registry=PAIR_CHECKS,
    effect=COMPUTES_ON_PAIR,
    skip_reason=skip_unless_applicable("nccl"),
)
def nccl(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """NCCL gives every GPU of two hosts the exact sum."""
    yield from meeting_results("nccl", plan, observed, judge_reduction("NCCL"))
