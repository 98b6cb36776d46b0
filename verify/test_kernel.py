"""The kernel log since boot: Xids and hardware errors."""

from __future__ import annotations

from gpufleet.verification.suite import require_pass

AREA = "kernel"  # the checks with an id `kernel.*`, see docs/checks.md


def test_check(entry: dict[str, str]) -> None:
    """The check passes on the host; one that a declaration excludes is skipped."""
    require_pass(entry)
