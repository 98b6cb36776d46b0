"""One cause, once: which findings explain which, and what stays a finding of its own."""

from __future__ import annotations

import pytest

from gpufleet.checks import CHECKS, PAIR_CHECKS, causes, judge, subjects
from gpufleet.model.verdict import Verdict
from tests.support.healthy_host import Document
from tests.support.host_parts import with_gpus


@pytest.fixture
def host(plan: Document, snapshot: Document) -> tuple[Document, Document]:
    """A host with two GPUs."""
    with_gpus(plan, snapshot)
    return plan, snapshot


def judged(plan: Document, snapshot: Document) -> tuple[list[str], dict[str, str]]:
    """The checks that a person must read, and {consequence: its cause}."""
    checks = [check for check in judge.judge(plan, snapshot)["checks"]
              if check["verdict"] not in {"PASS", "NOT-DECLARED"}]
    return ([check["id"] for check in checks if "explained_by" not in check],
            {check["id"]: check["explained_by"] for check in checks if "explained_by" in check})


def test_the_relation_names_known_checks_and_has_no_circle() -> None:
    known = {*CHECKS, *PAIR_CHECKS}
    assert set(causes.EXPLAINS) <= known
    for cause, consequences in causes.EXPLAINS.items():
        assert set(consequences) <= known - {cause}, cause
        assert len(consequences) == len(set(consequences)), cause
    done: set[str] = set()

    def walk(check: str, way: tuple[str, ...]) -> None:
        assert check not in way, (*way, check)
        if check not in done:
            for consequence in causes.EXPLAINS.get(check, ()):
                walk(consequence, (*way, check))
            done.add(check)

    for check in causes.EXPLAINS:
        walk(check, ())


@pytest.mark.parametrize(("state", "verdict"), [("hung", "HUNG"), ("denied", "INCONCLUSIVE")])
@pytest.mark.parametrize("section", ["smi", "compute", "stacks", "receipts", "driver"])
def test_a_section_that_was_not_read_is_one_cause(
    host: tuple[Document, Document], section: str, state: str, verdict: str
) -> None:
    plan, snapshot = host
    snapshot["sections"][section] = {"state": state, "seconds": 2, "error": "why", "data": None}
    top, folded = judged(plan, snapshot)
    assert top == ["host.probe"]
    assert set(folded.values()) == {"host.probe"}
    assert set(folded) >= {check.id for check in CHECKS.values() if section in check.reads} - {
        check["id"] for check in judge.judge(plan, snapshot)["checks"]
        if check["verdict"] == "NOT-DECLARED"}


def test_a_hung_section_does_not_hide_one_that_is_denied(
    host: tuple[Document, Document]
) -> None:
    plan, snapshot = host
    for section, state in (("smi", "hung"), ("disks", "denied")):
        snapshot["sections"][section] = {"state": state, "seconds": 2, "error": "x", "data": None}
    top, folded = judged(plan, snapshot)
    # The line of host.probe states what hung alone.
    assert {"host.probe", "host.disk"} <= set(top)
    assert folded["gpu.throttle"] == "host.probe"


def test_verdicts_and_exit_status_count_consequences(host: tuple[Document, Document]) -> None:
    plan, snapshot = host
    snapshot["sections"]["smi"] = {"state": "hung", "seconds": 2, "error": "x", "data": None}
    result = judge.judge(plan, snapshot)
    found = judge.document({"gpu01": result}, "", "")
    assert result["verdict"] == "HUNG"
    assert found["summary"]["HUNG"] > 5
    assert judge.exit_status(found) == 1


@pytest.mark.parametrize(("about", "cause", "expected"), [
    (("gpus/7",), ("gpus/7",), True),
    (("gpus/6", "gpus/7"), ("gpus/7",), False),
    (("gpus/7",), ("gpus",), False),
    (("gpus@a",), ("gpus",), True),
    (("gpus@a",), ("gpus@b",), False),
    (("gpus",), ("gpus@a",), False),
    (("/usr/local/cuda-11.8/libcudnn.so.8",), ("/usr/local/cuda-11.8",), True),
    (("/usr/local/cuda-11.8",), ("/usr/local/cuda-11",), False),
    (("/srv/a@b/x",), ("/srv/a",), False),
    ((), ("gpus",), False),
    (("card/0000:01:00.0",), ("card/0000:02:00.0",), False),
])
def test_a_cause_covers_what_it_is_about_and_no_more(
    about: tuple[str, ...], cause: tuple[str, ...], expected: bool
) -> None:
    assert subjects.covered(about, cause) is expected


def test_a_cause_is_at_least_as_bad_as_what_it_explains() -> None:
    def one(verdict: Verdict) -> causes.Judged:
        finding = causes.Finding("x", "y", verdict=verdict, about=("section/smi",))
        return causes.Judged(verdict, [finding], [finding])

    for cause, effect, expected in (
        (Verdict.FAIL, Verdict.HUNG, True), (Verdict.HUNG, Verdict.INCONCLUSIVE, True),
        (Verdict.INCONCLUSIVE, Verdict.FAIL, False), (Verdict.PASS, Verdict.FAIL, False),
    ):
        found = causes.explained({"host.probe": one(cause), "gpu.smi": one(effect)})
        assert bool(found) is expected, (cause, effect)
