"""CUDA toolkits: release, files, default link, and what their libraries compute."""

from __future__ import annotations

from gpufleet.verification.suite import require_pass

AREA = "toolkit"  # the checks with an id `toolkit.*`, see docs/checks.md


def test_check(entry: dict[str, str]) -> None:
    """The check passes on the host; one that a declaration excludes is skipped."""
    require_pass(entry)
