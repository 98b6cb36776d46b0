"""Hosts that are verified together are compared: the racks, and the sums of random products."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gpufleet.campaign.provision.provision import merged
from gpufleet.documents.verdict import HostResult
from gpufleet.errors import ConfigurationError
from gpufleet.fleet import probing, saved, siblings
from gpufleet.fleet.inventory import Connection, InventoryHost
from gpufleet.fleet.judging import beside_of, result_of
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.session import Beside, HostRun, Session
from gpufleet.fleet.transport.fanout import Outcome
from tests.components.faults.rack import OTHER, RACK, ZERO, place, placed, with_rack
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


def test_one_host_of_a_rack_costs_another_one_a_note(healthy: Any) -> None:
    found = siblings.compared([host(healthy, "a"), host(healthy, "b", OTHER)])
    assert rack_verdicts(found) == {"a": "PASS", "b": "PASS"}
    for each in found:
        assert "are in different NVLink domains, and no one has" in evidence(each, "gpu.rack")


def test_two_hosts_of_a_rack_cost_the_others_their_verdict(healthy: Any) -> None:
    hosts = [host(healthy, name) for name in "ab"] + [host(healthy, name, OTHER) for name in "cd"]
    assert set(rack_verdicts(siblings.compared(hosts)).values()) == {"INCONCLUSIVE"}


def test_one_host_in_another_clique_costs_another_one_a_note(healthy: Any) -> None:
    found = siblings.compared([host(healthy, "a"), host(healthy, "b", clique="4")])
    assert rack_verdicts(found) == {"a": "PASS", "b": "PASS"}
    assert "are in different cliques" in evidence(found[0], "gpu.rack")


def evidence(run: HostRun, check: str) -> str:
    return next(row["evidence"] for row in run.result["checks"] if row["id"] == check)


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

    monkeypatch.setattr("gpufleet.fleet.probing.probe_hosts", probe_hosts)
    session = probing.verify(hosts, ProbeOptions())
    assert rack_verdicts(session.hosts) == {"a": "PASS", "b": "PASS", "c": "FAIL"}


def test_saved_snapshots_are_compared_with_each_other(healthy: Any, tmp_path: Path) -> None:
    snapshots, plans = [], []
    for name, domain in (("a", RACK), ("b", RACK), ("c", OTHER)):
        own = host(healthy, name, domain)
        for kind, content, files in (
            ("plan", own.plan, plans),
            ("snapshot", own.snapshot, snapshots),
        ):
            path = tmp_path / f"{name}-{kind}.json"
            path.write_text(json.dumps(content))
            files.append(str(path))
    found = saved.judge_saved(snapshots, plans).hosts
    assert rack_verdicts(found) == {"a": "PASS", "b": "PASS", "c": "FAIL"}


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
    if count == 1:
        run = snapshot["sections"]["compute"]["data"]["runs"][0]
        run["consensus"] = [entry for entry in run["consensus"] if entry["gpu"] == 0]
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
    assert {cause[:75] for _, cause in found.values()} == {
        "fp64 on compute capability 9.0: 2 GPUs have 2 different sums of the same pro"[:75]
    }


def test_a_gpu_that_is_alone_is_not_failed_by_the_gpus_of_one_host() -> None:
    """That host may lie, and nothing confirms the only GPU."""
    hosts = [computing("alone", count=1), computing("b", {0: "fp64", 1: "fp64"})]
    found = siblings.compared(hosts)
    row = next(row for row in found[0].result["checks"] if row["id"] == "gpu.consensus")
    assert (row["verdict"], "than 2 of 3 GPUs" in row["cause"]) == ("INCONCLUSIVE", True)
    assert "all of these are in one host" in row["cause"]


@pytest.mark.parametrize("formats", [["fp16"], ["fp32", "bf16"], ["fp64", "int8", "tf32"]])
@pytest.mark.parametrize("since", [0, 2, 4])
@pytest.mark.parametrize("liars", [1, 2])
def test_sums_of_one_other_host_are_a_note(formats: list[str], since: int, liars: int) -> None:
    honest = computing("honest")
    hosts = [honest]
    for number in range(liars):
        lying = computing("liar", since=since)
        snapshot: Any = lying.snapshot
        for entry in data(snapshot, "compute")["runs"][0]["consensus"]:
            if entry["format"] in formats:
                entry["sums"][since:] = ["f" * 16] * (5 - since)
        hosts.append(HostRun(f"liar{number}", snapshot, lying.plan, lying.result))
        hosts[-1].beside = beside_of(snapshot)
        hosts[-1].plan["expect"]["count"] = 16
    found = siblings.compared(hosts)[0]
    row = next(row for row in found.result["checks"] if row["id"] == "gpu.consensus")
    assert row["verdict"] == ("PASS" if liars == 1 else "FAIL")
    if liars == 1:
        assert row["evidence"].count("one other host has another sum") == len(formats)


def test_sums_of_one_other_host_hide_no_gpu_that_disagrees_with_its_own_host() -> None:
    hosts = [computing("a", {1: "bf16"}, since=4), computing("liar", {0: "bf16", 1: "bf16"})]
    verdict, cause = consensus_verdicts(siblings.compared(hosts))["a"]
    assert verdict == "INCONCLUSIVE"
    assert "2 GPUs have 2 different sums of the same products after 16 rounds" in cause


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


ANSWERS = ["a" * 64, "b" * 64]
SAME_ADDRESS = {
    name: (Connection(name, address="10.0.0.1", port=22),) for name in ("gpu01", "gpu03")
}


@pytest.mark.parametrize(
    "known",
    [
        dict.fromkeys(("gpu01", "gpu03"), (None, ANSWERS[0])),
        {name: (Connection(name), ANSWERS[0]) for name in ("gpu01", "gpu03")},
        {name: (*SAME_ADDRESS[name], ANSWERS[0]) for name in ("gpu01", "gpu03")},
        # Two logins, of which one may not read the secret.
        {"gpu01": (*SAME_ADDRESS["gpu01"], ANSWERS[0]), "gpu03": SAME_ADDRESS["gpu03"]},
        SAME_ADDRESS,
    ],
)
def test_one_machine_under_two_names_is_named(healthy: Any, known: dict[str, Any]) -> None:
    """Another one has not been verified under one of them."""
    hosts = [host(healthy, name) for name in ("gpu01", "gpu02", "gpu03")]

    def change(key: str, value: str) -> None:
        for each in (hosts[0], hosts[2]):
            snapshot: Any = each.snapshot
            data(snapshot, "kernel")[key] = value
            each.snapshot = snapshot
            each.beside = beside_of(snapshot, *known[each.name])

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


VICTIMS = ("gpu01", "gpu02")
# How a liar claims to be another host: with whose boot, and with which cards of whom.
LIES = {
    "one card of another": ("gpu01", ["gpu01"], 1, True),
    "one card of each": ("gpu01", ["gpu01", "gpu02"], 1, True),
    "one card and no other": ("gpu01", ["gpu01"], 1, False),
    "all cards of one beside its own": ("gpu01", ["gpu01"], 2, True),
    "all cards of one": ("gpu01", ["gpu01"], 2, False),
    "all cards of both": ("gpu01", ["gpu01", "gpu02"], 2, False),
    "all cards with another boot": ("liar", ["gpu01"], 2, False),
    "a boot without cards": ("gpu01", [], 0, False),
}


def carded(healthy: Any, name: str) -> HostRun:
    """A host with cards and a boot of its own."""
    run = host(healthy, name)
    snapshot: Any = run.snapshot
    for number, card in enumerate(data(snapshot, "smi")["devices"]):
        card["uuid"] = f"GPU-{name}-{number}"
    run.snapshot = snapshot
    return run


@pytest.mark.parametrize("answer", [None, ANSWERS[0], ANSWERS[1]])
@pytest.mark.parametrize("lie", LIES)
def test_a_liar_costs_no_other_host_its_verdict(healthy: Any, lie: str, answer: str | None) -> None:
    boot, claimed, number, beside_own = LIES[lie]
    hosts = [carded(healthy, name) for name in (*VICTIMS, "liar")]
    lying: Any = hosts[2].snapshot
    data(lying, "kernel")["boot_id"] = f"boot of {boot}"
    cards = data(lying, "smi")["devices"]
    own = cards[:] if beside_own else []
    cards[:] = own + [
        {**cards[0], "uuid": f"GPU-{name}-{n}"} for name in claimed for n in range(number)
    ]
    hosts[2].snapshot = lying
    answers = {"gpu01": "c" * 64, "gpu02": "d" * 64, "liar": answer}
    for each in hosts:
        each.beside = beside_of(each.snapshot, Connection(each.name), answers[each.name])
    before = {each.name: each.result["verdict"] for each in hosts[:2]}
    found = siblings.compared(hosts)
    assert {each.name: each.result["verdict"] for each in found[:2]} == before
    assert not any("twins" in each.plan for each in hosts)
    note = "liar of the inventory reports the boot and the GPUs of this host"
    assert (note in evidence(found[0], "host.plan")) == (lie == "all cards of one")
    assert note not in evidence(found[1], "host.plan")
    # As after a repair, where some hosts were probed again.
    again = siblings.compared_again(found)
    assert {each.name: each.result["verdict"] for each in again[:2]} == before


def test_an_answer_is_compared_where_a_claim_is_alone(healthy: Any) -> None:
    """Machines that were resumed from one image of memory have the same secret, and other cards."""
    hosts = [carded(healthy, name) for name in VICTIMS]
    for each in hosts:
        each.beside = beside_of(each.snapshot, None, ANSWERS[0])
    assert siblings.compared(hosts) == hosts
    assert not any("twins" in each.plan for each in hosts)


def test_saved_snapshots_prove_nothing(healthy: Any, tmp_path: Path) -> None:
    files: dict[str, list[str]] = {"plan": [], "snapshot": []}
    for name in VICTIMS:
        run = host(healthy, name)
        snapshot: Any = run.snapshot
        data(snapshot, "kernel")["boot_id"] = "the same"
        for kind, content in (("plan", run.plan), ("snapshot", {**snapshot, "answer": "a" * 64})):
            path = tmp_path / f"{name}-{kind}.json"
            path.write_text(json.dumps(content))
            files[kind].append(str(path))
    found = saved.judge_saved(files["snapshot"], files["plan"]).hosts
    assert [each.plan.get("claims") for each in found] == [["gpu02"], ["gpu01"]]
    assert not any("twins" in each.plan for each in found)
    for each in found:
        row = next(row for row in each.result["checks"] if row["id"] == "host.plan")
        assert row["verdict"] == "PASS"
