"""What the pytest suite (`verify/`) and `gpufleet verify` share: the session and the outcome.

`gpufleet verify` with pytest options hands its finished session to the suite, so that no host is
probed twice. The suite's hooks are in `verify/conftest.py`, its areas in `verify/test_<area>.py`.
"""

from __future__ import annotations

from gpufleet.model.verdict import CheckResult, Verdict

from .session import Session


class PreparedSession:
    """A finished session as a pytest plugin; the suite's conftest finds it by its name."""

    NAME = "gpufleet-session"

    def __init__(self, session: Session) -> None:
        self.session = session


def message(check: CheckResult) -> str:
    """Why a check failed or was skipped: statement, cause, remedy and evidence, a line each.

    A check that another's finding explains fails all the same, and names it: a suite has one test
    for each check.
    """
    if check["verdict"] == Verdict.NOT_DECLARED:
        return f"not declared: {check['cause']}"
    lines = [f"{check['verdict']}: {check['statement']}", f"cause:  {check['cause']}",
             f"remedy: {check['remedy']}"]
    lines += [f"explained by: {cause}"] if (cause := check.get("explained_by")) else []
    return "\n".join(lines + [check["evidence"]] * bool(check["evidence"]))


def require_pass(check: CheckResult) -> None:
    """End a test by its verdict: NOT-DECLARED skips it, everything else but PASS fails it."""
    import pytest  # noqa: PLC0415 (only the suite needs it)

    verdict = Verdict(check["verdict"])
    if verdict is Verdict.NOT_DECLARED:
        pytest.skip(message(check))
    if verdict is not Verdict.PASS:
        pytest.fail(message(check), pytrace=False)
