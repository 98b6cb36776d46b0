"""The NVIDIA driver: packages, kernel modules, device files and daemons."""

from __future__ import annotations

from gpufleet.verification.suite import require_pass

AREA = "driver"  # the checks with an id `driver.*`, see docs/checks.md


def test_check(entry: dict[str, str]) -> None:
    """The check passes on the host; one that a declaration excludes is skipped."""
    require_pass(entry)
