"""Two hosts together: exact distributed runs (--gpu-pair, --gpu-pairs)."""

from __future__ import annotations

from gpufleet.verification.suite import require_pass

AREA = "pair"  # the checks with an id `pair.*`, see docs/checks.md


def test_check(entry: dict[str, str]) -> None:
    """The check passes on the host; one that a declaration excludes is skipped."""
    require_pass(entry)
