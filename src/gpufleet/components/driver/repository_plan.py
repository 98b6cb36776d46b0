"""Package repositories: refuse a host on which one of them stops every command of apt or dnf."""

from __future__ import annotations

from gpufleet.components.base.context import ResolveContext
from gpufleet.components.driver import repositories
from gpufleet.documents.plan import Plan
from gpufleet.documents.problems import Code


def check(context: ResolveContext, plan: Plan) -> None:
    """Refuse before any role calls apt or dnf: several install packages of the distribution."""
    for fault in repositories.stopping(plan, context.host):
        context.refuse(Code.PACKAGES_STOPPED, fault.cause, "host", fault.remedy)
