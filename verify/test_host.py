"""Every check on every host. What they are is in `checks/`; what was found, in the snapshot."""

from __future__ import annotations

import pytest

from verify.verdict import Verdict


def test_check(entry: dict[str, str]) -> None:
    """A check holds; a declaration may excuse it; whatever else is no success."""
    verdict = Verdict(entry["verdict"])
    if verdict is Verdict.NOT_DECLARED:
        pytest.skip(f"not declared: {entry['cause']}")
    if verdict is not Verdict.PASS:
        lines = [f"{verdict}: {entry['statement']}", f"cause:  {entry['cause']}",
                 f"remedy: {entry['remedy']}"]
        pytest.fail("\n".join(lines + [entry["evidence"]] * bool(entry["evidence"])), pytrace=False)
