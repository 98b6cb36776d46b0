"""Each check is a visible test function, which a command writes from the registry."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from docs import check_tests as written
from docs import generate
from gpufleet.components.checks import CHECKS, PAIR_CHECKS
from gpufleet.documents.verdict import Verdict
from gpufleet.fleet.check_tests import check_id_of
from gpufleet.fleet.session import HostRun
from gpufleet.fleet.suite import name_of_test
from gpufleet.judge import judge
from tests.support.command_line import ROOT
from tests.support.healthy_host import Document


def module_of(area: str) -> ModuleType:
    """The test module of an area, as pytest imports it."""
    path = ROOT / "verify" / f"test_{area}.py"
    spec = importlib.util.spec_from_file_location(f"verify_{area}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def functions_of(area: str) -> dict[str, Callable[[HostRun], None]]:
    """The test functions of an area by their names, in the order of its file."""
    return {name: each for name, each in vars(module_of(area)).items() if name.startswith("test_")}


def run_of(plan: Document, check_id: str, verdict: Verdict) -> HostRun:
    """A host with one verdict beside a healthy probe."""
    healthy = {"id": judge.PROBE, "verdict": "PASS", "cause": "", "statement": "", "remedy": ""}
    row = {**healthy, "id": check_id, "verdict": verdict.value, "cause": "the cause"}
    rows: Any = [{**entry, "severity": "critical", "evidence": ""} for entry in (healthy, row)]
    return HostRun("gpu01", None, plan, {"verdict": verdict.value, "checks": rows})


def test_every_check_has_one_function_with_its_statement_as_docstring() -> None:
    checks = {**CHECKS, **PAIR_CHECKS}
    for area in judge.AREAS:
        found = {check_id_of(each): each for each in functions_of(area).values()}
        assert [*found] == [each for each in judge.CHECK_IDS if each.startswith(f"{area}.")]
        for check_id, function in found.items():
            assert function.__name__ == name_of_test(check_id)
            if check_id in checks:
                assert function.__doc__ == checks[check_id].statement
                marks = [mark.name for mark in getattr(function, "pytestmark", [])]
                assert marks == (["deep"] if checks[check_id].deep else [])


def test_a_name_follows_the_id() -> None:
    assert name_of_test("toolkit.device-query") == "test_device_query"
    assert "test_links" in functions_of("cudnn")


def test_a_function_of_a_site_is_the_test_of_no_check() -> None:
    assert check_id_of(run_of) is None


def test_a_new_check_fails_lint_with_the_command_that_writes_its_function(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(judge, "CHECK_IDS", (*judge.CHECK_IDS, "cudnn.new-check"))
    monkeypatch.setattr(
        written,
        "CHECKS",
        {
            **CHECKS,
            "cudnn.new-check": replace(
                CHECKS["cudnn.files"], id="cudnn.new-check", statement="It holds."
            ),
        },
    )
    monkeypatch.setattr(
        generate,
        "pages",
        lambda: ((ROOT / "verify" / name, text) for name, text in written.files()),
    )
    assert generate.run(["--check"]) == 1
    assert capsys.readouterr().out.splitlines()[:2] == [
        "verify/test_cudnn.py: out of date",
        "Run './gpufleet docs' and commit what it writes.",
    ]
    text = dict(written.files())["test_cudnn.py"]
    assert (
        text
        == (ROOT / "verify" / "test_cudnn.py").read_text()
        + """

@check("cudnn.new-check")
@pytest.mark.deep
def test_new_check(gpu_run: HostRun) -> None:
    \"\"\"It holds.\"\"\"
    require_pass(gpu_run, "cudnn.new-check")
"""
    )


def test_a_pass_passes_and_not_declared_skips(plan: Document) -> None:
    function = functions_of("cudnn")["test_links"]
    function(run_of(plan, "cudnn.links", Verdict.PASS))
    with pytest.raises(pytest.skip.Exception, match="not declared: the cause"):
        function(run_of(plan, "cudnn.links", Verdict.NOT_DECLARED))


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.HUNG])
def test_every_other_verdict_fails_in_its_own_words(plan: Document, verdict: Verdict) -> None:
    function = functions_of("cudnn")["test_links"]
    with pytest.raises(pytest.fail.Exception, match=f"^{verdict.value}: [^$]*the cause"):
        function(run_of(plan, "cudnn.links", verdict))


def test_a_host_that_was_not_judged_fails_every_test_by_the_reason(plan: Document) -> None:
    gone = HostRun("gone", None, plan, judge.unreachable("no answer", "look"))
    for function in functions_of("linker").values():
        with pytest.raises(pytest.fail.Exception, match=r"UNREACHABLE: [^$]*no answer"):
            function(gone)
