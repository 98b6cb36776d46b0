"""`plan` and `verify` agree: what provision would do is a finding, and the other way round."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from gpufleet.components.changes import changes
from gpufleet.components.repairs import key
from gpufleet.documents.verdict import HEALTHY_VERDICTS
from gpufleet.judge import due, judge
from gpufleet.judge.due import components
from tests.support.check_faults import faults
from tests.support.healthy_host import document
from tests.support.host_documents import receipt, section

Row = dict[str, Any]


@cache
def healthy(change: Any) -> str:
    pair = document("plan.json"), document("snapshot.json")
    change(*pair)
    return json.dumps(pair)


def compared(plan: Any, seen: Any) -> tuple[list[str], list[str]]:
    """The changes that no unhealthy check names, and the checks whose repairs are no change."""
    judged = judge.judge(plan, seen)["checks"]
    failing = [check for check in judged if check["verdict"] not in HEALTHY_VERDICTS]
    rows = [row for row in due.agreed(plan, seen, judged) if row["action"] != due.UNREAD]
    named = {name for check in failing for name in components(check)}
    areas = {check["id"].partition(".")[0] for check in failing}
    silent = [
        f"{row['action']} {row['what']} {row['id']}: {row['because']}"
        for row in rows
        if key(row["what"], row["id"]) not in named
        and not (row["what"] in due.JUDGED_WHOLE and row["what"] in areas)
        # What is there, or was stopped, has a cause of its own.
        and not (row["action"] in {"refuse", "remove"} and failing)
    ]
    pending = {key(row["what"], row["id"]) for row in rows}
    further = [
        check["id"]
        for check in failing
        # What could not be judged is no reason to install anything.
        if check["verdict"] in due.FAILING
        and "explained_by" not in check
        and components(check)
        and not pending & {*components(check)}
    ]
    return silent, further


@pytest.mark.exhaustive
def test_each_change_of_a_fault_is_a_finding_and_each_finding_a_change() -> None:
    for fault in faults():
        plan, seen = json.loads(healthy(fault.healthy))
        fault.apply(plan, seen)
        if plan["problems"]:
            continue
        silent, further = compared(plan, seen)
        assert (silent, further) == ([], []), f"{fault.area}: {fault.name}"


def other_file(host: Row) -> None:
    receipt(host, "toolkit", "11.8")["source"] = {"sha256": "b" * 64}


def other_archive(host: Row) -> None:
    receipt(host, "cudnn", "11.8-8")["source"] = {"sha256": "b" * 64}


def other_default(host: Row) -> None:
    receipt(host, "cudnn", "11.8-8")["default"] = False


def other_lock(host: Row) -> None:
    receipt(host, "stack", "tensorflow-2.13.1")["lock_sha256"] = "b" * 64


def lost_receipt(host: Row) -> None:
    section(host, "receipts")["receipts"] = [
        row for row in section(host, "receipts")["receipts"] if row["kind"] != "environment"
    ]


def unlisted(host: Row) -> None:
    section(host, "linker")["files"] = []


def moved(host: Row) -> None:
    elsewhere = {"target": "cuda-12.4", "realpath": "/usr/local/cuda-12.4"}
    section(host, "toolkits")["default"].update(elsewhere)


def killed(host: Row) -> None:
    entry = {"kind": "cudnn", "id": "11.8-8", "state": "installing", "started": "yesterday"}
    section(host, "receipts")["journal"] = [{**entry, "path": "/usr/local/cuda-11.8"}]


@pytest.mark.parametrize(
    "change",
    [other_file, other_archive, other_default, other_lock, lost_receipt, unlisted, moved, killed],
)
def test_each_kind_of_change_is_a_finding(change: Callable[[Row], None]) -> None:
    """A toolkit from another file than the planned one was healthy, and `plan` said repair."""
    plan: Any = document("plan.json")
    host = document("snapshot.json")
    assert changes(plan, host) == []
    change(host)
    assert changes(plan, host) != []
    assert compared(plan, host)[0] == []
    assert judge.judge(plan, host)["verdict"] == "FAIL"


def test_what_is_no_longer_declared_and_to_be_removed_is_a_finding() -> None:
    plan: Any = document("plan.json")
    host: Any = document("snapshot.json")
    plan.update(stacks=[], prune=True)
    row = next(row for row in changes(plan, host) if row["action"] == "remove")
    results = {check["id"]: check for check in judge.judge(plan, host)["checks"]}
    assert f"remove of stack {row['id']} is due" in results[due.CHECK]["cause"]


def test_a_host_that_matches_its_plan_has_nothing_due() -> None:
    plan: Any = document("plan.json")
    assert [*due.findings(plan, document("snapshot.json"), [])] == []  # type: ignore[arg-type]


def test_a_change_that_a_check_names_is_said_once() -> None:
    plan, seen = document("plan.json"), document("snapshot.json")
    moved(seen)
    results = {check["id"]: check for check in judge.judge(plan, seen)["checks"]}  # type: ignore[arg-type]
    assert results["toolkit.default-link"]["verdict"] == "FAIL"
    assert "default_link" not in results[due.CHECK]["cause"]


def without_lock(plan: Any, host: Any) -> None:
    """As on a machine that never provisioned: the locks are written by the first provisioning."""
    plan["stacks"][0]["lock_sha256"] = None


def declared_elsewhere(plan: Any, host: Any) -> None:
    """A monitoring inventory that declares the cards alone."""
    plan.update(toolkits=[], cudnn=[], stacks=[], environment=[], default_link=None, artifacts=[])
    plan["linker"]["directories"] = []
    plan["expect"]["count"] = 0


def set_up_by_others(plan: Any, host: Any) -> None:
    """An engine with NVIDIA's runtime that somebody else set up."""
    rows = section(host, "receipts")["receipts"]
    section(host, "receipts")["receipts"] = [row for row in rows if row["kind"] != "containers"]


def rebooted_by_hand(plan: Any, host: Any) -> None:
    """The marker of a reboot that a person has done; the next provisioning removes it."""
    section(host, "driver")["reboot_pending"] = {"boot_id": "before", "because": "a new driver"}


@pytest.mark.parametrize(
    "change", [without_lock, declared_elsewhere, set_up_by_others, rebooted_by_hand]
)
def test_what_only_has_to_be_written_down_is_no_fault_of_a_healthy_host(change: Any) -> None:
    plan: Any = document("plan.json")
    host: Any = document("snapshot.json")
    change(plan, host)
    results = {check["id"]: check for check in judge.judge(plan, host)["checks"]}
    assert results[due.CHECK]["verdict"] == "PASS", results[due.CHECK]["cause"]
