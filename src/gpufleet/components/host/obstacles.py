"""Obstacles that a person clears before gpufleet can repair a host: file attributes and mounts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpufleet.components.base.registry import Finding
from gpufleet.components.base.remedies import Remedy, person, then
from gpufleet.components.base.sections import Sections
from gpufleet.documents.sections.cuda import Obstacle
from gpufleet.documents.text import quoted, shell
from gpufleet.on_host.constants import ATTRIBUTE_LETTERS

MOST_NAMED = 5


def cleared(finding: Finding, observed: Sections) -> Finding:
    """The finding, its remedy `provision` preceded by the acts of a person that it depends on."""
    remedy = finding.remedy
    if not isinstance(remedy, Remedy) or all(part["by"] != "provision" for part in remedy.repairs):
        return finding
    section = observed.snapshot["sections"].get("receipts")
    data = section["data"] if section is not None and section["state"] == "ok" else None
    acts = list(_acts(data.get("obstacles", []))) if data else []
    if not acts:
        return finding
    return replace(finding, remedy=then(person(f"on the host: {'; '.join(acts)}"), remedy))


def _acts(obstacles: list[Obstacle]) -> Iterator[str]:
    for attribute, letter in ATTRIBUTE_LETTERS.items():
        paths = [row["path"] for row in obstacles if row["what"] == attribute]
        if paths:
            more = f" and {len(paths) - MOST_NAMED} more" if len(paths) > MOST_NAMED else ""
            shown = paths[:MOST_NAMED]
            act = shell(
                f"chattr -{letter}",
                *shown,
                instead=f"take the attribute {attribute} from {', '.join(map(quoted, shown))}",
            )
            yield f"{act}{more} (the attribute {attribute} keeps root from changing them)"
    for row in obstacles:
        where, source = quoted(row["path"]), quoted(row["source"] or "a file system")
        if row["what"] == "read-only":
            yield (
                f"{source} is mounted read-only at {where}: unmount it if it does not belong there,"
                " else mount it writable (mount -o remount,rw)"
            )
        elif row["what"] == "mounted":
            yield (
                f"{source} is mounted at {where}, over the records of what gpufleet installed:"
                " unmount it"
            )
