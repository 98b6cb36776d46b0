"""Each check is a test function of its own name, made from the registry."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.checks import CHECKS, PAIR_CHECKS
from gpufleet.documents.verdict import Verdict
from gpufleet.fleet import check_tests
from gpufleet.fleet.check_tests import check_id_of, generated_tests
from gpufleet.fleet.session import HostRun
from gpufleet.fleet.suite import name_of_test
from gpufleet.judge import judge
from tests.support.healthy_host import Document


def run_of(plan: Document, check_id: str, verdict: Verdict) -> HostRun:
    """A host with one verdict beside a healthy probe."""
    healthy = {"id": judge.PROBE, "verdict": "PASS", "cause": "", "statement": "", "remedy": ""}
    row = {**healthy, "id": check_id, "verdict": verdict.value, "cause": "the cause"}
    rows: Any = [{**entry, "severity": "critical", "evidence": ""} for entry in (healthy, row)]
    return HostRun("gpu01", None, plan, {"verdict": verdict.value, "checks": rows})


def test_every_check_has_one_function_with_its_statement_as_docstring() -> None:
    checks = {**CHECKS, **PAIR_CHECKS}
    found: list[str | None] = []
    for area in judge.AREAS:
        for name, function in generated_tests(area, "/site/test_area.py").items():
            check_id = check_id_of(function)
            assert check_id is not None
            found.append(check_id)
            assert name == name_of_test(check_id) == function.__name__
            if check_id in checks:
                assert function.__doc__ == checks[check_id].statement
                marks = [mark.name for mark in getattr(function, "pytestmark", [])]
                assert marks == (["deep"] if checks[check_id].deep else [])
    assert sorted(found, key=str) == sorted(judge.CHECK_IDS)


def test_a_name_follows_the_id() -> None:
    assert name_of_test("toolkit.device-query") == "test_device_query"
    assert "test_links" in generated_tests("cudnn", __file__)


def test_a_function_of_a_site_is_about_no_check() -> None:
    assert check_id_of(run_of) is None


def test_a_new_check_has_a_test_without_an_edit_of_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judge, "CHECK_IDS", (*judge.CHECK_IDS, "cudnn.new-check"))
    monkeypatch.setitem(check_tests.STATEMENTS, "cudnn.new-check", "It holds.")
    function = generated_tests("cudnn", __file__)["test_new_check"]
    assert function.__doc__ == "It holds."


def test_a_pass_passes_and_not_declared_skips(plan: Document) -> None:
    function = generated_tests("cudnn", __file__)["test_links"]
    function(run_of(plan, "cudnn.links", Verdict.PASS))
    with pytest.raises(pytest.skip.Exception, match="not declared: the cause"):
        function(run_of(plan, "cudnn.links", Verdict.NOT_DECLARED))


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.HUNG])
def test_every_other_verdict_fails_in_its_own_words(plan: Document, verdict: Verdict) -> None:
    function = generated_tests("cudnn", __file__)["test_links"]
    with pytest.raises(pytest.fail.Exception, match=f"^{verdict.value}: [^$]*the cause"):
        function(run_of(plan, "cudnn.links", verdict))


def test_a_host_that_was_not_judged_fails_every_test_by_the_reason(plan: Document) -> None:
    gone = HostRun("gone", None, plan, judge.unreachable("no answer", "look"))
    for function in generated_tests("linker", __file__).values():
        with pytest.raises(pytest.fail.Exception, match=r"UNREACHABLE: [^$]*no answer"):
            function(gone)
