"""Read and judge saved documents: snapshots, plans, bundles; refuse a file that is none of them.

A damaged section of a snapshot is no reason to refuse the file: the checks that read it are
INCONCLUSIVE, and `host.probe` names the location.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpufleet.components.base.expectation import MOST_GPUS
from gpufleet.documents import received
from gpufleet.documents.clock import utc_now
from gpufleet.documents.plan import Plan
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.text import one_line
from gpufleet.documents.validator import faults
from gpufleet.documents.verdict import HostResult, Verdict
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import HostSelector, InventoryHost, inventory_hosts
from gpufleet.judge import judge
from gpufleet.paths import PROGRAM

from . import siblings
from .judging import Resolver, beside_of, judged, result_of
from .session import HostRun, Session

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
REMEDY = f"Save it again by '{PROGRAM} verify --save DIR'."


@dataclass(frozen=True)
class Saved:
    """The documents on a host in one file; a bundle holds all three."""

    host: str
    snapshot: Snapshot | None
    plan: Plan | None = None
    result: HostResult | None = None


def judge_saved(
    snapshot_files: Iterable[str],
    plan_files: Iterable[str] = (),
    selector: HostSelector | None = None,
    resolve: Resolver | None = None,
) -> Session:
    """Judge saved snapshots against saved plans or the inventory's variables."""
    session, begin = Session(), time.monotonic()
    plans: dict[str, Plan] = {}
    for name in plan_files:
        plan = read_plan(name)
        _once(plan["host"], plans, "plan", name)
        plans[plan["host"]] = plan
    hosts: dict[str, InventoryHost] | None = None
    seen: set[str] = set()
    for name in snapshot_files:
        saved = read_snapshot(name)
        host, snapshot = saved.host, saved.snapshot
        _once(host, seen, "snapshot", name)
        seen.add(host)
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
                    name,
                    "Add its plan by --plan FILE, or its inventory by -i.",
                )
            session.hosts.append(judged(hosts[host], snapshot, reason, resolve=resolve))
            continue
        session.hosts.append(
            HostRun(
                host,
                snapshot,
                plans[host],
                result_of(plans[host], snapshot, reason),
                beside=beside_of(snapshot),
            )
        )
    session.hosts = siblings.compared(session.hosts)
    session.taken = span(run.snapshot.get("finished") for run in session.hosts if run.snapshot)
    session.finished, session.seconds = utc_now(), time.monotonic() - begin
    return session


def _once(host: str, known: Container[str], what: str, name: str) -> None:
    """One of them would be judged, and the other forgotten."""
    if host in known:
        raise ConfigurationError(
            f"A second {what} is of {host}.",
            name,
            "Leave one out, or judge it in a run of its own.",
        )


def span(finished: Iterable[object]) -> str:
    """When the probes of snapshots ended, the first and the last. What is no time is left out."""
    known = sorted(each for each in map(str, finished) if TIME.fullmatch(each))
    return " to ".join(dict.fromkeys((known[0], known[-1]))) if known else ""


def read_plan(name: str) -> Plan:
    """The plan in a file. Raises `ConfigurationError`, with the location of the first fault."""
    document = _read(name)
    return _plan(document, name)


def read_snapshot(name: str) -> Saved:
    """The snapshot, bundle or collected result in a file. Raises as `read_plan`."""
    document = _read(name)
    host = document["host"]
    if "result" not in document:
        return Saved(host, _snapshot(document, host, name))
    if "snapshot" not in document or not all(
        isinstance(document.get(key), dict) for key in ("plan", "result")
    ):
        raise ConfigurationError(
            "The file has a result, but is not a bundle: it lacks the"
            " plan, the snapshot or the verdicts.",
            name,
        )
    plan = _plan(document["plan"], name)
    _require(HostResult, document["result"], "result", name)
    result: HostResult | None = document["result"]
    if document["snapshot"] is not None:
        return Saved(host, _snapshot(document["snapshot"], host, name), plan, result)
    # Nothing was read of the host: only what says so is a reason.
    reasons = {Verdict.HUNG, Verdict.UNREACHABLE, Verdict.INCONCLUSIVE}
    known = result and {result["verdict"], *(row["verdict"] for row in result["checks"])} <= reasons
    return Saved(host, None, plan, result if known else None)


def _plan(document: dict[str, Any], name: str) -> Plan:
    _require(Plan, document, "plan", name)
    plan = cast(Plan, document)
    count = plan["expect"]["count"] if plan["expect"] else None
    # Work is done for each GPU.
    if count is not None and not 0 <= count <= MOST_GPUS:
        raise ConfigurationError(
            f"The file has no valid plan: plan.expect.count is {count}, and"
            f" should be a number up to {MOST_GPUS}.",
            name,
            REMEDY,
        )
    return plan


def _snapshot(document: object, host: str, name: str) -> Snapshot:
    try:
        found = received.snapshot_in(document, host)
    except received.UnfitError as error:
        raise ConfigurationError(
            f"The file has no valid snapshot: {error}.", name, REMEDY
        ) from error
    if found is None:
        raise ConfigurationError(
            "The file has no valid snapshot: it has no sections.", name, REMEDY
        )
    return found


def _require(kind: object, document: object, what: str, name: str) -> None:
    found = faults(kind, document, what)
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        raise ConfigurationError(f"The file has no valid {what}: {found[0]}{more}.", name, REMEDY)


def read_bounded(path: Path) -> bytes:
    """A regular file of at most a document's size. Raises `OSError`, `UnfitError`."""
    # A pipe or a device in its place would block, or never end.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise received.UnfitError("it is no regular file")
        raw = file.read(received.MOST_BYTES + 1)
    if len(raw) > received.MOST_BYTES:
        raise received.UnfitError(f"it has more than {received.MOST_BYTES} bytes")
    return raw


def _read(name: str) -> dict[str, Any]:
    try:
        document = received.parsed(read_bounded(Path(name)), "the file")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"The file cannot be read: {error}", name) from error
    if (
        not isinstance(document, dict)
        or "host" not in document
        or "schema" not in document
        or not isinstance(document["host"], str)
    ):
        raise ConfigurationError("The file is neither a snapshot nor a plan.", name)
    document["host"] = one_line(document["host"])
    snapshot = document.get("snapshot")
    if "result" in document and isinstance(snapshot, dict):
        # The snapshot goes through the door by itself: a damaged section costs no more than that.
        del document["snapshot"]
        return {**_checked(document, name), "snapshot": snapshot}
    return document if "sections" in document else _checked(document, name)


def _checked(document: dict[str, Any], name: str) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], received.checked(document, "document"))
    except received.UnfitError as error:
        raise ConfigurationError(f"The file cannot be read: {error}", name, REMEDY) from error
