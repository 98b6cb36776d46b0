"""Hosts that are verified together are compared: the racks, and the sums of random products."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gpufleet.errors import ConfigurationError
from gpufleet.inventory import Connection, InventoryHost
from gpufleet.model.verdict import HostResult
from gpufleet.provision.provision import merged
from gpufleet.transport.fanout import Outcome
from gpufleet.verification import probing, saved, siblings
from gpufleet.verification.judging import beside_of, result_of
from gpufleet.verification.options import ProbeOptions
from gpufleet.verification.session import Beside, HostRun, Session
from tests.checks.faults.rack import OTHER, RACK, ZERO, place, placed, with_rack
from tests.support.healthy_host import Document, data, document
from tests.support.host_parts import with_gpus

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
    data(snapshot, "kernel")["boot_id"] = f"boot of {name}"
    plan["expect"]["fabric"] = {"rack": "r12", "clique": None, **fabric}
    if (domain, clique) != (RACK, "32766"):
        placed(snapshot, place(domain, clique), place(domain, clique))
    run: Any = HostRun(name, snapshot, plan, result_of(plan, snapshot, UNREACHED))
    run.beside = beside_of(snapshot)
    return run


def rack_verdicts(hosts: list[HostRun]) -> dict[str, str]:
    def of(result: HostResult) -> str:
        return next(row["verdict"] for row in result["checks"] if row["id"] == "gpu.rack")

    return {each.name: of(each.result) for each in hosts}


def test_the_host_in_another_domain_is_the_one_that_fails(healthy: Any) -> None:
    hosts = [host(healthy, name) for name in "abc"] + [host(healthy, "odd", OTHER)]
    assert set(rack_verdicts(hosts).values()) == {"PASS"}
    found = siblings.compared(hosts)
    assert [each.name for each in found] == ["a", "b", "c", "odd"]
    assert rack_verdicts(found) == {"a": "PASS", "b": "PASS", "c": "PASS", "odd": "FAIL"}
    (row,) = (row for row in found[3].result["checks"] if row["id"] == "gpu.rack")
    assert f"{OTHER}; 3 of 4 hosts of rack r12 are in {RACK}" in row["cause"]


def test_two_hosts_that_differ_decide_nothing(healthy: Any) -> None:
    found = siblings.compared([host(healthy, "a"), host(healthy, "b", OTHER)])
    assert rack_verdicts(found) == {"a": "INCONCLUSIVE", "b": "INCONCLUSIVE"}


def test_another_rack_may_have_the_same_clique(healthy: Any) -> None:
    hosts = [host(healthy, "a"), host(healthy, "b"), host(healthy, "c", OTHER, rack="r13")]
    assert set(rack_verdicts(siblings.compared(hosts)).values()) == {"PASS"}


def test_declared_cliques_may_differ_in_one_domain(healthy: Any) -> None:
    hosts = [host(healthy, name, clique=str(number)) for number, name in enumerate("abcd")]
    for number, each in enumerate(hosts):
        each.plan["expect"]["fabric"] = {"rack": "r12", "clique": number}
    assert set(rack_verdicts(siblings.compared(hosts)).values()) == {"PASS"}
    assert hosts[0].plan["rack"] == [{"domain": RACK, "clique": None, "hosts": 4}]


def test_hosts_that_agree_are_not_judged_again(
    healthy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [host(healthy, "a"), host(healthy, "b")]
    monkeypatch.setattr(siblings, "result_of", lambda *_: pytest.fail("judged again"))
    assert siblings.compared(hosts) == hosts


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
    found = siblings.compared(hosts)
    assert found == hosts
    assert (hosts[0].plan["rack"][0]["hosts"], "rack" in lost.plan) == (2, False)


def consensus_verdicts(hosts: list[HostRun]) -> dict[str, tuple[str, str]]:
    return {
        each.name: next(
            (row["verdict"], row["cause"])
            for row in each.result["checks"]
            if row["id"] == "gpu.consensus"
        )
        for each in hosts
    }


def computing(
    name: str, wrong: dict[int, str] | None = None, count: int = 2, since: int = 2
) -> HostRun:
    """A host with GPUs, of which some ({GPU: format}) have another sum after 2^since rounds."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_gpus(plan, snapshot)
    plan["host"] = snapshot["host"] = name
    plan["expect"]["count"] = count
    for entry in snapshot["sections"]["compute"]["data"]["runs"][0]["consensus"]:
        if (wrong or {}).get(entry["gpu"]) == entry["format"]:
            entry["sums"][since:] = [f"{name:0>16}"] * (5 - since)
    typed: Any = snapshot
    planned: Any = plan
    found: Any = HostRun(name, typed, planned, result_of(planned, typed, UNREACHED))
    found.beside = beside_of(typed)
    run: HostRun = found
    return run


def test_a_gpu_that_disagrees_with_those_of_other_hosts_is_named() -> None:
    hosts = [computing(f"{name}") for name in "abc"] + [computing("odd", {1: "bf16"})]
    # Two GPUs that differ decide nothing.
    assert [each[0] for each in consensus_verdicts(hosts).values()] == [
        *["PASS"] * 3,
        "INCONCLUSIVE",
    ]
    found = consensus_verdicts(siblings.compared(hosts))
    assert [found[name][0] for name in "abc"] == ["PASS"] * 3
    verdict, cause = found["odd"]
    assert verdict == "FAIL"
    assert "GPU 1 has another sum of the same products than 7 of 8 GPUs, each time after 4" in cause


