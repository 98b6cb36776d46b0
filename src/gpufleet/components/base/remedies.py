"""The repair of a finding, as data: a command, the component it repairs, or a person's act.

Checks build remedies by these functions only, so that `provision` knows what to repair, and what
is printed is what it does. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from gpufleet.components.base import driver_state
from gpufleet.documents.plan import Component as Kind
from gpufleet.documents.plan import Plan, PlannedCudnn, PlannedStack, PlannedToolkit
from gpufleet.documents.text import gpufleet
from gpufleet.documents.verdict import Repair

# A text that is a command alone.
COMMAND = re.compile(r"\./gpufleet [a-z][\w ./=-]*", re.ASCII)


class Component(NamedTuple):
    """A component that `provision` can repair: `toolkit` 11.8, `cudnn` 11.8-8, `stack` NAME, ..."""

    kind: Kind
    name: str


DRIVER = Component("driver", "driver")
ENVIRONMENT = Component("environment", "files")
CONTAINERS = Component("containers", "engine")


@dataclass(frozen=True)
class Remedy:
    """The printed text, and its parts in the order in which they are to be done."""

    text: str
    repairs: tuple[Repair, ...]

    def __str__(self) -> str:
        return self.text


def provision(plan: Plan, *components: Component, note: str = "", contents: bool = False) -> Remedy:
    """`./gpufleet provision`: it repairs these components, the most likely one first.

    Without components it does what the plan's changes say. `contents`: only a run that reads the
    contents of all files sees what is wrong.
    """
    if locally_found(plan):
        return person("repair it by hand, or declare it and run ./gpufleet provision")
    line = gpufleet("provision", "--limit", plan["host"], *["--contents"] * contents)
    parts: list[Repair] = [
        {"by": "provision", "command": line, "component": each.kind, "name": each.name}
        for each in dict.fromkeys(components)
    ]
    return Remedy(
        f"{line} ({note})" if note else line, tuple(parts or [{"by": "provision", "command": line}])
    )


def command(*words: str, note: str = "") -> Remedy:
    """A command of gpufleet, to run as printed on the control machine."""
    line = gpufleet(*words)
    return Remedy(f"{line} ({note})" if note else line, ({"by": "command", "command": line},))


def person(act: str) -> Remedy:
    """A remedy that only a person can carry out, or must decide."""
    if not act.strip():
        raise ValueError("a remedy for a person says what to do")
    return Remedy(act, ({"by": "person", "act": act},))


def of_text(text: str) -> Remedy:
    """A remedy that is only text: a command alone, or what a person has to do."""
    line, _, note = text.partition(" (")
    return (
        command(*line.split()[1:], note=note.rstrip(")"))
        if COMMAND.fullmatch(line)
        else person(text)
    )


def then(first: Remedy, second: Remedy) -> Remedy:
    """One after the other."""
    return Remedy(f"{first.text}; then {second.text}", first.repairs + second.repairs)


def see(checks: str, remedy: Remedy) -> Remedy:
    """A remedy that helps unless other checks say more: `see stack.matmul; ...`."""
    return Remedy(f"see {checks}; {remedy.text}", remedy.repairs)


def otherwise(first: Remedy, second: str) -> Remedy:
    """A remedy, and what a person has to look at where it does not help."""
    return Remedy(f"{first.text}; {second}", (*first.repairs, {"by": "person", "act": second}))


def of_driver(plan: Plan, text: str) -> Remedy:
    """The remedy of a fault of the driver, which its judges word."""
    line = driver_state.provision(plan)
    if driver_state.managed(plan) and line in text:
        return Remedy(
            text,
            ({"by": "provision", "command": line, "component": DRIVER.kind, "name": DRIVER.name},),
        )
    return person(text)


def toolkit(row: PlannedToolkit) -> Component:
    """A planned toolkit."""
    return Component("toolkit", row["short"])


def toolkit_at(plan: Plan, path: str | None) -> tuple[Component, ...]:
    """The planned toolkit in a directory."""
    return tuple(toolkit(row) for row in plan["toolkits"] if row["path"] == path)


def cudnn(row: PlannedCudnn) -> Component:
    """A planned cuDNN."""
    return Component("cudnn", f"{row['toolkit']}-{row['major']}")


def cudnn_in(plan: Plan, path: str | None) -> tuple[Component, ...]:
    """The cuDNN planned in a toolkit's directory."""
    return tuple(cudnn(row) for row in plan["cudnn"] if row["toolkit_path"] == path)


def stack(plan: Plan, row: PlannedStack) -> tuple[Component, ...]:
    """A planned stack, and what it loads."""
    path = row["toolkit_path"]
    return (Component("stack", row["name"]), *cudnn_in(plan, path), *toolkit_at(plan, path))


def locally_found(plan: Plan) -> bool:
    """Return whether `--local` planned what it found: no declaration exists to be provisioned."""
    return any(row.get("found") for row in plan["toolkits"])
