"""Checks of containers on hosts with GPUs: each break is seen by its check, and by no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpufleet.checks import judge
from tests.checks.test_checks import PROVISION, with_gpus
from tests.support.healthy_host import Document, data, verdicts

Break = Callable[[Document, Document], None]


@pytest.fixture(autouse=True)
def two_gpus(plan: Document, snapshot: Document) -> None:
    with_gpus(plan, snapshot)


def failed(plan: Document, snapshot: Document) -> dict[str, Document]:
    """The checks that did not pass, by their id."""
    checks = judge.judge(plan, snapshot)["checks"]
    return {check["id"]: check for check in checks if check["verdict"] != "PASS"}


def older_driver_described(_: Document, there: Document) -> None:
    there["cdi"][0]["driver_version"] = "525.147.05"


def nothing_described(_: Document, there: Document) -> None:
    there["cdi"] = []


def one_gpu_in_the_container(_: Document, there: Document) -> None:
    there["run"]["gpus"].pop()


def forbidden_from_the_start(_: Document, there: Document) -> None:
    there["run"]["gpus"][1]["error"] = "Operation not permitted"


def lost_by_the_reload(_: Document, there: Document) -> None:
    for card in there["run"]["reload"]["gpus"]:
        card["error"] = "Operation not permitted"


def computed_on_the_cpu(_: Document, there: Document) -> None:
    there["run"]["framework"]["matmul"][1]["device"] = "/device:CPU:0"


def computed_on_one(_: Document, there: Document) -> None:
    there["run"]["framework"]["matmul"].pop()


def does_not_import(_: Document, there: Document) -> None:
    there["run"]["framework"].update(state="failed", error="libcuda.so.1: cannot open")


@pytest.mark.parametrize(
    ("break_it", "check", "words"),
    [
        (older_driver_described, "containers.cdi",
         ("is for driver 525.147.05, and 535", PROVISION)),
        (nothing_described, "containers.cdi",
         ("no CDI specification", PROVISION)),
        (one_gpu_in_the_container, "containers.gpus",
         ("has 1 GPUs, declared are 2", "gpu.count")),
        (forbidden_from_the_start, "containers.gpus",
         ("not open /dev/nvidia1", "/dev/char")),
        (lost_by_the_reload, "containers.reload",
         ("After a daemon-reload a container cannot", "/dev/char")),
        (computed_on_the_cpu, "containers.matmul",
         ("computed on /device:CPU:0", "stack.libraries")),
        (computed_on_one, "containers.matmul",
         ("computed on 1 GPUs", "containers.gpus")),
        (does_not_import, "containers.matmul",
         ("does not run in a container", "stack.matmul")),
    ],
)  # fmt: skip
def test_a_break_is_seen_by_its_check(
    plan: Document, snapshot: Document, break_it: Break, check: str, words: tuple[str, str]
) -> None:
    break_it(plan, data(snapshot, "containers"))
    found = failed(plan, snapshot)
    assert set(found) == {check}
    assert words[0] in found[check]["cause"]
    assert words[1] in found[check]["remedy"]


def test_with_a_link_missing_no_reload_is_tried(plan: Document, snapshot: Document) -> None:
    there = data(snapshot, "containers")
    there["dev_char"]["missing"] = ["/dev/char/195:0"]
    there["run"]["reload"] = None
    found = failed(plan, snapshot)
    assert {name: check["verdict"] for name, check in found.items()} == {
        "containers.cdi": "FAIL", "containers.reload": "FAIL"}
    assert "/dev/char/195:0" in found["containers.reload"]["cause"]


def test_a_container_that_hangs_is_no_healthy_one(plan: Document, snapshot: Document) -> None:
    there = data(snapshot, "containers")
    there["run"] = {"state": "hung", "error": "docker run: no answer within 60 s", "gpus": [],
                    "reload": None, "stack": None, "framework": None, "image": None}
    found = failed(plan, snapshot)
    assert found["containers.gpus"]["verdict"] == "HUNG"
    assert found["containers.matmul"]["verdict"] == "HUNG"
    assert found["containers.reload"]["verdict"] == "INCONCLUSIVE"


def test_facts_alone_prove_no_container(plan: Document, snapshot: Document) -> None:
    snapshot["mode"] = "facts"
    data(snapshot, "containers")["run"] = None
    found = verdicts(plan, snapshot)
    assert {found[f"containers.{name}"] for name in ("gpus", "reload", "matmul")} == {
        "INCONCLUSIVE"}


@pytest.mark.parametrize("missing", ["gpu_containers", "gpu_expect"])
def test_what_is_not_declared_is_excused_by_the_declaration(
    plan: Document, snapshot: Document, missing: str
) -> None:
    if missing == "gpu_containers":
        plan["containers"] = None
    else:
        plan["containers"]["gpus"] = None
    checks = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert checks["containers.gpus"]["verdict"] == "NOT-DECLARED"
    assert checks["containers.gpus"]["cause"] == f"{missing}: not set"
