"""Messages of the kernel log that are no Xid or SXid (catalog/data/kernel_log.yml)."""

from __future__ import annotations

from gpufleet.documents.types import Row

from . import facts


def meaning(kind: str) -> Row | None:
    """The meaning of a kind of message for the host; None if no rule judges it."""
    found: Row | None = facts.document("kernel_log.yml")["kinds"].get(kind)
    return found
