"""Restart: whether the installed driver is also the running one."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base.host import Host
from gpufleet.components.base.registry import REBOOT, Evidence, Finding, check
from gpufleet.components.base.remedies import of_driver
from gpufleet.components.base.sections import Sections
from gpufleet.components.driver import restart_change as restart
from gpufleet.documents.plan import Plan

PENDING = {
    "reload": "The driver's kernel modules must be reloaded",
    "reboot": "A reboot for the driver is pending",
    "wait": "A reboot for the driver is pending, and provisioning does not reboot",
    "stuck": "The driver does not run as declared after a restart, and no other restart is tried",
}


def _not_managed(plan: Plan) -> str | None:
    driver = plan["driver"]
    if driver and driver.get("managed"):
        return None
    source = driver.get("source") if driver else None
    return f"gpu_driver: {{source: {source}}}" if source else "gpu_driver: not set"


@check(
    "driver.pending", reads=("kernel", "gpus", "driver"), repair=REBOOT, skip_reason=_not_managed
)
def pending(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """No driver restart is pending: the installed driver is the running one."""
    decision = restart.decide(plan, Host(observed.snapshot))
    marker = observed.data["driver"].get("reboot_pending")
    since = f", since {marker.get('since')}: {marker.get('because')}" if marker else ""
    # A fault that no restart repairs, and none was tried for, is left to other checks.
    if decision["action"] in PENDING and (marker or decision["action"] != "stuck"):
        yield Finding(
            f"{PENDING[decision['action']]}{since}. {_sentence(decision['because'])}",
            of_driver(plan, decision["remedy"]),
            about=("pending",),
        )
    yield Evidence(f"{decision['action']}: {decision['because']}{since}")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
