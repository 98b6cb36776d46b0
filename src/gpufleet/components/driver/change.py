"""The changes that a managed driver needs, and the reason why it needs a restart."""

from __future__ import annotations

from gpufleet.components.base import driver_state
from gpufleet.components.base.change import altered, change, unfinished, unobserved
from gpufleet.components.base.host import Host, mapping
from gpufleet.components.driver import kernels as driver_kernels
from gpufleet.components.driver import packages as driver_packages
from gpufleet.components.driver import running as driver_running
from gpufleet.documents.plan import Plan, PlanChange

from . import restart_change as restart

# In the order in which they matter, and in which a run sets them right. Whether the driver that
# is installed also runs is for `restart`.
DRIVER: tuple[driver_state.Judge, ...] = (
    driver_packages.packages,
    driver_packages.holds,
    driver_kernels.modules,
    driver_kernels.nouveau,
    driver_running.persistence,
    driver_running.fabric,
    driver_running.subnet_manager,
    driver_running.mig,
    driver_running.mig_boot,
)


def driver_change(host: Host, plan: Plan) -> PlanChange | None:
    """The driver where it is managed: from its receipt, then from what it lacks."""
    kind, identity = driver_state.RECEIPT
    if driver_state.managed(plan) is None:
        return None
    if found := unobserved(host, kind, identity, *driver_state.SECTIONS, "receipts"):
        return found
    if found := unfinished(host, kind, identity):
        return found
    receipt = host.receipt(kind, identity)
    faults = [
        (fault.action, fault.cause)
        for judge in DRIVER
        for fault in judge(plan, host)
        if fault.action
    ]
    faults.sort(key=lambda row: row[0] != "refuse")
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    if faults and (receipt or faults[0][0] == "refuse"):
        return change(kind, identity, faults[0][0], faults[0][1] + more)
    if receipt is None:
        because = faults[0][1] + more if faults else "the installed one has no receipt"
        return change(kind, identity, "install", because)
    return altered(receipt, kind, identity, str(receipt.get("version")))


def restart_change(plan: Plan, host: Host) -> PlanChange | None:
    """A driver that is installed and does not run yet, or does and its marker still stands."""
    decision = restart.decide(plan, host)
    marker = mapping(plan["driver"]).get("managed") and host.reboot_pending
    if decision["action"] not in {"reload", "reboot"} and not (
        decision["action"] == "none" and marker
    ):
        return None
    return change("driver", "driver", "restart", decision["because"])


def library_change(host: Host, plan: Plan) -> PlanChange | None:
    """The library alone; a managed driver includes its own."""
    row = plan["driver_library"]
    if row is None or driver_state.managed(plan):
        return None
    if found := unobserved(host, "driver_library", row["soname"], "driver"):
        return found
    if host.driver_library:
        return None
    because = f"{', '.join(row['because'])} cannot be imported without it"
    return change("driver_library", row["soname"], "install", because)
