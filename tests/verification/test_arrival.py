"""A host is judged when its snapshot arrives, with the same result as after all were probed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gpufleet.errors import ConfigurationError
from gpufleet.inventory import Connection, InventoryHost
from gpufleet.report import fleet_versions
from gpufleet.transport.fanout import Arrived, Outcome, Report
from gpufleet.verification import pairs
from gpufleet.verification import session as sessions
from gpufleet.verification.host_versions import versions_of
from gpufleet.verification.pair_selection import PairOptions
from gpufleet.verification.session import ProbeOptions, Session, plan_of, verify
from tests.support.healthy_host import document

VARIABLES = {"gpu_stacks": [{"tensorflow": "2.13.1"}], "gpu_expect": {"count": 0}}
HOSTS = [InventoryHost(name, VARIABLES, Connection(name)) for name in ("a", "b", "c")]


def probing(monkeypatch: pytest.MonkeyPatch, *, arrives: bool) -> None:
    """Three hosts answer, the last one first; `c` sends nothing."""
    def probe_hosts(
        hosts: list[InventoryHost], options: ProbeOptions, report: Report, arrived: Arrived
    ) -> dict[str, Outcome]:
        outcomes = {"c": Outcome(None, "No route to host", "look")}
        for name in ("b", "a"):
            snapshot = cast(Any, {**document("snapshot.json"), "host": name})
            outcomes[name] = Outcome(snapshot)
            if arrives:
                arrived(outcomes[name], snapshot)
        return outcomes

    monkeypatch.setattr(sessions, "probe_hosts", probe_hosts)


def verified(monkeypatch: pytest.MonkeyPatch, *, arrives: bool, **options: Any) -> Session:
    probing(monkeypatch, arrives=arrives)
    return verify(HOSTS, ProbeOptions(), **options)


def test_the_results_are_those_of_a_later_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    early = verified(monkeypatch, arrives=True).hosts
    late = verified(monkeypatch, arrives=False).hosts
    assert [run.name for run in early] == ["a", "b", "c"]
    for one, other in zip(early, late, strict=True):
        assert (one.plan, one.result, one.snapshot_text) == (
            other.plan, other.result, other.snapshot_text)
    assert [run.result["verdict"] for run in early] == ["FAIL", "FAIL", "UNREACHABLE"]


def test_the_page_has_the_versions_of_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    session = verified(monkeypatch, arrives=True)
    found = fleet_versions.read_versions(session)
    for run in session.hosts:
        assert found[run.name] == versions_of(run.snapshot, run.plan)
    assert found["a"].versions["Operating system"]


def test_hosts_of_a_pair_are_judged_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "run_pairs", lambda *_: [])
    judged: list[str] = []

    def planner(host: InventoryHost, snapshot: Any, resolve: Any) -> Any:
        judged.append(host.name)
        return plan_of(host, snapshot, resolve)

    session = verified(monkeypatch, arrives=True, planner=planner,
                       pair_options=PairOptions(("a,c",)))
    assert judged == ["b", "a", "c"]
    assert ["pairs" in run.plan for run in session.hosts] == [True, False, True]


def test_an_error_that_ends_the_run_ends_it_when_all_were_probed(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def planner(host: InventoryHost, snapshot: Any, resolve: Any) -> Any:
        asked.append(host.name)
        raise ConfigurationError("no")

    with pytest.raises(ConfigurationError):
        verified(monkeypatch, arrives=True, planner=planner)
    assert asked == ["b", "a", "a"]
