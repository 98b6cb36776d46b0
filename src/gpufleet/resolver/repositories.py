"""Package repositories: refuse a host on which one of them stops every command of apt or dnf."""

from __future__ import annotations

from gpufleet.host_state import repositories
from gpufleet.model.plan import Plan
from gpufleet.model.problems import Code

from .context import ResolveContext


def check(context: ResolveContext, plan: Plan) -> None:
    """Refuse before any role calls apt or dnf: several install packages of the distribution."""
    for fault in repositories.stopping(plan, context.host):
        context.refuse(Code.PACKAGES_STOPPED, fault.cause, "host", fault.remedy)
