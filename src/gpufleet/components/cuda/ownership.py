"""Ownership: whether what is installed at a planned path is gpufleet's own. Pure.

A tree is gpufleet's when it has a receipt, or a journal entry from an installation that did not
finish; and when its receipt is lost, but something else that gpufleet wrote shows it: the damaged
record, its file for the linker that names the toolkit, the binding in a stack. Everything else is
foreign.
"""

from __future__ import annotations

from gpufleet.components.base.host import Host
from gpufleet.documents.plan import PlannedStack


def foreign(host: Host, kind: str, identity: str, exists: bool) -> bool:
    """Return whether a component exists that gpufleet did not install."""
    ours = (
        host.receipt(kind, identity)
        or host.journal(kind, identity)
        or any(host.damaged(records, kind, identity) for records in ("receipts", "journal"))
    )
    return exists and not ours and host.section("receipts") is not None


def registered(host: Host, path: str) -> bool:
    """Return whether gpufleet's file for the linker lists a toolkit's libraries."""
    rows = [row for row in host.linker_files if "gpufleet" in str(row.get("path"))]
    return any(
        str(each).startswith(f"{path}/") for row in rows for each in row.get("directories") or []
    )


def bound(host: Host, row: PlannedStack) -> bool:
    """Return whether an environment at a planned stack's path has gpufleet's binding."""
    found = host.stack(row["name"]) or {}
    return found.get("venv") == row["venv"] and bool(found.get("bound_to"))


def foreign_stack(host: Host, row: PlannedStack) -> bool:
    exists = host.stack(row["name"]) is not None or host.occupied(row["venv"])
    return foreign(host, "stack", row["name"], exists) and not bound(host, row)


def elsewhere(host: Host, kind: str, identity: str, path: str) -> str | None:
    """The installed path in its receipt, if it is not the planned one."""
    found = (host.receipt(kind, identity) or {}).get("path")
    return str(found) if found and found != path else None
