"""Login environment: variables that disturb CUDA, modulefiles, profile and kernels."""

from __future__ import annotations

from gpufleet.verification.suite import require_pass

AREA = "environment"  # the checks with an id `environment.*`, see docs/checks.md


def test_check(entry: dict[str, str]) -> None:
    """The check passes on the host; one that a declaration excludes is skipped."""
    require_pass(entry)