def test_a_gpu_that_disagrees_early_hides_none_that_disagrees_later() -> None:
    """Each night one bad card somewhere would have cleared all others."""
    hosts = [computing("a"), computing("early", {0: "bf16"}, since=0)]
    hosts += [computing("late", {1: "bf16"}), computing("latest", {0: "bf16"}, since=4)]
    found = consensus_verdicts(siblings.compared(hosts))
    assert found["a"][0] == "PASS"
    assert "GPU 0 has another sum" in found["early"][1]
    assert "than 7 of 8 GPUs, each time after 1 rounds" in found["early"][1]
    assert "GPU 1 has another sum" in found["late"][1]
    assert "than 6 of 7 GPUs, each time after 4 rounds" in found["late"][1]
    assert "GPU 0 has another sum" in found["latest"][1]
    assert "than 5 of 6 GPUs, each time after 16 rounds" in found["latest"][1]


def test_two_gpus_of_two_hosts_decide_nothing() -> None:
    hosts = [computing("a", count=1), computing("b", {0: "fp64"}, count=1)]
    found = consensus_verdicts(siblings.compared(hosts))
    assert {verdict for verdict, _ in found.values()} == {"INCONCLUSIVE"}


def test_a_host_has_no_more_votes_than_declared_gpus() -> None:
    """A host that reports a thousand GPUs would outvote all others."""
    liar = computing("liar", {0: "fp16", 1: "fp16"})
    assert liar.beside
    liar.beside = Beside(
        None, {group: list(sums) * 500 for group, sums in liar.beside.sums.items()}
    )
    hosts = [liar, *(computing(name) for name in "ab")]
    found = consensus_verdicts(siblings.compared(hosts))
    assert {name: verdict for name, (verdict, _) in found.items()} == {
        "liar": "FAIL",
        "a": "PASS",
        "b": "PASS",
    }


def test_a_host_that_is_probed_again_is_compared_with_all_others(healthy: Any) -> None:
    """Alone it has nobody to differ from."""
    hosts = [
        host(healthy, name, OTHER if name == "gpu03" else RACK)
        for name in ("gpu01", "gpu02", "gpu03")
    ]
    first = Session(siblings.compared(hosts))
    assert rack_verdicts(first.hosts)["gpu03"] == "FAIL"
    again = Session(siblings.compared([host(healthy, "gpu03", OTHER)]))
    assert rack_verdicts(merged(first, again).hosts)["gpu03"] == "FAIL"
    repaired = Session(siblings.compared([host(healthy, "gpu03", RACK)]))
    assert set(rack_verdicts(merged(first, repaired).hosts).values()) == {"PASS"}


def test_two_snapshots_of_a_host_are_refused(healthy: Any, tmp_path: Path) -> None:
    own = host(healthy, "gpu01")
    for name, found in (("one", own.snapshot), ("other", own.snapshot), ("plan", own.plan)):
        (tmp_path / name).write_text(json.dumps(found))
    one, other, plan = (str(tmp_path / name) for name in ("one", "other", "plan"))
    with pytest.raises(ConfigurationError, match="A second snapshot is of gpu01"):
        saved.judge_saved([one, other], [plan])
    with pytest.raises(ConfigurationError, match="A second plan is of gpu01"):
        saved.judge_saved([one], [plan, plan])


def test_one_machine_under_two_names_is_named(healthy: Any) -> None:
    """Another one has not been verified under one of them."""
    hosts = [host(healthy, name) for name in ("gpu01", "gpu02", "gpu03")]

    def change(key: str, value: str) -> None:
        for each in (hosts[0], hosts[2]):
            snapshot: Any = each.snapshot
            data(snapshot, "kernel")[key] = value
            each.snapshot, each.beside = snapshot, beside_of(snapshot)

    def planned(found: list[HostRun]) -> dict[str, tuple[str, str]]:
        rows = {
            each.name: next(row for row in each.result["checks"] if row["id"] == "host.plan")
            for each in found
        }
        return {name: (row["verdict"], row["cause"][:33]) for name, row in rows.items()}

    change("boot_id", "the same")
    assert planned(siblings.compared(hosts)) == {
        "gpu01": ("INCONCLUSIVE", "gpu03 of the inventory is this ve"),
        "gpu02": ("PASS", ""),
        "gpu03": ("INCONCLUSIVE", "gpu01 of the inventory is this ve"),
    }
    # Two containers of a machine may share its GPUs.
    change("container", "docker")
    again = planned(siblings.compared_again(hosts))
    assert {verdict for verdict, _ in again.values()} == {"PASS"}


@pytest.mark.parametrize("boot", ["boot of gpu01", "boot of liar"])
@pytest.mark.parametrize("victims", [["gpu01"], ["gpu01", "gpu02"]])
def test_a_host_that_claims_gpus_of_others_costs_them_nothing(
    healthy: Any, boot: str, victims: list[str]
) -> None:
    hosts = [host(healthy, name) for name in ("gpu01", "gpu02", "liar")]
    cards = [
        frozenset((f"boot of {each.name}", f"GPU-{each.name}-{n}") for n in range(2))
        for each in hosts
    ]
    for each, own in zip(hosts, cards, strict=True):
        assert each.beside
        each.beside = Beside(each.beside.place, each.beside.sums, own)
    claimed = {(boot, f"GPU-{name}-0") for name in victims}
    assert hosts[2].beside
    hosts[2].beside = Beside(None, {}, cards[2] | claimed)
    assert siblings.compared(hosts)
    assert not any("twins" in each.plan for each in hosts)
