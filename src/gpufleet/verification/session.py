"""One verification: probe all hosts, plan, judge; everything in memory.

The resolver uses the variables and the snapshot of a host, so the probe comes before the plan.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from gpufleet.checks import judge
from gpufleet.errors import ConfigurationError, Defect, guarded
from gpufleet.inventory import HostSelector, InventoryHost, inventory_hosts
from gpufleet.model.pairs import PlannedMeeting
from gpufleet.model.plan import Plan
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.verdict import HostResult, Verdicts
from gpufleet.probe import payload
from gpufleet.transport.compression import Compressed, compressed, compressed_field
from gpufleet.transport.fanout import Arrived, Outcome, Report, Target, probe_targets

from . import pairs
from .host_versions import HostVersions, versions_of
from .pair_selection import NO_PAIRS, PairOptions, planned_pairs, select_pairs
from .saved import REMEDY, read_plan, read_snapshot

# Added to a host's deadline for the sustained load and the time to cool down, in seconds.
DEEP_S = 360

Resolver = Callable[[dict[str, Any], Snapshot | None, str], Plan]


def utc_now() -> str:
    """The current time in the documents' format."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class ProbeOptions:
    """How to probe."""

    mode: str = "full"
    fanout: int = 32
    deadline_s: float = 300
    deep: bool = False
    # ClusterShell's topology.conf: the hosts behind each gateway.
    topology: Path | None = None
    # Give stacks the time to compile their code for GPUs of any model.
    warm: bool = False
    # By host, what its probe reads of the contents tonight: `scrub` of its configuration.
    scrub: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Read the contents of all installed files, as a deep probe does, without its load.
    contents: bool = False

    @property
    def host_s(self) -> float:
        """The deadline of a host with one GPU in seconds, the sustained load included."""
        return self.deadline_s + (DEEP_S if self.deep else 0)

    def deadline_of(self, host: InventoryHost) -> float:
        """The deadline of a host: its stacks have more time on more GPUs, and to compile."""
        from gpufleet.spec.probe_settings import probe_settings  # noqa: PLC0415

        return self.deadline_with(host, probe_settings(host.variables, warm=self.warm))

    def deadline_with(self, host: InventoryHost, settings: Mapping[str, Any]) -> float:
        """The same by the settings of the host's probe."""
        from gpufleet.spec.probe_settings import more_seconds  # noqa: PLC0415

        return self.host_s + more_seconds(host.variables, settings)


@compressed_field("snapshot")
@dataclass
class HostRun:
    """One host of a verification: snapshot, plan and verdicts."""

    name: str
    snapshot: Snapshot | None
    plan: Plan
    result: HostResult
    # Of the snapshot, where it was at hand; the report reads them otherwise.
    versions: HostVersions | None = None

    @property
    def snapshot_text(self) -> str | None:
        """The snapshot as JSON in one line."""
        kept = compressed(self, "snapshot")
        return kept.text() if kept else None


Planner = Callable[[InventoryHost, Snapshot | None, Resolver | None], Plan]


@dataclass
class Session:
    """All hosts of a verification, and the document of their verdicts."""

    hosts: list[HostRun] = field(default_factory=list)
    started: str = field(default_factory=utc_now)
    finished: str = ""
    seconds: float = 0.0
    # Assumptions made where nothing is declared.
    notes: list[str] = field(default_factory=list)
    # The arguments that select these hosts again, as in `-i INVENTORY`.
    inventory_args: str = ""
    # Where Ansible ran before the last probe, and why: {host: reasons}.
    provisioned: dict[str, list[str]] | None = None

    @property
    def document(self) -> Verdicts:
        """The verdicts as printed by `--json`."""
        verdicts = judge.document(
            {host.name: host.result for host in self.hosts}, self.started, self.finished)
        if self.provisioned is not None:
            verdicts["provisioned"] = self.provisioned
        return verdicts

    def for_display(self) -> Session:
        """The same session with `inventory_args` in the remedies; documents do not have them."""
        if not self.inventory_args:
            return self
        hosts = [copy(host) for host in self.hosts]
        for host in hosts:
            host.result = {**host.result, "checks": [
                {**check, "remedy": self.with_inventory_args(check["remedy"])}
                for check in host.result["checks"]]}
        return replace(self, hosts=hosts)

    def with_inventory_args(self, remedy: str) -> str:
        """A remedy with `inventory_args` in its commands."""
        if not self.inventory_args:
            return remedy
        return re.sub(r"(\./gpufleet (?:plan|provision|remove|verify))\b",
                      lambda command: f"{command[1]} {self.inventory_args}", remedy)


