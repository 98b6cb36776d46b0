"""The reports of two sides on each other: every way to be wrong, and the side that is blamed."""

from __future__ import annotations

import pytest

from gpufleet.components.checks import CHECKS, PAIR_CHECKS
from gpufleet.documents.verdict import Verdict
from gpufleet.judge import judge
from tests.support.healthy_host import Document, document
from tests.support.met_hosts import (
    BROKEN,
    GRAPH,
    REDUCE,
    Change,
    Checks,
    blocked,
    meeting,
    on_nccl,
    row_in,
    set_in,
    with_gpus,
)


@pytest.fixture
def records() -> list[Document]:
    """Two hosts without GPUs that met in TensorFlow 1.4.0 and 2.13.1: from the lab."""
    found: list[Document] = document("pairs.json")  # type: ignore[assignment]
    return found


@pytest.fixture
def healthy(
    plan: Document, snapshot: Document, records: list[Document]
) -> tuple[Document, Document, list[Document]]:
    """All three."""
    return plan, snapshot, records


@pytest.fixture
def others() -> list[Document]:
    """PyTorch 2.6.0 and JAX 0.5.3 on two hosts without GPUs: two real processes on one."""
    found: list[Document] = document("frameworks/pairs.json")  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("at", [0, 1])
def test_pytorch_and_jax_get_the_exact_sum_by_gloo(
    plan: Document, snapshot: Document, others: list[Document], at: int
) -> None:
    found = meeting(plan, snapshot, [others[at]])
    assert verdicts(found, REDUCE) == ("PASS", "PASS")
    assert "GLOO, 2 replicas, exact" in found["gpu01"][REDUCE]["evidence"]
    assert verdicts(found, GRAPH) == ("NOT-DECLARED", "NOT-DECLARED")
    assert "has no parameter servers" in found["gpu01"][GRAPH]["cause"]


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        ({}, ""),
        (
            {"replicas": [{"device": "CPU:0", "wrong": 0}] * 2},
            "it ran on CPU, CPU, declared is GPU",
        ),
        ({"replicas": [{"device": f"GPU:{n}", "wrong": n} for n in range(2)]}, "has 1 wrong row"),
        ({"in_sync": 2}, "2 replicas took part, not 4"),
        ({"version": "2.5.1"}, "what ran is PyTorch 2.5.1, planned is 2.6.0"),
        ({"nccl": []}, "NCCL did not report that it ran"),
    ],
)
def test_pytorch_between_gpus(
    plan: Document, snapshot: Document, others: list[Document], spoil: Document, cause: str
) -> None:
    record = on_nccl(others[0])
    record["sides"][0].update(spoil)
    found = meeting(plan, snapshot, [record])["gpu01"]
    assert (found["pair.nccl"]["verdict"] == "PASS") is (not cause)
    assert cause in found["pair.nccl"]["cause"]
    assert found[REDUCE]["verdict"] == "NOT-DECLARED"


def verdicts(found: Checks, check: str) -> tuple[str, str]:
    return found["gpu01"][check]["verdict"], found["gpu02"][check]["verdict"]


def test_two_healthy_hosts_pass_and_nccl_is_excused_by_the_declaration(
    plan: Document, snapshot: Document, records: list[Document]
) -> None:
    found = meeting(plan, snapshot, records)
    assert verdicts(found, GRAPH) == verdicts(found, REDUCE) == ("PASS", "PASS")
    assert "/job:ps/replica:0/task:1/device:CPU:0" in found["gpu01"][GRAPH]["evidence"]
    assert (
        "tensorflow-1.4.0 with gpu02: not applicable (gpu_stacks: TensorFlow 1.4.0 has no"
        in (found["gpu01"][REDUCE]["evidence"])
    )
    assert verdicts(found, "pair.nccl") == ("NOT-DECLARED", "NOT-DECLARED")
    assert "gpu_expect: {count: 0}" in found["gpu02"]["pair.nccl"]["cause"]


def test_without_a_pair_there_is_no_pair_check(plan: Document, snapshot: Document) -> None:
    assert {check["id"] for check in judge.judge(plan, snapshot)["checks"]} == set(CHECKS)


