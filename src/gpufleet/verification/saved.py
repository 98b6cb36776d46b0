"""Read saved documents: snapshots, plans, bundles; refuse a file that is none of them.

A damaged section of a snapshot is no reason to refuse the file: the checks that read it are
INCONCLUSIVE, and `host.probe` names the location.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpufleet.errors import ConfigurationError
from gpufleet.model.plan import Plan
from gpufleet.model.snapshot import Snapshot, SnapshotEnvelope
from gpufleet.model.validator import faults
from gpufleet.model.verdict import HostResult

REMEDY = "Save it again by './gpufleet verify --save DIR'."


@dataclass(frozen=True)
class Saved:
    """What one file holds of a host; a bundle holds all three."""

    host: str
    snapshot: Snapshot | None
    plan: Plan | None = None
    result: HostResult | None = None


def read_plan(name: str) -> Plan:
    """The plan in a file. Raises `ConfigurationError`, with the location of the first fault."""
    document = _read(name)
    _require(Plan, document, "plan", name)
    return cast(Plan, document)


def read_snapshot(name: str) -> Saved:
    """The snapshot, bundle or collected result in a file. Raises as `read_plan`."""
    document = _read(name)
    if "result" not in document:
        _require(SnapshotEnvelope, document, "snapshot", name)
        return Saved(document["host"], cast(Snapshot, document))
    if "snapshot" not in document or not all(
            isinstance(document.get(key), dict) for key in ("plan", "result")):
        raise ConfigurationError("The file has a result, but is not a bundle: it lacks the"
                                 " plan, the snapshot or the verdicts.", name)
    _require(Plan, document["plan"], "plan", name)
    _require(HostResult, document["result"], "result", name)
    if document["snapshot"] is not None:
        _require(SnapshotEnvelope, document["snapshot"], "snapshot", name)
    return Saved(document["host"], document["snapshot"], document["plan"], document["result"])


def _require(kind: object, document: object, what: str, name: str) -> None:
    found = faults(kind, document, what)
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        raise ConfigurationError(f"The file has no valid {what}: {found[0]}{more}.", name, REMEDY)


def _read(name: str) -> dict[str, Any]:
    try:
        document = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"The file cannot be read: {error}", name) from error
    if not isinstance(document, dict) or "host" not in document or "schema" not in document \
            or not isinstance(document["host"], str):
        raise ConfigurationError("The file is neither a snapshot nor a plan.", name)
    return document