def plan_of(
    host: InventoryHost, snapshot: Snapshot | None, resolve: Resolver | None = None
) -> Plan:
    """A host's plan, with its locks."""
    from gpufleet import resolver  # noqa: PLC0415 (judging documents does not need it)

    plan = (resolve or resolver.resolve)(host.variables, snapshot, host.name)
    return cast(Plan, resolver.with_locks(plan, host.locks))


def probe_config(host: InventoryHost, options: ProbeOptions) -> dict[str, Any]:
    """The probe's configuration for a host."""
    from gpufleet.spec.probe_settings import (  # noqa: PLC0415
        probe_settings,
        visible_gpus,
    )

    settings = probe_settings(host.variables, warm=options.warm)
    config: dict[str, Any] = {
        "host": host.name,
        "mode": options.mode,
        "deadline_s": options.deadline_with(host, settings),
        "deep": options.deep,
        "contents": options.contents,
        "expect_gpus": visible_gpus(host.variables),
        **settings,
    }
    if options.mode == "full":
        config["matmul"] = payload.workload()
    if scrub := options.scrub.get(host.name):
        config["scrub"] = scrub
    return config


def probe_hosts(
    hosts: Iterable[InventoryHost],
    options: ProbeOptions,
    report: Report = lambda name, outcome: None,
    arrived: Arrived = lambda outcome, snapshot: None,
) -> dict[str, Outcome]:
    """Probe all hosts in parallel; {name: outcome}. `arrived` is called with each snapshot."""
    targets = [Target(host.connection, probe_config(host, options)) for host in hosts]
    return probe_targets(targets, options.fanout, report, options.topology, arrived)


def verify(
    hosts: list[InventoryHost],
    options: ProbeOptions,
    report: Report = lambda name, outcome: None,
    resolve: Resolver | None = None,
    planner: Planner | None = None,
    *,
    pair_options: PairOptions = NO_PAIRS,
    notify: pairs.Notify = lambda text: None,
) -> Session:
    """Probe every host, run the pairs, plan, and judge.

    A host of no pair is judged when its snapshot arrives, while the others are probed: afterwards
    the snapshot would have to be decompressed.
    """
    session, begin = Session(), time.monotonic()
    selected = select_pairs(hosts, pair_options)
    alone = {host.name: host for host in hosts if not planned_pairs(host.name, selected)}
    early: dict[str, HostRun] = {}

    def arrived(outcome: Outcome, snapshot: Snapshot) -> None:
        name = snapshot["host"]
        # Such an error ends the run, as it does below, when all hosts were probed.
        with suppress(ConfigurationError):
            if name in alone:
                early[name] = judged(
                    alone[name], snapshot, reason_of(outcome), planner=planner or plan_of,
                    resolve=resolve, kept=compressed(outcome, "snapshot"))

    outcomes = probe_hosts(hosts, options, report, arrived)
    probed = [pair for pair in selected if all(not outcomes[name].cause for name in pair.names)]
    records = pairs.run_pairs(probed, options.deadline_s, options.fanout, notify)
    for host in hosts:
        outcome = outcomes.pop(host.name)
        if host.name in early:
            session.hosts.append(early.pop(host.name))
            continue
        host_pairs = planned_pairs(host.name, selected)
        snapshot, kept = outcome.snapshot, compressed(outcome, "snapshot")
        if host_pairs and snapshot:
            snapshot["pairs"] = [record for record in records if host.name in record["hosts"]]
            kept = None
        session.hosts.append(judged(
            host, snapshot, reason_of(outcome), planner=planner or plan_of, resolve=resolve,
            host_pairs=host_pairs, kept=kept))
    session.finished, session.seconds = utc_now(), time.monotonic() - begin
    return session


