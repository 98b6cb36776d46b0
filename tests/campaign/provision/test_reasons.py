"""Why Ansible is run on a host, told from documents alone; and why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpufleet.campaign.provision import reasons as differs
from gpufleet.components.resolver import resolve, with_locks
from gpufleet.fleet.session import HostRun
from tests.support.host_documents import (
    converged,
    declaration,
    default_link,
    mangled,
    receipt,
    section,
    snapshot,
)

Row = dict[str, Any]

STACK = "tensorflow-2.13.1"
LOCK = "tensorflow-2.13.1-py3.11.lock"
RUNFILE = "cuda_11.8.0_520.61.05_linux.run"
WELL: Row = {"verdict": "PASS", "checks": []}


@pytest.fixture
def plan() -> Row:
    return with_locks(resolve(declaration("2.13.1"), snapshot()), {LOCK: "a" * 64})


@pytest.fixture
def host(plan: Row) -> Row:
    """As the plan says."""
    made = converged(plan)
    receipt(made, "stack", STACK)["lock_sha256"] = "a" * 64
    return made


def output(verdict: str, check: str = "gpu.smi", cause: str = "it hung", remedy: str = "") -> Row:
    """A check of a host."""
    return {"id": check, "verdict": verdict, "cause": cause, "remedy": remedy}


def result(*checks: Row) -> Row:
    """A host's verdicts."""
    return {"verdict": "FAIL", "checks": list(checks)}


def test_a_host_that_is_what_its_plan_says_is_left_alone(plan: Row, host: Row) -> None:
    assert differs.why(plan, host) == []


def test_a_fresh_host_is_reported_all_that_it_lacks(plan: Row) -> None:
    reasons = differs.why(plan, snapshot())
    assert "install toolkit 11.8: /usr/local/cuda-11.8 is missing" in reasons
    assert len(reasons) == 6


def killed(host: Row) -> None:
    entry = {"kind": "cudnn", "id": "11.8-8", "state": "installing", "started": "2026-11-20"}
    section(host, "receipts")["journal"] = [entry]


def removing(host: Row) -> None:
    entry = {"kind": "toolkit", "id": "12.4", "path": "/usr/local/cuda-12.4", "state": "removing",
             "started": "2026-11-20"}  # fmt: skip
    section(host, "receipts")["journal"] = [entry]


def drifted(host: Row) -> None:
    receipt(host, "toolkit", "11.8")["changed"] = [{"path": "bin/nvcc", "what": "mode"}]


def upgraded_by_pip(host: Row) -> None:
    section(host, "stacks")["stacks"][0]["packages"]["numpy"] = "2.0.0"


def moved_default(host: Row) -> None:
    section(host, "toolkits")["default"].update(target="cuda-12.4")


def left_runfile(host: Row) -> None:
    section(host, "receipts")["caches"] = [f"/var/cache/gpufleet/artifacts/{RUNFILE}"]


def left_cache(host: Row) -> None:
    section(host, "receipts")["caches"] = ["/var/cache/gpufleet/gpufleet-python"]


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (killed, "finish cudnn 11.8-8: the journal records installing since 2026-11-20"),
        (removing, "remove toolkit 12.4: its removal started at 2026-11-20 and did not finish"),
        (drifted, "repair toolkit 11.8: changed since it was installed: bin/nvcc (mode)"),
        (upgraded_by_pip, f"repair stack {STACK}: package numpy is 2.0.0, not 1.24.3"),
        (
            moved_default,
            "install default_link /usr/local/cuda: /usr/local/cuda points to cuda-12.4,"
            " not to cuda-11.8",
        ),
        (
            left_runfile,
            f"clear /var/cache/gpufleet/artifacts/{RUNFILE}: an installation was stopped"
            " before its end",
        ),
        (
            left_cache,
            "clear /var/cache/gpufleet/gpufleet-python: an installation was stopped before its end",
        ),
    ],
)
def test_what_happened_to_a_host_is_a_reason(
    plan: Row, host: Row, change: Callable[[Row], None], reported: str
) -> None:
    change(host)
    assert differs.why(plan, host) == [reported]


