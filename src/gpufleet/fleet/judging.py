"""Plan one host by its variables and its snapshot, and judge it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import cast

from gpufleet.components.base.consensus import sums_by_group
from gpufleet.components.checks import Sections
from gpufleet.components.gpu.nvlink_domain import host_place
from gpufleet.documents.pairs import PlannedMeeting
from gpufleet.documents.plan import Plan
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.spec import Declaration
from gpufleet.documents.verdict import HostResult
from gpufleet.errors import Defect, bounded
from gpufleet.fleet.inventory import Connection, InventoryHost
from gpufleet.fleet.transport.compression import Compressed
from gpufleet.fleet.transport.fanout import Outcome
from gpufleet.judge import judge

from .host_fabric import fabric_of
from .host_versions import versions_of
from .session import Beside, HostRun

Resolver = Callable[[Declaration, Snapshot | None, str, Collection[str]], Plan]
Planner = Callable[[InventoryHost, Snapshot | None, Resolver | None], Plan]


def plan_of(
    host: InventoryHost, snapshot: Snapshot | None, resolve: Resolver | None = None
) -> Plan:
    """A host's plan, with its locks."""
    from gpufleet.components import resolver  # noqa: PLC0415 (judging documents does not need it)

    resolve = resolve or resolver.resolve_declaration
    plan = resolve(host.declaration, snapshot, host.name, host.locks)
    for problem in plan["problems"]:
        if origin := host.origin(problem["where"]):
            problem["file"] = origin
    return cast(Plan, resolver.with_locks(plan, host.locks))


def undeclared(name: str) -> Plan:
    """A plan that declares nothing, for a host whose own plan cannot be made."""
    from gpufleet.components import resolver  # noqa: PLC0415 (as in plan_of)

    return resolver.resolve({}, None, name)


def judged(
    host: InventoryHost,
    snapshot: Snapshot | None,
    reason: HostResult,
    *,
    planner: Planner = plan_of,
    resolve: Resolver | None = None,
    host_pairs: Sequence[PlannedMeeting] = (),
    kept: Compressed | None = None,
    answer: str | None = None,
) -> HostRun:
    """Plan and judge one host; without a snapshot, `reason` is its result.

    The snapshot came through `model.received`; `kept` is the same, if it is already compressed, and
    `answer` is the answer to the challenge that came with it.
    A defect of gpufleet costs this host its verdict, and so does a snapshot that takes too much
    processor time; it is planned without its snapshot then.
    """
    defects: list[Defect] = []

    def planned(known: Snapshot | None, otherwise: Callable[[], Plan]) -> Plan:
        def failed(defect: Defect) -> Plan:
            defects.append(defect)
            return otherwise()

        return bounded("planned this host", lambda: planner(host, known, resolve), failed)

    plan = planned(snapshot, lambda: planned(None, lambda: undeclared(host.name)))
    if host_pairs:
        plan["pairs"] = [*host_pairs]
    if defects:
        result = judge.defective(defects[0], host.name)
    else:
        result = result_of(plan, snapshot, reason)
    versions = bounded(
        "read the versions of this host", lambda: versions_of(snapshot, plan), lambda defect: None
    )
    fabric = bounded(
        "read the ports of this host", lambda: fabric_of(snapshot, plan), lambda defect: None
    )
    return HostRun(
        host.name,
        cast(Snapshot, kept or snapshot),
        plan,
        result,
        versions,
        fabric,
        beside_of(snapshot, host.connection, answer),
    )


def beside_of(
    snapshot: Snapshot | None, connection: Connection | None = None, answer: str | None = None
) -> Beside | None:
    """The values of a snapshot that are compared with other hosts; None without a snapshot."""
    if snapshot is None:
        return None

    def read() -> Beside:
        data = Sections(snapshot, ("smi", "compute", "kernel")).data
        smi, compute, kernel = data.get("smi"), data.get("compute"), data.get("kernel")
        boot = kernel["boot_id"] if kernel and not kernel["container"] else None
        devices = (smi.get("devices") or []) if smi else []
        return Beside(
            host_place(smi) if smi else None,
            sums_by_group(compute) if compute else {},
            frozenset((boot, card["uuid"]) for card in devices if boot and card["uuid"]),
            answer,
            endpoint_of(connection) if connection else None,
        )

    return bounded("read what is compared with other hosts", read, lambda defect: None)


def endpoint_of(connection: Connection) -> tuple[str | int | None, ...] | None:
    """Where ssh reaches a host; None for a connection that is not ssh."""
    if connection.kind != "ssh":
        return None
    address = connection.address or connection.name
    return (address, connection.port, *connection.ssh_arguments, *connection.launcher)


def result_of(plan: Plan, snapshot: Snapshot | None, reason: HostResult) -> HostResult:
    """The result of a host by its plan; without a snapshot it is the `reason`."""
    if snapshot is None:
        return reason
    return bounded(
        "judged this host",
        lambda: judge.judge_typed(plan, snapshot),
        lambda defect: judge.defective(defect, plan["host"]),
    )


def reason_of(outcome: Outcome) -> HostResult:
    """The result of a host without a snapshot: it was not reached, or sent what may not be read."""
    result = judge.not_judged if outcome.refused else judge.unreachable
    return result(outcome.cause, outcome.remedy, outcome.evidence)
