"""The host: reachable, probed, with a valid plan and free disk space."""

from __future__ import annotations

from gpufleet.verification.suite import require_pass

AREA = "host"  # the checks with an id `host.*`, see docs/checks.md


def test_check(entry: dict[str, str]) -> None:
    """The check passes on the host; one that a declaration excludes is skipped."""
    require_pass(entry)
