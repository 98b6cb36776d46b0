"""The terminal's output for many hosts: the healthy ones in a line, the others in full."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gpufleet.fleet.session import HostRun, Session
from gpufleet.fleet.transport.fanout import Outcome
from gpufleet.judge import judge
from gpufleet.report import terminal
from tests.support.healthy_host import Document, data


def shown(session: Session, *, verbose: bool = False) -> str:
    console = Console(file=io.StringIO(), width=120)
    terminal.show(console, session, None, verbose)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_of_many_hosts_the_healthy_are_one_line_and_the_others_are_in_full(
    plan: Document, snapshot: Document
) -> None:
    fine = judge.judge(plan, snapshot)
    data(snapshot, "cudnn")["trees"][0]["headers"][0]["version"] = "8.9.7"
    broken = judge.judge(plan, snapshot)
    session = Session(
        [
            HostRun(f"gpu{number:03}", None, plan, broken if number == 42 else fine)
            for number in range(1, 101)
        ]
    )
    text = shown(session)
    assert "✓ gpu[001-041,043-100]" in text
    assert "✗ gpu042  failed" in text
    assert "declared is 8.6.0" in text
    assert "99 of 100 hosts healthy; 1 failed." in text
    assert "✓ cudnn.links" not in text
    assert len(text.splitlines()) < 60


def test_a_cause_is_shown_with_its_consequences_by_name(plan: Document, snapshot: Document) -> None:
    snapshot["sections"]["stacks"] = {
        "state": "hung",
        "seconds": 60,
        "error": "no answer within 60 s",
        "data": None,
    }
    text = shown(Session([HostRun("gpu01", snapshot, plan, judge.judge(plan, snapshot))]))
    folded = [check for check in judge.judge(plan, snapshot)["checks"] if "explained_by" in check]
    assert len(folded) > 5
    assert text.count("Probing 'stacks' hung") == 1
    assert f"explains  +{len(folded)} consequences: install.owned, stack.release, " in text
    assert text.count("remedy") == 1


def test_what_is_not_declared_is_one_line_and_its_checks_are_for_who_wants_more(
    plan: Document, snapshot: Document
) -> None:
    session = Session(
        [HostRun(name, snapshot, plan, judge.judge(plan, snapshot)) for name in ("gpu01", "gpu02")]
    )
    session.hosts[1].result["checks"] = [
        check for check in session.hosts[1].result["checks"] if check["id"] != "network.setup"
    ]
    for host in session.hosts:
        by_id = {check["id"]: check for check in host.result["checks"]}
        by_id["host.manifest"]["remedy"] = "declare one"
    text = " ".join(shown(session).split())
    assert text.count("Skipped by declaration") == 1
    assert "– Not verified: gpu_manifest: not set; declare one – Skipped" in text
    assert "; gpu_expect.governor: not set; gpu_network: not set (gpu01)" in text
    full = " ".join(shown(session, verbose=True).split())
    assert "Skipped by declaration gpu_network: not set: network.setup (gpu01)" in full
    assert "Not verified: gpu_manifest: not set: host.manifest (gpu01, gpu02); declare" in full


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a1", "a2", "a3"], "a[1-3]"),
        (["rack1-gpu2", "rack1-gpu3"], "rack1-gpu[2-3]"),
        (["one"], "one"),
        (["@all", "!odd["], "@all, !odd["),
    ],
)
def test_names_are_folded_as_by_clustershell(names: list[str], expected: str) -> None:
    assert terminal.fold_names(names) == expected


def test_progress_of_many_is_a_count_and_the_failures() -> None:
    console = Console(file=io.StringIO(), width=120)
    with terminal.progress(console, "Probing", 100) as report:
        for number in range(1, 101):
            gone = number == 42
            report(f"gpu{number}", Outcome(None if gone else {}, "no answer" if gone else ""))
    lines = str(console.file.getvalue()).splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 1 + 10 + 1
    assert "gpu42: no answer" in "\n".join(lines)
    assert lines[-1].startswith("  100 of 100 hosts")
