"""Hosts of a declared rack are compared with each other; the others stay as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gpufleet.inventory import Connection, InventoryHost
from gpufleet.model.verdict import HostResult
from gpufleet.transport.fanout import Outcome
from gpufleet.verification import probing, racks, saved
from gpufleet.verification.judging import place_of, result_of
from gpufleet.verification.options import ProbeOptions
from gpufleet.verification.session import HostRun
from tests.checks.faults.rack import OTHER, RACK, ZERO, place, placed, with_rack
from tests.support.healthy_host import Document, document

UNREACHED: Any = {"verdict": "UNREACHABLE", "checks": []}


@pytest.fixture(scope="module")
def healthy() -> tuple[Document, Document]:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_rack(plan, snapshot)
    del plan["rack"]
    return plan, snapshot


def host(
    healthy: tuple[Document, Document],
    name: str,
    domain: str = RACK,
    clique: str = "32766",
    **fabric: Any,
) -> HostRun:
    """A host as it is judged alone."""
    plan, snapshot = (deepcopy(each) for each in healthy)
    plan["host"] = snapshot["host"] = name
    plan["expect"]["fabric"] = {"rack": "r12", "clique": None, **fabric}
    if (domain, clique) != (RACK, "32766"):
        placed(snapshot, place(domain, clique), place(domain, clique))
    run: Any = HostRun(name, snapshot, plan, result_of(plan, snapshot, UNREACHED))
    run.place = place_of(snapshot)
    return run


def rack_verdicts(hosts: list[HostRun]) -> dict[str, str]:
    def of(result: HostResult) -> str:
        return next(row["verdict"] for row in result["checks"] if row["id"] == "gpu.rack")

    return {each.name: of(each.result) for each in hosts}


def test_the_host_in_another_domain_is_the_one_that_fails(healthy: Any) -> None:
    hosts = [host(healthy, name) for name in "abc"] + [host(healthy, "odd", OTHER)]
    assert set(rack_verdicts(hosts).values()) == {"PASS"}
    found = racks.compared(hosts)
    assert [each.name for each in found] == ["a", "b", "c", "odd"]
    assert rack_verdicts(found) == {"a": "PASS", "b": "PASS", "c": "PASS", "odd": "FAIL"}
    (row,) = (row for row in found[3].result["checks"] if row["id"] == "gpu.rack")
    assert f"{OTHER}; 3 of 4 hosts of rack r12 are in {RACK}" in row["cause"]


def test_two_hosts_that_differ_decide_nothing(healthy: Any) -> None:
    found = racks.compared([host(healthy, "a"), host(healthy, "b", OTHER)])
    assert rack_verdicts(found) == {"a": "INCONCLUSIVE", "b": "INCONCLUSIVE"}


def test_another_rack_may_have_the_same_clique(healthy: Any) -> None:
    hosts = [host(healthy, "a"), host(healthy, "b"), host(healthy, "c", OTHER, rack="r13")]
    assert set(rack_verdicts(racks.compared(hosts)).values()) == {"PASS"}


def test_declared_cliques_may_differ_in_one_domain(healthy: Any) -> None:
    hosts = [host(healthy, name, clique=str(number)) for number, name in enumerate("abcd")]
    for number, each in enumerate(hosts):
        each.plan["expect"]["fabric"] = {"rack": "r12", "clique": number}
    assert set(rack_verdicts(racks.compared(hosts)).values()) == {"PASS"}
    assert hosts[0].plan["rack"] == [{"domain": RACK, "clique": None, "hosts": 4}]


def test_hosts_that_agree_are_not_judged_again(
    healthy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [host(healthy, "a"), host(healthy, "b")]
    monkeypatch.setattr(racks, "result_of", lambda *_: pytest.fail("judged again"))
    assert racks.compared(hosts) == hosts


def test_a_verification_compares_the_hosts_that_it_probed(
    healthy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"gpu_expect": {"count": 2, "fabric": {"rack": "r12"}}}
    hosts = [InventoryHost(name, variables, Connection(name)) for name in "abc"]
    found = {each.name: host(healthy, each.name).snapshot for each in hosts[:2]}
    found["c"] = host(healthy, "c", OTHER).snapshot

    def probe_hosts(
        hosts: Any, options: Any, report: Any, arrived: Callable[[Outcome, Any], None]
    ) -> dict[str, Outcome]:
        outcomes = {name: Outcome(snapshot) for name, snapshot in found.items()}
        arrived(outcomes["a"], found["a"])
        return outcomes

    monkeypatch.setattr("gpufleet.verification.probing.probe_hosts", probe_hosts)
    session = probing.verify(hosts, ProbeOptions())
    assert rack_verdicts(session.hosts) == {"a": "PASS", "b": "PASS", "c": "FAIL"}


def test_saved_snapshots_are_compared_with_each_other(healthy: Any, tmp_path: Path) -> None:
    snapshots, plans = [], []
    for name, domain in (("a", RACK), ("b", OTHER)):
        own = host(healthy, name, domain)
        for kind, content, files in (
            ("plan", own.plan, plans),
            ("snapshot", own.snapshot, snapshots),
        ):
            path = tmp_path / f"{name}-{kind}.json"
            path.write_text(json.dumps(content))
            files.append(str(path))
    found = saved.judge_saved(snapshots, plans).hosts
    assert rack_verdicts(found) == {"a": "INCONCLUSIVE", "b": "INCONCLUSIVE"}


def test_a_host_without_a_place_is_no_member(healthy: Any) -> None:
    lost = HostRun("lost", None, host(healthy, "lost").plan, UNREACHED)
    alone = host(healthy, "alone", ZERO, rack=None)
    hosts = [host(healthy, "a"), host(healthy, "b"), lost, alone]
    found = racks.compared(hosts)
    assert found == hosts
    assert (hosts[0].plan["rack"][0]["hosts"], "rack" in lost.plan) == (2, False)
