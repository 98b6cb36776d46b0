"""The changes that bring a host to its planned network drivers, modules and PCI settings."""

from __future__ import annotations

from gpufleet.components.base.change import change, unobserved
from gpufleet.components.base.host import Host
from gpufleet.components.network import judge as network_setup
from gpufleet.documents.plan import Plan, PlanChange


def network_change(plan: Plan, host: Host) -> PlanChange | None:
    """The next run's change of the network adapters, with the first reason for it."""
    kind, identity = network_setup.IDENTITY
    wanted = plan.get("network")
    if wanted and (found := unobserved(host, kind, identity, *network_setup.SECTIONS)):
        return found
    causes = [fault.cause for fault in network_setup.faults(plan, host) if fault.action]
    if not causes:
        return None
    more = f" (and {len(causes) - 1} more)" if len(causes) > 1 else ""
    return change(kind, identity, "repair" if wanted else "remove", causes[0] + more)
