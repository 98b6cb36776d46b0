"""One test function for each registered check: the tests of `verify/` and their names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpufleet.components.checks import CHECKS, PAIR_CHECKS
from gpufleet.judge import judge

from .session import HostRun
from .suite import area_of, name_of_test, require_pass, verdict_of

STATEMENTS = {judge.REACHABLE: judge.REACHABLE_STATEMENT} | {
    check.id: check.statement for check in (*CHECKS.values(), *PAIR_CHECKS.values())
}
DEEP = frozenset(check.id for check in (*CHECKS.values(), *PAIR_CHECKS.values()) if check.deep)

Test = Callable[[HostRun], None]


def generated_tests(area: str, file: str) -> dict[str, Test]:
    """The tests of an area's checks by their names, in reading order, as functions of a file.

    A new check of the area is in it without a change of the file.
    """
    return {
        name_of_test(check_id): _test(check_id, file)
        for check_id in judge.CHECK_IDS
        if area_of(check_id) == area
    }


def _test(check_id: str, file: str) -> Test:
    def test(gpu_run: HostRun) -> None:
        require_pass(verdict_of(gpu_run.result, check_id))

    test.__name__ = test.__qualname__ = name_of_test(check_id)
    test.__doc__ = STATEMENTS[check_id]
    # pytest reports the file of the function's code, which is this module otherwise.
    test.__code__ = test.__code__.replace(co_filename=file)
    # pytest's -k also finds a function by its attributes: here, by the check's id.
    vars(test)[check_id] = check_id
    return pytest.mark.deep(test) if check_id in DEEP else test


def check_id_of(function: object) -> str | None:
    """The id of the check that a generated test is about; None of any other function."""
    return next((name for name in vars(function) if name in STATEMENTS), None)
