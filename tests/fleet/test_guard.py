"""A defect of gpufleet, or one strange host, costs that host its verdict and no other anything."""

from __future__ import annotations

import copy
import io
import json
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gpufleet import errors
from gpufleet.campaign.provision import provision
from gpufleet.errors import ConfigurationError, Defect, bounded, guarded
from gpufleet.fleet import host_versions
from gpufleet.fleet.inventory import Connection, InventoryHost
from gpufleet.fleet.judging import plan_of
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.probing import verify
from gpufleet.fleet.saved import judge_saved, read_snapshot
from gpufleet.fleet.session import HostRun, Session
from gpufleet.fleet.transport.fanout import Outcome
from gpufleet.judge import judge
from gpufleet.report import directory as report
from gpufleet.report import junit, terminal
from gpufleet.report.bundle import bundles
from tests.support.healthy_host import Document, document

VARIABLES = {"gpu_stacks": [{"tensorflow": "2.13.1"}], "gpu_expect": {"count": 0}}
HOSTS = [InventoryHost(name, VARIABLES, Connection(name)) for name in ("a", "b", "c")]


def snapshot_of(name: str) -> Any:
    return {**document("snapshot.json"), "host": name}


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Outcome]:
    """The answers of three hosts."""
    outcomes = {host.name: Outcome(snapshot_of(host.name)) for host in HOSTS}
    monkeypatch.setattr("gpufleet.fleet.probing.probe_hosts", lambda *_: dict(outcomes))
    return outcomes


def results(session: Session) -> dict[str, Any]:
    return {host.name: host.result for host in session.hosts}


def test_a_host_that_cannot_be_planned_costs_no_other_its_verdict(
    probed: dict[str, Outcome],
) -> None:
    def planner(host: InventoryHost, snapshot: Any, resolve: Any) -> Any:
        if host.name == "b" and snapshot:
            raise ZeroDivisionError("\x1b[31mhost b")
        return plan_of(host, snapshot, resolve)

    found = results(verify(HOSTS, ProbeOptions(), planner=planner))
    whole = results(verify(HOSTS, ProbeOptions()))
    assert found["a"] == whole["a"]
    assert found["c"] == whole["c"]
    assert found["b"]["verdict"] == "INCONCLUSIVE"
    [check] = found["b"]["checks"]
    assert check["id"] == "host.probe"
    assert check["cause"].startswith(
        "gpufleet failed while it planned this host: ZeroDivisionError:  [31mhost b"
    )
    assert "./gpufleet verify --limit b --save DIR" in check["remedy"]
    assert "test_guard.py" in check["evidence"]


def test_a_host_whose_declaration_cannot_be_planned_either_has_an_empty_plan(
    probed: dict[str, Outcome],
) -> None:
    def planner(host: InventoryHost, snapshot: Any, resolve: Any) -> Any:
        if host.name == "b":
            raise RecursionError
        return plan_of(host, snapshot, resolve)

    session = verify(HOSTS, ProbeOptions(), planner=planner)
    assert session.hosts[1].plan["stacks"] == []
    assert results(session)["b"]["verdict"] == "INCONCLUSIVE"


def test_a_refused_snapshot_is_inconclusive_and_an_unreached_host_is_not(
    probed: dict[str, Outcome],
) -> None:
    probed["a"] = Outcome(
        None, "a sent a snapshot that is not read: too deep", "examine it", refused=True
    )
    probed["b"] = Outcome(None, "ssh failed", "look")
    found = results(verify(HOSTS, ProbeOptions()))
    assert [(found[name]["verdict"], found[name]["checks"][0]["id"]) for name in "ab"] == [
        ("INCONCLUSIVE", "host.probe"),
        ("UNREACHABLE", "host.reachable"),
    ]


