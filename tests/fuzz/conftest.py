"""Each exception that the guard around a host catches is a finding here."""

from __future__ import annotations

import traceback

import pytest

from gpufleet import errors


@pytest.fixture
def defects(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tracebacks of what was guarded, while the test runs."""
    found: list[str] = []
    noted = errors._defect

    def note(step: str, error: Exception) -> errors.Defect:
        found.append(f"{step}: " + "".join(traceback.format_exception(error)[-4:]))
        return noted(step, error)

    monkeypatch.setattr(errors, "_defect", note)
    return found
