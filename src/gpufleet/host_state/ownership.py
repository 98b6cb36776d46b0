"""Ownership: whether what is installed in a planned place is gpufleet's own.

A tree is gpufleet's when it has a receipt, or a journal entry from an installation that did not
finish. Everything else is foreign.
"""

from __future__ import annotations

from gpufleet.model.plan import PlannedCudnn, PlannedStack, PlannedToolkit

from .host import Host


def foreign(host: Host, kind: str, identity: str, stands: bool) -> bool:
    """Whether something stands there that we did not install."""
    ours = host.receipt(kind, identity) or host.journal(kind, identity)
    return stands and not ours and host.section("receipts") is not None


def foreign_toolkit(host: Host, row: PlannedToolkit) -> bool:
    stands = host.tree(row["path"]) is not None or host.occupied(row["path"])
    return foreign(host, "toolkit", row["short"], stands)


def foreign_cudnn(host: Host, row: PlannedCudnn, adopting: bool = False) -> bool:
    """Whether a toolkit of ours has libraries of that cuDNN that somebody else put there.

    `adopting`: a toolkit of somebody else's counts as well, since it becomes ours.
    """
    libraries = host.cudnn_libraries(row["toolkit_path"], row["soname"])
    ours = adopting or host.receipt("toolkit", row["toolkit"]) is not None
    return ours and foreign(host, "cudnn", row["id"], bool(libraries))


def foreign_stack(host: Host, row: PlannedStack) -> bool:
    stands = host.stack(row["name"]) is not None or host.occupied(row["venv"])
    return foreign(host, "stack", row["name"], stands)


def elsewhere(host: Host, kind: str, identity: str, path: str) -> str | None:
    """Where it is installed by its receipt, if that is not the planned place."""
    found = (host.receipt(kind, identity) or {}).get("path")
    return str(found) if found and found != path else None


def foreign_default(host: Host) -> bool:
    """Whether a directory or file stands where the default link belongs."""
    link = host.default_link
    return link is not None and str(link.get("state")) in {"directory", "file"}
