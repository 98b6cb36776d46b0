"""Changes: what a host lacks of its plan. A pure comparison of two documents.

A section of the snapshot that could not be read never counts as converged, and is no reason to
install: what depends on it is `unread`, and the reason says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpufleet.components.base.host import Host
from gpufleet.documents.plan import Plan, PlanChange

from .containers.change import containers_change
from .cuda.cudnn import cudnn_change
from .cuda.linker_change import linker_change
from .cuda.toolkit import default_link_change, toolkit_change
from .driver.change import driver_change, library_change, restart_change
from .network.change import network_change
from .removals import removals
from .repairs import Repair, with_repairs
from .stacks.change import environment_change, stack_change


def changes(
    plan: Plan, snapshot: Mapping[str, Any] | None, repair: Repair | None = None
) -> list[PlanChange]:
    """The changes that bring a host to its plan, in the order of the roles.

    `what` is driver, toolkit, cudnn, driver_library, network, containers, stack, environment,
    linker or default_link; `id` is the receipt's id, the library's name, the linker file's or the
    link's path; `action` is install, upgrade, repair, finish, restart, adopt, remove, refuse or
    unread. An empty list means that the host is what the plan says, as far as documents can tell.
    `repair`: {component: step} of what a failing check demands beyond that.
    """
    host, adopt = Host(snapshot), bool(plan.get("adopt"))
    rows = [driver_change(host, plan) or restart_change(plan, host)]
    rows += [toolkit_change(host, row, adopt) for row in plan["toolkits"]]
    rows += [cudnn_change(host, row, adopt) for row in plan["cudnn"]]
    rows.append(library_change(host, plan))
    # Both need services that run: after its first boot the next run sets them up.
    if not host.is_image:
        rows.append(network_change(plan, host))
        rows.append(containers_change(plan, host))
    rows += [stack_change(host, row) for row in plan["stacks"]]
    rows.append(environment_change(host, plan["environment"]))
    rows += removals(plan, host)
    rows.append(default_link_change(host, plan["default_link"]))
    rows.append(linker_change(host, plan))
    return with_repairs([row for row in rows if row is not None], plan, repair or {})