@pytest.mark.parametrize(
    ("declared", "reported"),
    [
        (declaration("2.13.1", "2.18.1"), "install stack tensorflow-2.18.1"),
        (declaration("2.13.1", gpu_toolkits=["11.8", "12.4"]), "install toolkit 12.4"),
        (declaration("2.13.1", gpu_profile=True), "repair environment files"),
        (declaration("2.13.1", gpu_driver={"branch": "535"}), "install driver driver"),
        (
            declaration(gpu_stacks=[], gpu_toolkits=["11.8"], gpu_prune=True),
            f"remove stack {STACK}",
        ),
    ],
)
def test_another_declaration_is_a_reason(host: Row, declared: Row, reported: str) -> None:
    plan = with_locks(resolve(declared, host), {LOCK: "a" * 64})
    assert plan["problems"] == []
    assert any(reason.startswith(reported) for reason in differs.why(plan, host))


def test_another_lock_is_a_reason(plan: Row, host: Row) -> None:
    changed = with_locks(plan, {LOCK: "b" * 64})
    assert differs.why(changed, host) == [
        f"repair stack {STACK}: its lock {LOCK} has changed"]  # fmt: skip


def run(plan: Row, host: Row | None) -> HostRun:
    """The host of a verification."""
    return HostRun("gpu01", host, plan, WELL)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["receipts", "toolkits", "cudnn", "linker", "stacks"])
@pytest.mark.parametrize("state", ["hung", "error", "denied"])
def test_what_was_not_read_is_no_reason_and_keeps_ansible_away(
    plan: Row, host: Row, name: str, state: str
) -> None:
    host["sections"][name] = {"state": state, "data": None, "error": "deadline"}
    assert differs.why(plan, host) == []
    assert f"the host's {name} could not be read (deadline" in differs.left_alone(run(plan, host))


def test_a_host_that_was_not_reached_is_left_alone(plan: Row) -> None:
    assert differs.why(plan, None) == []
    assert differs.left_alone(run(plan, None)).startswith("it is not reached")


def test_what_only_the_host_can_refuse_is_refused_before_ansible_runs(host: Row) -> None:
    section(host, "disks")["free_mib"] = {"/": 10, "/tmp": 10}
    plan = resolve(declaration("2.13.1", gpu_toolkits=["12.4"]), host)
    assert resolve(declaration("2.13.1", gpu_toolkits=["12.4"]))["problems"] == []
    assert differs.why(plan, host) == []
    assert "cannot be fulfilled there" in differs.left_alone(run(plan, host))


def test_what_is_not_gpufleet_s_keeps_ansible_away(plan: Row, host: Row) -> None:
    section(host, "toolkits")["default"] = default_link("directory")
    reason = differs.left_alone(run(plan, host))
    assert reason == "/usr/local/cuda is a directory, not gpufleet's link (default_link)"


def test_a_host_with_something_to_do_is_not_left_alone(plan: Row, host: Row) -> None:
    drifted(host)
    assert differs.left_alone(run(plan, host)) == ""


def test_what_another_check_explains_was_judged(plan: Row, host: Row) -> None:
    checks = result(
        output("FAIL", "gpu.count", "2 of 8 GPUs are there", "reseat the cards"),
        output("INCONCLUSIVE", "gpu.memory-errors", "there is no card")
        | {"explained_by": "gpu.count"},
    )
    assert differs.why(plan, host) == []
    assert differs.beyond(plan, host, checks) == ["gpu.count"]


def test_a_failure_that_provisioning_repairs_is_not_called_beyond_it(plan: Row, host: Row) -> None:
    checks = result(output("FAIL", "toolkit.files"))
    drifted(host)
    assert differs.beyond(plan, host, checks) == []
    assert differs.beyond(plan, None, checks) == []


def test_artifacts_that_are_to_stay_are_no_reason_nor_are_those_of_others(
    plan: Row, host: Row
) -> None:
    left_runfile(host)
    assert differs.why(plan, host, kept=True) == []
    section(host, "receipts")["caches"] = ["/var/cache/gpufleet/artifacts/their.run"]
    assert differs.why(plan, host) == []


def test_a_damaged_snapshot_is_never_taken_for_a_right_host(plan: Row, host: Row) -> None:
    for each in mangled(host):
        assert isinstance(differs.why(plan, each), list)
