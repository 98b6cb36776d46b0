"""From documents to verdicts, and from verdicts to an exit status."""

from __future__ import annotations

import pytest

from gpufleet.components.checks import CHECKS, Sections
from gpufleet.documents.verdict import Verdict, exit_status, worst
from gpufleet.judge import judge
from tests.support.healthy_host import EXCUSED, Document, other_than, verdicts


def test_a_healthy_host_passes_every_check_that_no_declaration_excuses(
    plan: Document, snapshot: Document
) -> None:
    result = judge.judge(plan, snapshot)
    excused = {c["id"]: c["cause"] for c in result["checks"] if c["verdict"] == "NOT-DECLARED"}
    assert excused == EXCUSED
    judged = {c["id"]: c["verdict"] for c in result["checks"] if c["id"] not in excused}
    assert judged
    assert other_than("PASS", judged) == {}
    assert result["verdict"] == "PASS"


def test_each_entry_has_the_documented_fields(plan: Document, snapshot: Document) -> None:
    for check in judge.judge(plan, snapshot)["checks"]:
        assert list(check) == ["id", "verdict", "statement", "cause", "remedy", "evidence"]
        assert check["statement"].endswith(".")


@pytest.mark.parametrize(
    ("state", "verdict"),
    [("hung", "HUNG"), ("error", "INCONCLUSIVE"), ("denied", "INCONCLUSIVE")],
)
@pytest.mark.parametrize("section", ["cudnn", "linker", "stacks", "receipts", "environment"])
def test_what_was_not_read_is_never_healthy(
    plan: Document, snapshot: Document, section: str, state: str, verdict: str
) -> None:
    snapshot["sections"][section] = {"state": state, "seconds": 2, "error": "why", "data": None}
    found = verdicts(plan, snapshot)
    readers = {c.id for c in CHECKS.values() if section in c.reads} - set(EXCUSED)
    assert readers
    readers.add("host.probe")
    assert other_than(verdict, {check_id: found[check_id] for check_id in readers}) == {}
    others = set(found) - readers - set(EXCUSED)
    assert others
    assert other_than("PASS", {check_id: found[check_id] for check_id in others}) == {}


@pytest.mark.parametrize("section", ["gpus", "toolkits", "cudnn", "linker", "stacks"])
@pytest.mark.parametrize("damage", [None, {}, [], "text", 7])
def test_a_snapshot_of_another_shape_is_inconclusive_and_raises_nothing(
    plan: Document, snapshot: Document, section: str, damage: object
) -> None:
    snapshot["sections"][section]["data"] = damage
    found = verdicts(plan, snapshot)
    readers = {c.id for c in CHECKS.values() if section in c.reads}
    judged = {name: found[name] for name in readers - set(EXCUSED)}
    assert judged
    assert other_than("INCONCLUSIVE", judged) == {}


def test_a_missing_section_is_inconclusive(plan: Document, snapshot: Document) -> None:
    del snapshot["sections"]["cudnn"]
    assert verdicts(plan, snapshot)["cudnn.links"] == "INCONCLUSIVE"


@pytest.fixture
def nothing(plan: Document) -> Document:
    """A plan of a host of which nothing is declared."""
    plan |= {
        "toolkits": [],
        "cudnn": [],
        "stacks": [],
        "default_link": None,
        "driver": None,
        "environment": [],
        "containers": None,
        "expect": {"count": None, "model": None, "memory_mib": None},
        "linker": {**plan["linker"], "directories": []},
    }
    return plan


