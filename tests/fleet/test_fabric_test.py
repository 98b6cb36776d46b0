"""Collectives between hosts: exact sums, who is at fault, and how a test ends.

All hosts are this machine; NCCL is the lab's stand-in, which computes over TCP.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from gpufleet.documents.collectives import GroupResult
from gpufleet.documents.verdict import Verdict
from gpufleet.errors import ConfigurationError
from gpufleet.fabric.rounds import GroupTest, Outcome
from gpufleet.fabric.threshold import Threshold
from gpufleet.fleet import collectives as collectives_run
from gpufleet.fleet.collectives import OPERATIONS, GroupRun, Measure, members_of, run_groups
from gpufleet.fleet.fabric_test import (
    Findings,
    InUseError,
    declared_bandwidth,
    judged_alike,
    pair_rounds,
    refuse_used,
    verdict,
)
from gpufleet.fleet.inventory import Connection, InventoryHost
from gpufleet.fleet.sides import GRACE_S
from gpufleet.fleet.transport.fanout import Outcome as Probed
from lab import collectives
from tests.support.collective_hosts import FULL_GB_PER_S, SIZES, CollectiveHosts, processes_with
from tests.support.healthy_host import data, document
from tests.support.machine import deadline

# Enough for programs to start on a busy machine.
DEADLINE_S = 10
NAMES = ["gpu01", "gpu02", "gpu03", "gpu04"]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collectives.build(tmp_path_factory.mktemp("nccl") / "stand-in")


@pytest.fixture
def hosts(tmp_path: Path, libraries: Path) -> Iterator[CollectiveHosts]:
    made = CollectiveHosts(tmp_path, libraries, NAMES)
    yield made
    assert made.left_behind() == []


def test_healthy_hosts_pass_with_exact_sums_and_a_bandwidth_for_each_collective(
    hosts: CollectiveHosts,
) -> None:
    hosts.operations = OPERATIONS
    found = hosts.run()
    assert (found["verdict"], found["unknown"], found["excluded"]) == ("PASS", [], [])
    assert found["nccl"] == dict.fromkeys(NAMES, "2.27.3")
    assert found["ranks"] == 4
    assert [(row["operation"], row["bytes"], row["wrong"]) for row in found["results"]] == [
        ("all_reduce", SIZES[0], 0),
        ("all_gather", SIZES[0], 0),
        ("sendrecv", SIZES[0], 0),
    ]
    # The bus bandwidth is the same for each collective; a busy machine takes a part of it.
    assert all(0 < row["gb_per_s"] <= FULL_GB_PER_S * 1.01 for row in found["results"])


def test_each_gpu_of_a_host_is_a_rank(hosts: CollectiveHosts) -> None:
    hosts.gpus("gpu01", 3)
    hosts.hosts = [
        replace(hosts.hosts[0], variables={**hosts.hosts[0].variables, "gpu_expect": {"count": 3}}),
        hosts.hosts[1],
    ]
    found = hosts.run()
    assert (found["verdict"], found["ranks"]) == ("PASS", 4)


def test_a_declared_gpu_that_cuda_does_not_show_is_named(hosts: CollectiveHosts) -> None:
    hosts.hosts = [
        replace(hosts.hosts[0], variables={**hosts.hosts[0].variables, "gpu_expect": {"count": 2}}),
        hosts.hosts[1],
    ]
    [excluded] = hosts.run()["excluded"]
    assert excluded["cause"] == "CUDA shows 1 GPU, 2 are needed"


@pytest.mark.costly
def test_without_a_declared_bandwidth_the_median_of_the_pairs_is_the_figure(
    tmp_path: Path, libraries: Path
) -> None:
    hosts = CollectiveHosts(tmp_path, libraries, [f"gpu{number:02}" for number in range(1, 9)])
    hosts.plant("gpu06", "slow 6")
    found = hosts.run(at_least=None)
    assert [(each["kind"], each["hosts"]) for each in found["culprits"]] == [("member", ["gpu06"])]
    assert "median" in found["slow"]


@pytest.mark.parametrize(
    ("faults", "culprits"),
    [
        pytest.param(
            {"gpu03": "slow 6"}, [("member", ["gpu03"], "slow")], marks=pytest.mark.costly
        ),
        ({"gpu02": "wrong 1"}, [("member", ["gpu02"], "wrong")]),
        pytest.param(
            {"gpu02": "link gpu03 6", "gpu03": "link gpu02 6"},
            [("pair", ["gpu02", "gpu03"], "slow")],
            marks=pytest.mark.costly,
        ),
    ],
    ids=["slow", "wrong", "link"],
)
def test_who_is_at_fault_is_named_and_nobody_else(
    hosts: CollectiveHosts, faults: dict[str, str], culprits: list[tuple[str, list[str], str]]
) -> None:
    for name, line in faults.items():
        hosts.plant(name, line)
    found = hosts.run()
    assert found["verdict"] == "FAIL"
    assert [(each["kind"], each["hosts"]) for each in found["culprits"]] == [
        culprit[:2] for culprit in culprits
    ]
    for each, (_kind, _hosts, how) in zip(found["culprits"], culprits, strict=True):
        assert f" is {how}: test" in each["statement"]
    assert any(line.startswith("all steps: at most") for line in hosts.lines)


@pytest.mark.costly
def test_a_hung_group_ends_at_its_deadline(hosts: CollectiveHosts) -> None:
    hosts.plant("gpu02", "hang 2")
    begin = time.monotonic()
    tests = [GroupTest(("gpu01", "gpu02"), (0,)), GroupTest(("gpu03", "gpu04"), (0,))]
    runs = run_groups(
        tests, members_of(hosts.hosts), Measure(("all_reduce",), SIZES, 2), DEADLINE_S
    )
    assert DEADLINE_S <= time.monotonic() - begin < DEADLINE_S + 2 * GRACE_S
    assert [run.result().outcome for run in runs] == [Outcome.HUNG, Outcome.PASSED]
    assert runs[0].sides["gpu01"]["stage"] == f"all_reduce of {SIZES[0]} bytes"


@pytest.mark.slow
def test_a_hung_host_costs_its_tests_their_deadline_and_is_named(hosts: CollectiveHosts) -> None:
    hosts.plant("gpu04", "hang 2")
    found = hosts.run(deadline_s=DEADLINE_S)
    assert [(each["kind"], each["hosts"]) for each in found["culprits"]] == [("member", ["gpu04"])]
    assert "is hung" in found["culprits"][0]["statement"]


@pytest.mark.costly
def test_a_host_that_fails_by_itself_is_named_and_the_others_are_tested(
    hosts: CollectiveHosts,
) -> None:
    hosts.plant("gpu01", "crash 3")
    (hosts.place / "gpu02/lib64/libnccl.so.2").unlink()
    found = hosts.run()
    assert {each["host"] for each in found["excluded"]} == {"gpu01", "gpu02"}
    causes = {each["host"]: each["cause"] for each in found["excluded"]}
    assert "ended with status 134" in causes["gpu01"]
    assert "there is no libnccl.so.*" in causes["gpu02"]
    assert found["hosts"] == ["gpu03", "gpu04"]
    assert found["verdict"] == "FAIL"


@pytest.mark.costly
def test_a_group_below_the_declared_bandwidth_fails_though_all_are_alike(
    hosts: CollectiveHosts,
) -> None:
    found = hosts.run(at_least=400)
    assert found["verdict"] == "FAIL"
    assert found["culprits"] == []
    assert "declared 400 GB/s" in found["slow"]
    assert found["unknown"]


@pytest.mark.costly
def test_two_hosts_slower_than_their_own_past_fail_and_the_conclusion_says_so(
    hosts: CollectiveHosts,
) -> None:
    hosts.hosts = hosts.hosts[:2]
    hosts.past = lambda names: [10 * FULL_GB_PER_S] * 5
    found = hosts.run(at_least=None)
    assert found["verdict"] == "FAIL"
    assert found["slow"] == "more than 15% below the median of the same hosts' own past"
    hosts.past = lambda names: [FULL_GB_PER_S / 2] * 5
    assert hosts.run(at_least=None)["verdict"] == "PASS"


def test_two_hosts_without_a_declared_bandwidth_are_not_judged(hosts: CollectiveHosts) -> None:
    hosts.hosts = hosts.hosts[:2]
    found = hosts.run(at_least=None)
    assert (found["verdict"], found["culprits"]) == ("INCONCLUSIVE", [])


def test_one_host_is_a_group_by_itself(hosts: CollectiveHosts) -> None:
    hosts.hosts = hosts.hosts[:1]
    hosts.gpus("gpu01", 2)
    hosts.hosts = [
        replace(hosts.hosts[0], variables={**hosts.hosts[0].variables, "gpu_expect": {"count": 2}})
    ]
    found = hosts.run()
    assert (found["verdict"], found["ranks"]) == ("PASS", 2)
    found = hosts.run(at_least=None)
    assert (found["verdict"], found["unknown"]) == (
        "INCONCLUSIVE",
        [
            "how fast these should be: no figure is declared (--at-least), fewer than four tests"
            " are alike, and neither their past nor the catalog has a figure"
        ],
    )


def test_a_killed_test_leaves_no_process(hosts: CollectiveHosts) -> None:
    hosts.plant("gpu02", "hang 2")
    program = f"""
