"""Each exception that the guard around a host catches is a finding here."""

from __future__ import annotations

import re
import traceback

import pytest

from gpufleet import errors


@pytest.fixture
def defects(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tracebacks of what was guarded, while the test runs."""
    found: list[str] = []
    noted = errors._defect

    def note(step: str, error: str, raised: BaseException, *more: float) -> errors.Defect:
        # A check says so that a value which it needs is missing, or is null: it is INCONCLUSIVE.
        if not (re.match(r"judged \w+\.", step) and isinstance(raised, KeyError | ValueError)):
            found.append(f"{step}: " + "".join(traceback.format_exception(raised)[-4:]))
        return noted(step, error, raised, *more)

    monkeypatch.setattr(errors, "_defect", note)
    return found