def test_a_host_without_gpus_is_not_judged_by_its_contents(
    nothing: Document, snapshot: Document
) -> None:
    nothing["expect"]["count"] = 0
    # What was declared before, and provision would take back.
    snapshot["sections"]["linker"]["data"]["files"] = []
    receipts = snapshot["sections"]["receipts"]["data"]
    receipts["receipts"] = [row for row in receipts["receipts"] if row["kind"] != "environment"]
    found = verdicts(nothing, snapshot)
    passed = {name for name, verdict in found.items() if verdict == "PASS"}
    assert passed == {
        "host.probe",
        "host.plan",
        "host.disk",
        "host.booted",
        "host.temporary",
        "host.nvme",
        "host.repositories",
        "install.complete",
        "install.owned",
        "install.contents",
        "gpu.count",
    }
    others = {name: found[name] for name in set(found) - passed}
    assert others
    assert other_than("NOT-DECLARED", others) == {}


def test_a_host_of_which_nothing_is_declared_is_not_healthy(
    nothing: Document, snapshot: Document
) -> None:
    result = judge.judge(nothing, snapshot)
    output = next(check for check in result["checks"] if check["id"] == "host.plan")
    assert (result["verdict"], output["verdict"]) == ("INCONCLUSIVE", "INCONCLUSIVE")
    assert "Nothing is declared" in output["cause"]
    assert "groups" in output["remedy"]


def test_a_remedy_that_another_one_ends_with_is_printed_once(
    plan: Document, snapshot: Document
) -> None:
    mapped = snapshot["sections"]["stacks"]["data"]["stacks"][0]["framework"]["mapped"]
    receipts = snapshot["sections"]["receipts"]["data"]["receipts"]
    other = f"{mapped[0]}.7"
    receipts.append({**receipts[0], "id": "11.8-7", "libraries": [other]})
    mapped += [other, f"{mapped[0]} (deleted)"]
    found = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert "for something else. " in found["stack.mapped"]["cause"]
    assert found["stack.mapped"]["remedy"].count("provision") == 1


def test_an_unreachable_host_is_printed_once() -> None:
    result = judge.unreachable("No route to host", "look at the cable")
    assert result["verdict"] == "UNREACHABLE"
    assert [(c["id"], c["cause"]) for c in result["checks"]] == [
        ("host.reachable", "No route to host")
    ]


def test_a_check_cannot_read_what_it_does_not_declare(snapshot: Document) -> None:
    with pytest.raises(KeyError, match="without declaring"):
        Sections(snapshot, ("linker",)).data["cudnn"]


@pytest.mark.parametrize(
    ("verdict_of_hosts", "status"),
    [
        (["PASS"], 0),
        (["PASS", "PASS"], 0),
        (["PASS", "FAIL"], 1),
        (["HUNG"], 1),
        (["UNREACHABLE", "PASS"], 1),
        (["INCONCLUSIVE", "PASS"], 3),
        (["INCONCLUSIVE", "FAIL"], 1),
        (["NOT-DECLARED"], 3),
        ([], 4),
    ],
)
def test_exit_status(verdict_of_hosts: list[str], status: int) -> None:
    hosts = {str(n): {"verdict": v, "checks": []} for n, v in enumerate(verdict_of_hosts)}
    assert judge.exit_status(judge.document(hosts, "", "")) == status


def test_the_worst_verdict_speaks() -> None:
    order = ["FAIL", "HUNG", "UNREACHABLE", "INCONCLUSIVE", "PASS", "NOT-DECLARED"]
    assert [verdict.value for verdict in Verdict] == order
    for better, verdict in enumerate(order):
        assert worst(Verdict(other) for other in reversed(order[better:])) == verdict
    assert worst([]) == Verdict.INCONCLUSIVE
    assert exit_status([]) == 3


def test_the_summary_counts_checks_of_all_hosts(plan: Document, snapshot: Document) -> None:
    hosts = {"a": judge.judge(plan, snapshot), "b": judge.unreachable("x", "y")}
    summary = judge.document(hosts, "then", "now")["summary"]
    assert summary == {
        "PASS": len(CHECKS) - len(EXCUSED),
        "FAIL": 0,
        "HUNG": 0,
        "UNREACHABLE": 1,
        "INCONCLUSIVE": 0,
        "NOT-DECLARED": len(EXCUSED),
    }