from pathlib import Path
from tests.support.collective_hosts import CollectiveHosts
made = CollectiveHosts.__new__(CollectiveHosts)
made.place, made.lines, made.operations = Path({str(hosts.place)!r}), [], ("all_reduce",)
made.scope, made.shared, made.past = "all", True, lambda hosts: ()
made.sizes = {SIZES}
from gpufleet.fleet.inventory import Become, Connection, InventoryHost
made.hosts = [
    InventoryHost(name, {{"gpu_nccl_dir": str(made.place / name), "gpu_expect": {{"count": 1}}}},
                  Connection(name, "local", become=Become(False)))
    for name in {NAMES!r}
]
made.run(120)
"""
    running = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    end = time.monotonic() + deadline(60)
    while not _all_loaded(hosts) and time.monotonic() < end:
        time.sleep(0.05)
    assert _all_loaded(hosts)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert hosts.left_behind() == []


def _all_loaded(hosts: CollectiveHosts) -> bool:
    return len(processes_with(hosts.place)) >= len(NAMES)


# -- who is refused --------------------------------------------------------------------------------


def test_hosts_that_others_use_are_refused_unless_shared() -> None:
    snapshot: Any = document("snapshot.json")
    data(snapshot, "driver")["holders"] = [
        {"pid": 4711, "user": "ann", "command": "python3", "nodes": ["/dev/nvidia0"]}
    ]
    answers = {
        "gpu01": Probed(snapshot),
        "gpu02": Probed(None, "ssh failed: no route"),
    }
    with pytest.raises(InUseError) as error:
        refuse_used(answers)
    assert "gpu01: pid 4711 (ann, python3)" in error.value.message
    assert "gpu02: ssh failed: no route" in error.value.message
    assert "--shared" in error.value.remedy


def test_hosts_without_nccl_are_refused_before_anything_starts() -> None:
    host = InventoryHost("a", {"gpu_stacks": []}, Connection("a"))
    with pytest.raises(ConfigurationError, match="no stack of this host has NCCL") as error:
        members_of([host])
    assert "gpu_nccl_dir" in error.value.remedy
    relative = InventoryHost("a", {"gpu_nccl_dir": "opt/nccl"}, Connection("a"))
    with pytest.raises(ConfigurationError, match="absolute path"):
        members_of([relative])


def test_a_stack_with_cuda_from_pip_is_used() -> None:
    host = InventoryHost("a", {"gpu_stacks": [{"pytorch": "2.6.0"}]}, Connection("a"))
    member = members_of([host])["a"]
    assert (member.place, member.is_venv) == ("/opt/gpufleet/stacks/pytorch-2.6.0", True)


def test_the_limit_of_open_files_is_raised_as_far_as_many_hosts_need_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = [(1024, 8192)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.append(wanted))
    collectives_run.allow_files(8)
    assert limits == [(1024, 8192)]
    collectives_run.allow_files(1000)
    assert limits[-1] == (4256, 8192)
    with pytest.raises(ConfigurationError, match="4096 hosts at once need 16640 open files"):
        collectives_run.allow_files(4096)


@pytest.mark.parametrize(
    ("declared", "figure"), [([380, 390], 380.0), ([380, None], None), ([None, None], None)]
)
def test_a_group_has_to_reach_what_all_of_its_hosts_declare(
    declared: list[int | None], figure: float | None
) -> None:
    hosts = [
        InventoryHost(str(at), {"gpu_expect": {"bus_bandwidth_gb_s": rate}}, Connection(str(at)))
        for at, rate in enumerate(declared)
    ]
    assert declared_bandwidth(hosts) == figure


# -- what hosts may claim --------------------------------------------------------------------------


EIGHT_BYTES = Measure(("all_reduce",), (8,))


def side(**more: object) -> dict[str, object]:
    row = {"operation": "all_reduce", "bytes": 8, "seconds": 1e-3, "repeats": 1, "wrong": 0}
    return {
        "state": "ok",
        "stage": "",
        "error": None,
        "nccl": "2.27.3",
        "library": "/x",
        "gpus": 1,
        "results": [row],
        "skipped": [],
        "seconds": 1.0,
        **more,
    }


@pytest.mark.parametrize(
    "claim",
    [
        {"gpus": 0},
        {"results": []},
        {"results": [{**side()["results"][0], "seconds": 0.0}]},  # type: ignore[index]
        {"results": [{**side()["results"][0], "seconds": -1.0}]},  # type: ignore[index]
        {"results": [{**side()["results"][0], "bytes": 1 << 40}]},  # type: ignore[index]
        {"results": [{**side()["results"][0], "bytes": 4}]},  # type: ignore[index]
        {"state": "stopped"},
    ],
)
def test_a_claim_that_cannot_be_is_no_result(claim: dict[str, object]) -> None:
    test = GroupTest(("a", "b"), (0,))
    other = side(gpus=-1) if claim == {"gpus": 0} else side()
    run = GroupRun(test, EIGHT_BYTES, {"a": other, "b": side(**claim)}, {})  # type: ignore[dict-item]
    assert run.result().outcome is Outcome.NOT_RUN


def test_another_collective_or_size_is_not_compared_with_the_judged_one() -> None:
    row = side()["results"][0]  # type: ignore[index]
    for measure in (Measure(("all_gather", "all_reduce"), (8,)), Measure(("all_reduce",), (8, 16))):
        run = GroupRun(GroupTest(("a", "b"), (0,)), measure, {"a": side(), "b": side()}, {})  # type: ignore[dict-item]
        assert run.rows()[0]["bytes"] == row["bytes"]
        assert run.result().outcome is Outcome.NOT_RUN


def test_wrong_numbers_are_wrong_also_where_the_test_did_not_end() -> None:
    test = GroupTest(("a", "b"), (0,))
    row = {**side()["results"][0], "wrong": 3}  # type: ignore[index]
    run = GroupRun(test, EIGHT_BYTES, {"a": side(results=[row]), "b": side(state="hung")}, {})  # type: ignore[dict-item]
    assert run.result().outcome is Outcome.WRONG


def seen(outcome: str, *hosts: str) -> GroupResult:
    return {
        "number": 1,
        "round": 1,
        "hosts": list(hosts) or ["a", "b"],
        "outcome": outcome,
        "gb_per_s": 1.0,
        "least_gb_per_s": 1.0,
    }


def judged(*outcomes: str, unknown: list[str] | None = None) -> Verdict:
    return verdict(Findings("", [seen(each) for each in outcomes], [], unknown or []), [])


def test_a_pair_that_was_slow_once_is_not_known_to_be_slow() -> None:
    assert judged("passed", "slow", unknown=["why"]) is Verdict.INCONCLUSIVE
    assert judged("slow", "passed", unknown=["why"]) is Verdict.FAIL
    assert judged("passed", "wrong", unknown=["why"]) is Verdict.FAIL
    assert judged("not judged", "passed") is Verdict.PASS
    assert judged() is Verdict.INCONCLUSIVE


# -- each host, each pair --------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(2, 10))
def test_each_pair_is_tested_once_and_no_host_twice_in_a_round(count: int) -> None:
    names = [f"gpu{number}" for number in range(count)]
    rounds = pair_rounds(names)
    pairs = [frozenset(pair) for each in rounds for pair in each]
    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
    assert len(rounds) == count - 1 + count % 2
    for each in rounds:
        hosts = [name for pair in each for name in pair]
        assert len(hosts) == len(set(hosts))


def alike(rates: dict[str, float]) -> Findings:
    """The findings of tests of these groups, by the bandwidth of each (0: wrong)."""

    def run(names: tuple[str, ...], rate: float) -> GroupRun:
        row = {**side()["results"][0], "seconds": 8 / (rate or 1) / 1e9, "wrong": int(not rate)}  # type: ignore[index]
        documents = {name: side(results=[row], gpus=2 // len(names)) for name in names}
        return GroupRun(GroupTest(names, (0,)), EIGHT_BYTES, documents, {})

    runs = [run(tuple(names.split()), rate) for names, rate in rates.items()]
    return judged_alike([runs], Threshold(0.1, "10% below the others"))


def test_hosts_are_compared_with_each_other() -> None:
    found = alike({"a": 400, "b": 401, "c": 216, "d": 399, "e": 0})
    assert [each["statement"] for each in found.culprits] == [
        "c is slow: test 3",
        "e is wrong: test 5",
    ]
    assert found.unknown == []


def test_a_slow_pair_and_a_slow_host_are_told_apart() -> None:
    pair = alike({"a b": 40, "c d": 380, "a c": 381, "b d": 382, "a d": 380, "b c": 379})
    assert [each["statement"] for each in pair.culprits] == [
        "the link between a and b is slow: test 1"
    ]
    host = alike({"a b": 40, "c d": 380, "a c": 41, "b d": 382, "a d": 40, "b c": 379})
    assert [each["statement"] for each in host.culprits] == ["a is slow: tests 1, 3, 5"]


def test_few_tests_without_a_declared_figure_are_not_judged() -> None:
    found = alike({"a b": 40, "a c": 400})
    assert found.culprits == []
    assert "no figure is declared" in found.unknown[0]


@pytest.mark.costly
@pytest.mark.parametrize(("scope", "tests"), [("hosts", 4), ("pairs", 6)])
def test_a_scope_tests_each_of_its_groups(
    hosts: CollectiveHosts, scope: Literal["hosts", "pairs"], tests: int
) -> None:
    hosts.scope, hosts.operations = scope, ("sendrecv",)
    hosts.plant("gpu03", "wrong 1" if scope == "pairs" else "crash 1")
    found = hosts.run()
    assert len(found["tests"]) == tests
    if scope == "pairs":
        assert [(each["kind"], each["hosts"]) for each in found["culprits"]] == [
            ("member", ["gpu03"])
        ]
    else:
        assert [each["host"] for each in found["excluded"]] == ["gpu03"]
    assert found["verdict"] == "FAIL"
