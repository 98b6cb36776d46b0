"""The changes that bring a host to its planned container engine and container toolkit."""

from __future__ import annotations

from gpufleet.components.base.change import change, unobserved
from gpufleet.components.base.host import Host, mapping
from gpufleet.components.containers import judge as containers
from gpufleet.documents.plan import Plan, PlanChange


def containers_change(plan: Plan, host: Host) -> PlanChange | None:
    """The next run's change of container engine and toolkit, with the first reason for it."""
    kind, identity = containers.RECEIPT
    wanted, entry = plan.get("containers"), host.journal(kind, identity)

    state, since = (entry or {}).get("state"), (entry or {}).get("started")
    unfinished = f"the journal records {state} since {since}"
    if wanted is None:
        if entry and entry.get("state") == "removing":
            return change(kind, identity, "remove", unfinished)
        if (host.receipt(kind, identity) or entry) and plan.get("prune"):
            return change(kind, identity, "remove", "it is no longer declared (gpu_prune)")
        return None
    if found := unobserved(host, kind, identity, "receipts", "containers"):
        return found
    written = mapping(host.containers.get("daemon"))
    if written.get("error") and wanted["engine"] == "docker":
        because = f"{written.get('path')} cannot be read: {written['error']}"
        return change(kind, identity, "refuse", because)
    running = containers.running_with_gpus(host)
    # The plan names the containers that packages and a restart of the engine could touch.
    beside = f"; these containers with GPUs run: {', '.join(running)}" if running else ""
    if entry:
        return change(kind, identity, "finish", unfinished + beside)
    off = [*containers.lacking(wanted, host), *containers.stale(wanted, host)]
    if host.receipt(kind, identity) is None:
        because = off[0] if off else "gpufleet has not set it up"
        return change(kind, identity, "install", because + beside)
    return change(kind, identity, "repair", off[0] + beside) if off else None
