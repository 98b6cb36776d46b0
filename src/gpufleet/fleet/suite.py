"""The common part of the pytest suite (`verify/`) and `gpufleet verify`: session, names, outcome.

`gpufleet verify` with pytest options hands its finished session to the suite, so that no host is
probed twice. `pytest_plugin` has the hooks and fixtures, `check_tests` what the test functions are
written with, and `verify/test_<area>.py` has those of an area.
"""

from __future__ import annotations

from gpufleet.documents.verdict import CheckResult, HostResult, Verdict, silence_text
from gpufleet.judge import judge

from .session import Session


class PreparedSession:
    """A finished session as a pytest plugin; the suite's plugin finds it by its name."""

    NAME = "gpufleet-session"

    def __init__(self, session: Session) -> None:
        self.session = session


def area_of(check_id: str) -> str:
    """The area of a check: `cudnn` of `cudnn.links`."""
    return check_id.partition(".")[0]


def name_of_test(check_id: str) -> str:
    """The name of a check's test in its area's file: `test_links` of `cudnn.links`."""
    return f"test_{check_id.partition('.')[2].replace('-', '_')}"


def not_judged_reason(result: HostResult) -> CheckResult | None:
    """The only entry of a host that was not judged; None of any other host."""
    ids = {check["id"] for check in result["checks"]}
    return result["checks"][0] if ids <= {judge.REACHABLE, judge.PROBE} else None


def verdict_of(result: HostResult, check_id: str) -> CheckResult:
    """The verdict of a check on a host; of a host that was not judged, the reason for that."""
    checks = {check["id"]: check for check in result["checks"]}
    return checks.get(check_id) or result["checks"][0]


def message(check: CheckResult) -> str:
    """Why a check failed or was skipped: statement, cause, remedy and evidence, a line each.

    A check that another's finding explains fails all the same, and names it: a suite has one test
    for each check.
    """
    if check["verdict"] == Verdict.NOT_DECLARED:
        return f"not declared: {check['cause']}"
    lines = [
        f"{check['verdict']}: {check['statement']}",
        f"cause:  {check['cause']}",
        f"remedy: {check['remedy']}",
    ]
    lines += [f"explained by: {cause}"] if (cause := check.get("explained_by")) else []
    lines += [f"silenced: {silence_text(check['silenced'])}"] if "silenced" in check else []
    return "\n".join(lines + [check["evidence"]] * bool(check["evidence"]))
