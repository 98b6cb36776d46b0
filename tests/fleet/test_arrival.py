"""A host is judged when its snapshot arrives, with the same result as after all were probed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from gpufleet.components import declare as parse
from gpufleet.errors import ConfigurationError
from gpufleet.fleet import pairs
from gpufleet.fleet.host_versions import versions_of
from gpufleet.fleet.inventory import Connection, InventoryHost
from gpufleet.fleet.judging import plan_of
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.pair_selection import PairOptions, declared_gpus
from gpufleet.fleet.probing import probe_config, verify
from gpufleet.fleet.session import Session
from gpufleet.fleet.transport.fanout import Arrived, Outcome, Report
from gpufleet.report import fleet_versions
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

    monkeypatch.setattr("gpufleet.fleet.probing.probe_hosts", probe_hosts)


def verified(monkeypatch: pytest.MonkeyPatch, *, arrives: bool, **options: Any) -> Session:
    probing(monkeypatch, arrives=arrives)
    return verify(HOSTS, ProbeOptions(), **options)


def test_the_results_are_those_of_a_later_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    early = verified(monkeypatch, arrives=True).hosts
    late = verified(monkeypatch, arrives=False).hosts
    assert [run.name for run in early] == ["a", "b", "c"]
    for one, other in zip(early, late, strict=True):
        assert (one.plan, one.result, one.snapshot_text) == (
            other.plan,
            other.result,
            other.snapshot_text,
        )
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

    session = verified(
        monkeypatch, arrives=True, planner=planner, pair_options=PairOptions(("a,c",))
    )
    assert judged == ["b", "a", "c"]
    assert ["pairs" in run.plan for run in session.hosts] == [True, False, True]


def test_an_error_that_ends_the_run_ends_it_when_all_were_probed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def planner(host: InventoryHost, snapshot: Any, resolve: Any) -> Any:
        asked.append(host.name)
        raise ConfigurationError("no")

    with pytest.raises(ConfigurationError):
        verified(monkeypatch, arrives=True, planner=planner)
    assert asked == ["b", "a", "a"]


def test_the_variables_of_a_host_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Any] = []

    def read(variables: Any, problems: Any) -> Any:
        parsed.append(variables)
        return parse_read(variables, problems)

    parse_read = parse.read
    monkeypatch.setattr(parse, "read", read)
    hosts = [replace(host) for host in HOSTS[:2]]
    for host in hosts:
        config = probe_config(host, ProbeOptions())
        assert config["expect_gpus"] == declared_gpus(host) == 0
        assert ProbeOptions().deadline_of(host) == config["deadline_s"]
        plans = [plan_of(host, snapshot) for snapshot in (None, document("snapshot.json"))]
        assert [plan["host"] for plan in plans] == [host.name] * 2
    assert parsed == [host.variables for host in hosts]


def test_a_second_plan_of_a_host_has_the_same_problems() -> None:
    host = replace(HOSTS[0], variables={"gpu_stack": [], "gpu_expect": {"count": "many"}})
    first, second = plan_of(host, None)["problems"], plan_of(host, None)["problems"]
    assert [problem["code"] for problem in first] == ["unknown-key", "wrong-type"]
    assert first == second
