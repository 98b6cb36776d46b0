"""A defect of gpufleet, or one strange host, costs that host its verdict and no other anything."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gpufleet.errors import ConfigurationError, Defect, guarded
from gpufleet.inventory import Connection, InventoryHost
from gpufleet.judge import judge
from gpufleet.provision import provision
from gpufleet.report import directory as report
from gpufleet.report import junit, terminal
from gpufleet.report.bundle import bundles
from gpufleet.transport.fanout import Outcome
from gpufleet.verification import host_versions
from gpufleet.verification.judging import plan_of
from gpufleet.verification.options import ProbeOptions
from gpufleet.verification.probing import verify
from gpufleet.verification.saved import judge_saved, read_snapshot
from gpufleet.verification.session import HostRun, Session
from tests.support.healthy_host import Document, document

VARIABLES = {"gpu_stacks": [{"tensorflow": "2.13.1"}], "gpu_expect": {"count": 0}}
HOSTS = [InventoryHost(name, VARIABLES, Connection(name)) for name in ("a", "b", "c")]


def snapshot_of(name: str) -> Any:
    return {**document("snapshot.json"), "host": name}


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Outcome]:
    """What three hosts answer."""
    outcomes = {host.name: Outcome(snapshot_of(host.name)) for host in HOSTS}
    monkeypatch.setattr("gpufleet.verification.probing.probe_hosts", lambda *_: dict(outcomes))
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
    assert provision.reasons_of(HOSTS, session) == {}
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
