"""Repairs that failing checks demand, of components that look right by their metadata. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from gpufleet.components.stacks import environment_plan as environment
from gpufleet.documents.plan import Component, Plan, PlanChange, Step

from .base.change import change

# Steps that a failing check can demand. A lack of links alone takes the step before these.
STEPS: tuple[Step, ...] = ("contents", "reinstall", "recreate")
ORDER: tuple[Step, ...] = ("links", *STEPS)
MEANING: dict[Step, str] = {
    "contents": "compare every file with what is recorded of it, and restore what differs",
    "reinstall": "install it over what is there",
    "recreate": "move it aside and install it as on a fresh host",
}
# For all components of a host at once: `-e gpu_repair=contents`.
Repair = Mapping[str, str]


def key(what: str, identity: str) -> str:
    """How a component is named in `gpu_repair`: `toolkit 11.8`."""
    return f"{what} {identity}"


def repairable(plan: Plan) -> Iterator[tuple[Component, str]]:
    """The planned components that a run can repair, as `what` and `id` of a change."""
    yield from (("toolkit", row["short"]) for row in plan["toolkits"])
    yield from (("cudnn", row["id"]) for row in plan["cudnn"])
    yield from (("stack", row["name"]) for row in plan["stacks"])
    if plan["environment"]:
        yield cast(tuple[Component, str], environment.RECEIPT)
    if plan["linker"]["directories"]:
        yield "linker", plan["linker"]["file"]
    if plan["default_link"]:
        yield "default_link", plan["default_link"]["path"]
    if plan["driver"] and plan["driver"].get("managed"):
        yield "driver", "driver"
    if plan.get("containers"):
        yield "containers", "engine"


def steps_of(value: object, host: str, plan: Plan) -> dict[str, str]:
    """A host's steps by component, from the variable `gpu_repair`: a step, or {host: {...}}."""
    if value in STEPS:
        return {key(*each): str(value) for each in repairable(plan)}
    own = value.get(host) if isinstance(value, Mapping) else None
    if own in STEPS:
        return {key(*each): str(own) for each in repairable(plan)}
    return {str(name): str(step) for name, step in own.items()} if isinstance(own, Mapping) else {}


def with_repairs(rows: list[PlanChange], plan: Plan, repair: Repair) -> list[PlanChange]:
    """The changes, with a step for each component that is to be repaired."""
    there = {key(row["what"], row["id"]): row for row in rows}
    for what, identity in repairable(plan):
        step = repair.get(key(what, identity))
        if step not in STEPS:
            continue
        row = there.get(key(what, identity))
        if row is None:
            because = f"a check that depends on it fails: {MEANING[step]}"
            rows.append(change(what, identity, "repair", because, step))
        elif row["action"] in {"install", "upgrade", "repair", "finish"}:
            row["step"] = max(step, row.get("step", STEPS[0]), key=ORDER.index)
    return rows
