"""How far the contents of a host's installations were read: states that go from night to night."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from gpufleet.documents.sections.cuda import ContentsRead, Scrub
from gpufleet.documents.validator import faults

# A host may send anything; what it sends here is sent back to it each night.
MOST_BYTES = 1 << 20


def scrub_of(snapshot: Mapping[str, Any] | None) -> Scrub | None:
    """The share of contents that a night read; None where it read none, or sent something else.

    Its times are the host's: they are of no use where its clock is wrong.
    """
    if snapshot and snapshot.get("clock_offset_s"):
        return None
    try:
        found = snapshot["sections"]["receipts"]["data"]["scrub"] if snapshot else None
    except (KeyError, TypeError):
        return None
    return cast(Scrub, found) if found and not faults(Scrub, found, "scrub") else None


def sound_states(states: object) -> list[ContentsRead]:
    """Stored states without those that are damaged or another release's: these begin again."""
    if not isinstance(states, list) or len(json.dumps(states)) > MOST_BYTES:
        return []
    return [state for state in states if not faults(ContentsRead, state, "state")]


def last_read(state: ContentsRead) -> int:
    """When it was last read whole, or else when its first reading started."""
    return state["first"] if state["read"] is None else state["read"]


def oldest_reading(snapshot: Mapping[str, Any] | None) -> int | None:
    """The time since which every component was read whole, or its reading started."""
    scrub = scrub_of(snapshot)
    return min(map(last_read, scrub["components"]), default=None) if scrub else None