def test_tensorflow_1_alone_has_no_all_reduce(
    plan: Document, snapshot: Document, records: list[Document]
) -> None:
    found = meeting(plan, snapshot, records[:1])
    assert verdicts(found, GRAPH) == ("PASS", "PASS")
    assert verdicts(found, REDUCE) == ("NOT-DECLARED", "NOT-DECLARED")
    assert found["gpu01"][REDUCE]["cause"] == (
        "gpu_stacks: TensorFlow 1.4.0 has no multi-worker all-reduce"
    )


def test_hosts_with_gpus_pass_with_nccl(
    plan: Document, snapshot: Document, records: list[Document]
) -> None:
    found = meeting(plan, snapshot, with_gpus(records))
    for check in PAIR_CHECKS:
        assert verdicts(found, check) == ("PASS", "PASS"), found["gpu01"][check]
    assert "Init COMPLETE" in found["gpu01"]["pair.nccl"]["evidence"]


def test_of_unequal_hosts_as_many_gpus_take_part_on_each(
    plan: Document, snapshot: Document, records: list[Document]
) -> None:
    cards = with_gpus(records)
    for record in cards:
        record["gpus"] = [8, 2]
    found = meeting(plan, snapshot, cards)
    for check in PAIR_CHECKS:
        assert verdicts(found, check) == ("PASS", "PASS"), found["gpu01"][check]


def test_gpus_on_one_side_only_are_no_nccl(
    plan: Document, snapshot: Document, records: list[Document]
) -> None:
    found = meeting(plan, snapshot, [{**record, "gpus": [1, 0]} for record in records[:1]])
    assert found["gpu01"]["pair.nccl"]["cause"].startswith("gpu_expect of gpu02: {count: 0}")
    assert found["gpu02"]["pair.nccl"]["cause"].startswith("gpu_expect: {count: 0}")


@pytest.mark.parametrize(
    ("port", "opened"),
    [
        (23456, "allow TCP ports 20000 to 32767 from gpu01 to gpu02"),
        (45123, "allow all TCP ports (gloo and NCCL choose theirs) from gpu01 to gpu02"),
    ],
)
def test_the_remedy_of_a_closed_port_opens_that_port(
    plan: Document, snapshot: Document, others: list[Document], port: int, opened: str
) -> None:
    blocked(0, 0, 1, "timed out")(others)
    others[0]["sides"][0]["reach"][1]["port"] = port
    for checks in meeting(plan, snapshot, [others[0]]).values():
        assert checks[REDUCE]["verdict"] == "FAIL"
        assert opened in checks[REDUCE]["remedy"]


def kernel_s_port_closed(record: Document, *states: str) -> Document:
    """NCCL ran although no port of the kernel's range is open; each side ended so."""
    record = on_nccl(record)
    for number, (side, state) in enumerate(zip(record["sides"], states, strict=True)):
        side.update(state=state, stage="computing", error=None if state == "ok" else "it ended")
        side["reach"] += [
            {
                "to": to,
                "address": f"192.0.2.{to + 1}",
                "port": 45123,
                "error": "timed out" if to != number else None,
            }
            for to in (0, 1)
        ]
    return record


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("ok", "ok"), ("PASS", "PASS", "")),
        (("failed", "lost"), ("FAIL", "INCONCLUSIVE", "while computing: it ended")),
        (("hung", "hung"), ("FAIL", "FAIL", "gpu01 cannot reach gpu02")),
        (("lost", "stopped"), ("FAIL", "FAIL", "gpu01 cannot reach gpu02")),
    ],
)
def test_a_port_that_nccl_need_not_use_explains_a_run_that_broke_and_no_other(
    plan: Document,
    snapshot: Document,
    others: list[Document],
    states: tuple[str, str],
    expected: tuple[str, str, str],
) -> None:
    *wanted, cause = expected
    found = meeting(plan, snapshot, [kernel_s_port_closed(others[0], *states)])
    assert list(verdicts(found, "pair.nccl")) == wanted
    assert cause in found["gpu01"]["pair.nccl"]["cause"]
    if "cannot reach" in cause:
        assert "allow all TCP ports" in found["gpu01"]["pair.nccl"]["remedy"]


