"""Every check on every host. What they are is in `checks/`; what was found, in the snapshot."""

from __future__ import annotations

import pytest

from gpufleet.model.verdict import Verdict
from gpufleet.report import junit


def test_check(entry: dict[str, str]) -> None:
    """A check holds; a declaration may excuse it; whatever else is no success."""
    verdict = Verdict(entry["verdict"])
    if verdict is Verdict.NOT_DECLARED:
        pytest.skip(junit.message(entry))
    if verdict is not Verdict.PASS:
        pytest.fail(junit.message(entry), pytrace=False)