def reason_of(outcome: Outcome) -> HostResult:
    """The result of a host without a snapshot: it was not reached, or sent what may not be read."""
    result = judge.not_judged if outcome.refused else judge.unreachable
    return result(outcome.cause, outcome.remedy, outcome.evidence)


def judged(
    host: InventoryHost, snapshot: Snapshot | None, reason: HostResult, *,
    planner: Planner = plan_of, resolve: Resolver | None = None,
    host_pairs: Sequence[PlannedMeeting] = (), kept: Compressed | None = None,
) -> HostRun:
    """Plan and judge one host; without a snapshot, `reason` is its result.

    The snapshot came through `model.received`; `kept` is the same, if it is already compressed.
    A defect of gpufleet costs this host its verdict; it is planned without its snapshot then.
    """
    defects: list[Defect] = []

    def planned(known: Snapshot | None, otherwise: Callable[[], Plan]) -> Plan:
        def failed(defect: Defect) -> Plan:
            defects.append(defect)
            return otherwise()
        return guarded("planned this host", lambda: planner(host, known, resolve), failed)

    plan = planned(snapshot, lambda: planned(None, lambda: undeclared(host.name)))
    if host_pairs:
        plan["pairs"] = [*host_pairs]
    if defects:
        result = judge.defective(defects[0], host.name)
    else:
        result = result_of(plan, snapshot, reason)
    versions = guarded("read the versions of this host", lambda: versions_of(snapshot, plan),
                       lambda defect: None)
    return HostRun(host.name, cast(Snapshot, kept or snapshot), plan, result, versions)


def result_of(plan: Plan, snapshot: Snapshot | None, reason: HostResult) -> HostResult:
    """The result of a host by its plan; without a snapshot it is the `reason`."""
    if snapshot is None:
        return reason
    return guarded("judged this host", lambda: judge.judge_typed(plan, snapshot),
                   lambda defect: judge.defective(defect, plan["host"]))


def undeclared(name: str) -> Plan:
    """The plan of a host of which nothing is declared, in the place of one that cannot be made."""
    from gpufleet import resolver  # noqa: PLC0415 (as in plan_of)

    return resolver.resolve({}, None, name)


def judge_saved(
    snapshot_files: Iterable[str],
    plan_files: Iterable[str] = (),
    selector: HostSelector | None = None,
    resolve: Resolver | None = None,
) -> Session:
    """Judge saved snapshots against saved plans or the inventory's variables."""
    session, begin = Session(), time.monotonic()
    plans = {plan["host"]: plan for plan in map(read_plan, plan_files)}
    hosts: dict[str, InventoryHost] | None = None
    for name in snapshot_files:
        saved = read_snapshot(name)
        host, snapshot = saved.host, saved.snapshot
        # A bundle without a snapshot has the reason in its result.
        reason = saved.result or judge.not_judged("The file has no snapshot.", REMEDY)
        if saved.plan:
            plans[host] = saved.plan
        if host not in plans:
            if hosts is None:
                hosts = {found.name: found for found in inventory_hosts(selector or HostSelector())}
            if host not in hosts:
                raise ConfigurationError(
                    f"There is no plan for {host}: no --plan has it, nor has the inventory.",
                    name, "Add its plan by --plan FILE, or its inventory by -i.")
            session.hosts.append(judged(hosts[host], snapshot, reason, resolve=resolve))
            continue
        session.hosts.append(HostRun(
            host, snapshot, plans[host], result_of(plans[host], snapshot, reason)))
    session.finished, session.seconds = utc_now(), time.monotonic() - begin
    return session
