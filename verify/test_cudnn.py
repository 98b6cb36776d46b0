"""cuDNN: version, symlinks, files, permissions, and an exact convolution."""

from __future__ import annotations

from gpufleet.verification.suite import require_pass

AREA = "cudnn"  # the checks with an id `cudnn.*`, see docs/checks.md


def test_check(entry: dict[str, str]) -> None:
    """The check passes on the host; one that a declaration excludes is skipped."""
    require_pass(entry)