def test_a_defect_in_one_check_costs_that_check(
    plan: Document, snapshot: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise OverflowError("cannot convert float infinity to integer")

    broken = judge.CHECKS["toolkit.present"]
    monkeypatch.setitem(
        judge.CHECKS, "toolkit.present", type(broken)(**{**vars(broken), "function": fails})
    )
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found["toolkit.present"]["verdict"] == "INCONCLUSIVE"
    assert "OverflowError" in found["toolkit.present"]["evidence"]
    assert found["toolkit.files"]["verdict"] == "PASS"


def endless(*_: Any) -> Any:
    """Work that never ends, and that keeps what is raised in it from passing where it can."""
    while True:
        try:
            sum(range(1000))
        except Exception:
            continue


def endless_text(*_: Any) -> Any:
    while True:
        re.search("(a|a)*b", "a" * 18)


def with_check(monkeypatch: pytest.MonkeyPatch, name: str, function: Any) -> None:
    """A check that does something else on the host `b`."""
    known = judge.CHECKS[name]

    def strange(plan: Any, observed: Any) -> Any:
        if plan["host"] == "b":
            function()
        yield from known.function(plan, observed)

    monkeypatch.setitem(judge.CHECKS, name, type(known)(**{**vars(known), "function": strange}))


@pytest.mark.parametrize("function", [endless, endless_text])
@pytest.mark.parametrize("name", ["toolkit.present", "linker.cache"])
def test_a_host_whose_judgement_does_not_end_costs_no_other_its_verdict(
    probed: dict[str, Outcome], name: str, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = results(verify(HOSTS, ProbeOptions()))
    monkeypatch.setattr(errors, "MOST_CPU_S", 0.3)
    with_check(monkeypatch, name, function)
    found = results(verify(HOSTS, ProbeOptions()))
    assert found["a"] == whole["a"]
    assert found["c"] == whole["c"]
    assert found["b"]["verdict"] == "INCONCLUSIVE"
    [check] = found["b"]["checks"]
    assert check["id"] == "host.probe"
    assert check["cause"] == (
        "gpufleet stopped working on this host after 0.3 s of processor time, while it judged"
        f" {name}"
    )
    assert "examine the host" in check["remedy"]
    assert "test_guard.py" in check["evidence"]


def test_a_plan_that_does_not_end_costs_that_host(
    probed: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    def planner(host: InventoryHost, snapshot: Any, resolve: Any) -> Any:
        return endless() if host.name == "b" and snapshot else plan_of(host, snapshot, resolve)

    verify(HOSTS, ProbeOptions())
    monkeypatch.setattr(errors, "MOST_CPU_S", 0.3)
    found = results(verify(HOSTS, ProbeOptions(), planner=planner))
    assert [found[name]["verdict"] == "INCONCLUSIVE" for name in "abc"] == [False, True, False]
    assert "while it planned this host" in found["b"]["checks"][0]["cause"]


def test_a_comparison_that_does_not_end_costs_that_host(monkeypatch: pytest.MonkeyPatch) -> None:
    session = three()
    monkeypatch.setattr(errors, "MOST_CPU_S", 0.1)
    why = provision.differences.why
    monkeypatch.setattr(
        provision.differences,
        "why",
        lambda plan, *rest, **more: endless() if plan["host"] == "b" else why(plan, *rest, **more),
    )
    provision.reasons_of(HOSTS, session.hosts)
    assert [host.not_compared for host in session.hosts] == [False, True, False]
    assert "while it compared this host with its plan" in str(session.hosts[1].result)


def test_bounded_work_ends_where_something_keeps_the_first_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def keeps() -> None:
        try:
            endless()
        except BaseException:
            endless()

    monkeypatch.setattr(errors, "MOST_CPU_S", 0.05)
    monkeypatch.setattr(errors, "AGAIN_S", 0.05)
    found: list[Defect] = []
    bounded("tried", keeps, found.append)
    assert [(defect.step, defect.ended_after_s) for defect in found] == [("tried", 0.05)]


def test_bounded_work_inside_of_other_bounded_work_has_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(errors, "MOST_CPU_S", 0.05)
    found: list[Defect] = []
    bounded("worked", lambda: bounded("judged", endless, found.append), found.append)
    assert [defect.step for defect in found] == ["judged"]


def test_bounded_work_leaves_no_timer_and_no_handler() -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    assert bounded("worked", lambda: 1, lambda defect: 2) == 1
    with pytest.raises(ConfigurationError):
        bounded("failed", lambda: (_ for _ in ()).throw(ConfigurationError("no")), lambda _: None)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
    assert signal.getsignal(signal.SIGVTALRM) == before


def test_in_another_thread_work_is_guarded() -> None:
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(bounded, "worked", lambda: 1 // 0, lambda defect: defect)
        assert "ZeroDivisionError" in done.result().error


def test_what_is_expected_passes_the_guard() -> None:
    with pytest.raises(ConfigurationError):
        guarded("failed", lambda: (_ for _ in ()).throw(ConfigurationError("no")), lambda _: None)


def three(verdict_of: str = "PASS") -> Session:
    plan = document("plan.json")
    return Session(
        [
            HostRun(
                name,
                snapshot_of(name),
                {**plan, "host": name},
                judge.judge({**plan, "host": name}, snapshot_of(name)),
            )
            for name in "abc"
        ],
        finished="2026-11-20T12:00:00Z",
    )


def test_a_host_that_cannot_be_rendered_is_shown_as_not_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read = host_versions._of

    def fails(snapshot: Any, plan: Any) -> Any:
        if snapshot.get("host") == "b":
            raise KeyError("version")
        return read(snapshot, plan)

    monkeypatch.setattr(host_versions, "_of", fails)
    session = three()
    before = copy.deepcopy(results(session))
    written = report.write_report(tmp_path, session)
    page = written.value.read_text()
    assert "gpufleet failed while it wrote the report on this host" in page
    assert results(session) == before, "a report does not change what it reports"
    assert session.hosts[1].snapshot is not None
    assert {name: found["verdict"] for name, found in results(written.session).items()} == {
        "a": "PASS",
        "b": "INCONCLUSIVE",
        "c": "PASS",
    }


@pytest.mark.parametrize(("module", "name"), [(terminal, "_host"), (junit, "_outcome")])
def test_a_host_that_cannot_be_shown_is_shown_as_not_judged(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = three()
    session.hosts[1].result["checks"][0]["cause"] = "strange"
    shown = getattr(module, name)

    def fails(*given: Any) -> Any:
        if '"strange"' in json.dumps([each for each in given if isinstance(each, dict)]):
            raise ValueError("strange")
        return shown(*given)

    monkeypatch.setattr(module, name, fails)
    output = io.StringIO()
    last = terminal.show(Console(file=output, width=200), session, None)
    last = report.write_junit(tmp_path / "junit.xml", last)
    text = (tmp_path / "junit.xml").read_text() if module is junit else output.getvalue()
    assert "gpufleet failed while it wrote the report on this host" in text
    assert output.getvalue().count("✓ a ") == 1, "nothing is printed twice"
    assert {found["verdict"] for found in results(session).values()} == {"PASS"}
    assert {name: found["verdict"] for name, found in results(last).items()} == {
        "a": "PASS",
        "b": "INCONCLUSIVE",
        "c": "PASS",
    }


def test_a_host_whose_documents_cannot_be_cleaned_has_a_bundle_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clean = bundles.__globals__["_bundle"]

    def fails(run: HostRun, names: Any) -> Any:
        if run.name == "b":
            raise MemoryError
        return clean(run, names)

    monkeypatch.setitem(bundles.__globals__, "_bundle", fails)
    found = bundles(three().hosts)
    assert [bundle["result"]["verdict"] for bundle in found] == ["PASS", "INCONCLUSIVE", "PASS"]
    assert found[1]["snapshot"] is None


def test_a_host_that_cannot_be_compared_is_no_reason_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why = provision.differences.why

    def fails(plan: Any, *rest: Any, **more: Any) -> list[str]:
        if plan["host"] == "b":
            raise TypeError("unhashable")
        return why(plan, *rest, **more)

    monkeypatch.setattr(provision.differences, "why", fails)
    session = three()
    assert provision.reasons_of(HOSTS, session.hosts) == {}
    assert results(session)["b"]["verdict"] == "INCONCLUSIVE"


def test_a_bundle_without_a_snapshot_is_not_healthy_whatever_it_says(tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    path.write_text(
        json.dumps(
            {
                "schema": 1,
                "host": "a",
                "plan": document("plan.json"),
                "snapshot": None,
                "result": {"verdict": "PASS", "checks": []},
            }
        )
    )
    assert judge_saved([str(path)]).hosts[0].result["verdict"] == "INCONCLUSIVE"


def test_a_pipe_in_the_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    import os  # noqa: PLC0415

    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ConfigurationError, match="no regular file"):
        read_snapshot(str(tmp_path / "pipe.json"))


def test_the_evidence_of_a_defect_is_short() -> None:
    found: list[Defect] = []

    def deep(left: int) -> None:
        if not left:
            raise ValueError("x" * 100_000)
        deep(left - 1)

    guarded("tried", lambda: deep(100), found.append)
    assert len(found[0].evidence) < 1500
