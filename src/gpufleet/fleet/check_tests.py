"""The two names that the tests of `verify/` are written with: `check` and `require_pass`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpufleet.documents.verdict import Verdict
from gpufleet.judge import judge

from .session import HostRun
from .suite import message, verdict_of

Test = Callable[[HostRun], None]


def check(check_id: str) -> Callable[[Test], Test]:
    """Mark a test function as the test of a check."""

    def marked(test: Test) -> Test:
        # pytest's -k also finds a function by its attributes: here, by the check's id.
        vars(test)[check_id] = check_id
        return test

    return marked


def check_id_of(function: object) -> str | None:
    """The id of the check that a function is the test of; None of any other function."""
    return next((name for name in vars(function) if name in judge.CHECK_IDS), None)


def require_pass(run: HostRun, check_id: str) -> None:
    """End a test by its check's verdict: NOT-DECLARED skips it, all others but PASS fail it."""
    row = verdict_of(run.result, check_id)
    verdict = Verdict(row["verdict"])
    if verdict is Verdict.NOT_DECLARED:
        pytest.skip(message(row))
    if verdict is not Verdict.PASS:
        pytest.fail(message(row), pytrace=False)
