"""One verification: probe all hosts, plan, judge.

The resolver uses the variables and the snapshot of a host, so the probe comes before the plan.
"""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from gpufleet.documents.clock import utc_now
from gpufleet.documents.snapshot import Snapshot
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import InventoryHost
from gpufleet.fleet.transport.compression import compressed
from gpufleet.fleet.transport.fanout import Arrived, Outcome, Report, Target, probe_targets
from gpufleet.on_host import payload

from . import pairs, siblings
from .judging import Planner, Resolver, judged, plan_of, reason_of
from .options import ProbeOptions
from .pair_selection import NO_PAIRS, PairOptions, planned_pairs, select_pairs
from .session import HostRun, Session


def probe_config(host: InventoryHost, options: ProbeOptions) -> dict[str, Any]:
    """The probe's configuration for a host."""
    from gpufleet.components.probe_settings import probe_settings, visible_gpus  # noqa: PLC0415

    settings = probe_settings(host.spec, warm=options.warm)
    config: dict[str, Any] = {
        "host": host.name,
        "mode": options.mode,
        "deadline_s": options.deadline_with(host, settings),
        "deep": options.deep,
        "contents": options.contents,
        "expect_gpus": visible_gpus(host.spec),
        **settings,
    }
    if options.mode == "full" and options.computes:
        config["matmul"] = payload.workload()
    if options.load_s is not None:
        config["sustained_s"] = options.load_s
    if options.disk_load is not None:
        config["disk_load"] = options.disk_load
    if options.fabric_load:
        config["fabric_load"] = True
    if scrub := options.scrub.get(host.name):
        config["scrub"] = scrub
    return config


@functools.cache
def challenge() -> str:
    """The word that all probes of this run answer, so that their answers can be compared."""
    return secrets.token_hex(16)


def probe_hosts(
    hosts: Iterable[InventoryHost],
    options: ProbeOptions,
    report: Report = lambda name, outcome: None,
    arrived: Arrived = lambda outcome, snapshot: None,
) -> dict[str, Outcome]:
    """Probe all hosts in parallel; {name: outcome}. `arrived` is called with each snapshot."""
    targets = [
        Target(host.connection, {**probe_config(host, options), "challenge": challenge()})
        for host in hosts
    ]
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
                    alone[name],
                    snapshot,
                    reason_of(outcome),
                    planner=planner or plan_of,
                    resolve=resolve,
                    kept=compressed(outcome, "snapshot"),
                    answer=outcome.answer,
                )

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
        session.hosts.append(
            judged(
                host,
                snapshot,
                reason_of(outcome),
                planner=planner or plan_of,
                resolve=resolve,
                host_pairs=host_pairs,
                kept=kept,
                answer=outcome.answer,
            )
        )
    session.hosts = siblings.compared(session.hosts)
    session.finished, session.seconds = utc_now(), time.monotonic() - begin
    return session
