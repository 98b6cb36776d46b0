"""The dynamic linker: registered directories, cache, and foreign libraries."""

from __future__ import annotations

from gpufleet.verification.suite import require_pass

AREA = "linker"  # the checks with an id `linker.*`, see docs/checks.md


def test_check(entry: dict[str, str]) -> None:
    """The check passes on the host; one that a declaration excludes is skipped."""
    require_pass(entry)
