"""Silences of a host's check, and the causes that they cover."""

from __future__ import annotations

from typing import Any

from gpufleet.documents.nightly import Silence
from tests.support.nightly_sessions import at

CAUSE = "1 of 8 declared GPUs is not on the PCI bus"
TWO = "2 of 8 declared GPUs are not on the PCI bus"
FAILS, OTHER = f"FAIL: {CAUSE}", f"FAIL: {TWO}"


def silence(check: str = "gpu.count", *causes: str, until: str = "2026-11-20", **more: Any) -> Any:
    """A silence of gpu01 for these causes: `FAIL: because`."""
    found: Silence = {
        "host": "gpu01",
        "check": check,
        "causes": [
            {"verdict": cause.partition(": ")[0], "cause": cause.partition(": ")[2]}
            for cause in causes or (f"FAIL: {CAUSE}",)
        ],
        "until": until,
        "who": "ann",
        "why": "card ordered",
        "since": at(0),
    }
    return {**found, **more}