def test_an_address_that_is_not_the_host_s_own_is_no_matter_of_a_firewall(
    plan: Document, snapshot: Document, others: list[Document]
) -> None:
    blocked(0, 0, 0, "the other host's connection to it arrived elsewhere")(others)
    for checks in meeting(plan, snapshot, [others[0]]).values():
        entry = checks[REDUCE]
        assert entry["verdict"] == "FAIL"
        assert "gpu01 is not reached at its address" in entry["cause"]
        assert "cannot reach" not in entry["cause"]
        assert "set gpu_pair_address of gpu01" in entry["remedy"]
        assert "allow" not in entry["remedy"]


@pytest.mark.parametrize("state", ["lost", "hung"])
def test_nccl_may_have_taken_an_interface_that_the_other_host_does_not_reach(
    plan: Document, snapshot: Document, others: list[Document], state: str
) -> None:
    gloo, nccl = others[0], on_nccl(others[0])
    for record in (gloo, nccl):
        for side in record["sides"]:
            side.update(state=state, stage="computing", error="it ended")
    for record, check, reported in ((gloo, REDUCE, False), (nccl, "pair.nccl", True)):
        remedy = meeting(plan, snapshot, [record])["gpu01"][check]["remedy"]
        assert ("NCCL_SOCKET_IFNAME=NAME in /etc/nccl.conf" in remedy) is reported, remedy


def test_what_killed_a_side_is_for_a_person_to_find(
    plan: Document, snapshot: Document, others: list[Document]
) -> None:
    set_in(
        0,
        0,
        state="failed",
        error="it was killed (SIGKILL)",
        stage="computing",
        remedy="see the kernel log",
    )(others)
    set_in(0, 1, state="lost", error="Connection closed by peer")(others)
    found = meeting(plan, snapshot, [others[0]])
    assert verdicts(found, REDUCE) == ("FAIL", "INCONCLUSIVE")
    assert "while computing: it was killed" in found["gpu01"][REDUCE]["cause"]
    assert found["gpu01"][REDUCE]["remedy"] == "see the kernel log"
    assert found["gpu02"][REDUCE]["remedy"] == f"see {REDUCE} of gpu01"


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_printed_by_that_check_of_that_host(
    name: str, plan: Document, snapshot: Document, records: list[Document]
) -> None:
    change, check, expected, host, cause = BROKEN[name]
    change(records)
    found = meeting(plan, snapshot, records)
    assert verdicts(found, check) == expected
    assert cause in found[host][check]["cause"]
    for entries in found.values():
        for entry in entries.values():
            if Verdict(entry["verdict"]) not in {Verdict.PASS, Verdict.NOT_DECLARED}:
                assert entry["id"] == check
                assert entry["remedy"]


@pytest.mark.parametrize(
    ("change", "check", "cause"),
    [
        (
            row_in(0, 0, "products", 0, device="/job:worker/replica:0/task:0/device:CPU:0"),
            GRAPH,
            "ran on /job:worker/replica:0/task:0/device:CPU:0 instead",
        ),
        (
            row_in(1, 0, "replicas", 1, device="/job:worker/replica:0/task:0/device:CPU:0"),
            REDUCE,
            "it ran on GPU, CPU, declared is GPU, GPU",
        ),
        (set_in(2, 0, nccl=[]), "pair.nccl", "NCCL did not report that it ran"),
        (row_in(2, 0, "replicas", 0, wrong=9), "pair.nccl", "all 4 replicas has 9 wrong rows"),
    ],
)
def test_a_gpu_that_is_declared_and_not_used_is_reported(
    change: Change, check: str, cause: str, healthy: tuple[Document, Document, list[Document]]
) -> None:
    plan, snapshot, records = healthy
    cards = with_gpus(records)
    change(cards)
    entry = meeting(plan, snapshot, cards)["gpu01"][check]
    assert entry["verdict"] in {"FAIL", "INCONCLUSIVE"}
    assert cause in entry["cause"]
    assert entry["remedy"]


def test_a_record_of_other_hosts_proves_nothing(
    plan: Document, snapshot: Document, records: list[Document]
) -> None:
    for record in records:
        record["hosts"] = ["gpu01", "gpu03"]
    plan["pairs"] = [
        {"with": "gpu02", "gpus": 0, "stacks": [{"name": "tensorflow-2.13.1", "release": "2.13.1"}]}
    ]
    snapshot["pairs"] = records
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert found[GRAPH]["verdict"] == found[REDUCE]["verdict"] == "INCONCLUSIVE"
