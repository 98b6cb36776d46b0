"""GPUs in containers: engine, CDI, devices, and exact results."""

from __future__ import annotations

from gpufleet.verification.suite import require_pass

AREA = "containers"  # the checks with an id `containers.*`, see docs/checks.md


def test_check(entry: dict[str, str]) -> None:
    """The check passes on the host; one that a declaration excludes is skipped."""
    require_pass(entry)
