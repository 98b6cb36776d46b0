"""Installations: complete, recorded by receipts, writable by root alone."""

from __future__ import annotations

from gpufleet.verification.suite import require_pass

AREA = "install"  # the checks with an id `install.*`, see docs/checks.md


def test_check(entry: dict[str, str]) -> None:
    """The check passes on the host; one that a declaration excludes is skipped."""
    require_pass(entry)
