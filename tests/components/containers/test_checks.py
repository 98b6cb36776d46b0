"""Checks of containers on hosts with GPUs: a missing link, a hung run, what is not declared."""

from __future__ import annotations

import pytest

from gpufleet.judge import judge
from tests.support.healthy_host import OF_OTHERS, OF_SITES, Document, data, verdicts
from tests.support.host_parts import with_gpus


@pytest.fixture(autouse=True)
def two_gpus(plan: Document, snapshot: Document) -> None:
    with_gpus(plan, snapshot)


def failed(plan: Document, snapshot: Document) -> dict[str, Document]:
    """The checks that did not pass, by their id."""
    checks = judge.judge(plan, snapshot)["checks"]
    return {
        check["id"]: check
        for check in checks
        if check["verdict"] != "PASS" and check["id"] not in (*OF_OTHERS, *OF_SITES)
    }


def test_a_missing_link_is_printed_without_overstating_what_is_lost(
    plan: Document, snapshot: Document
) -> None:
    there = data(snapshot, "containers")
    there["dev_char"]["missing"] = ["/dev/char/195:0"]
    found = failed(plan, snapshot)
    assert {name: check["verdict"] for name, check in found.items()} == {
        "containers.cdi": "FAIL",
        "containers.reload": "FAIL",
    }
    assert (
        "/dev/char/195:0 missing: with systemd before 240, or an older runc"
        in found["containers.reload"]["cause"]
    )


def test_what_a_reload_does_to_other_peoples_containers_is_printed(
    plan: Document, snapshot: Document
) -> None:
    there = data(snapshot, "containers")
    given = there["run"]["unit"]
    there["running"] = [
        {**given, "name": "kept"},
        {**given, "name": "whole driver", "allow": ["char-nvidia rwm"]},
        {**given, "name": "unrestricted", "policy": "auto", "allow": []},
        {**given, "name": "mknod only", "allow": ["char-* m", "/dev/char/195:0 m"]},
    ]
    checks = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert checks["containers.reload"]["verdict"] == "PASS"
    output = checks["containers.reload"]["evidence"]
    for name in ("kept", "whole driver", "unrestricted"):
        assert f"Container {name} keeps its GPUs at a systemctl daemon-reload" in output
    assert "Container mknod only loses /dev/nvidia0, /dev/nvidia1, /dev/nvidiactl at" in output


@pytest.mark.parametrize(
    ("node", "major"),
    [
        ("/dev/nvidia-caps/nvidia-cap12", "nvidia-caps"),
        ("/dev/nvidia-caps-imex-channels/channel0", "nvidia-caps-imex-channels"),
    ],
)
def test_mig_and_imex_nodes_that_a_reload_takes_are_named(
    plan: Document, snapshot: Document, node: str, major: str
) -> None:
    """A container keeps its cards, and is denied its IMEX channel."""
    there = data(snapshot, "containers")
    there["majors"] = {"nvidia": 195, major: 238}
    unit = there["run"]["unit"]
    unit["nodes"].append({"node": node, "numbers": "238:0"})
    there["running"] = [
        {**unit, "name": "train", "allow": [*unit["allow"]]},
        {**unit, "name": "given", "allow": [*unit["allow"], f"char-{major} rw"]},
    ]
    check = failed(plan, snapshot)["containers.reload"]
    assert check["verdict"] == "FAIL"
    assert f"A container loses {node} at the next systemctl daemon-reload" in check["cause"]
    unit["allow"].append(f"char-{major} rw")
    checks = {check["id"]: check for check in judge.judge(plan, snapshot)["checks"]}
    assert checks["containers.reload"]["verdict"] == "PASS"
    assert f"Container train loses {node} at" in checks["containers.reload"]["evidence"]
    assert "Container given keeps its GPUs at" in checks["containers.reload"]["evidence"]


@pytest.mark.parametrize("gone", ["unit", "gpus"])
def test_a_reload_that_was_not_read_is_not_reported_healthy(
    plan: Document, snapshot: Document, gone: str
) -> None:
    run = data(snapshot, "containers")["run"]
    del run["unit"]
    if gone == "gpus":
        run["gpus"] = []
    assert failed(plan, snapshot)["containers.reload"]["verdict"] == "INCONCLUSIVE"


def test_a_container_that_hangs_is_no_healthy_one(plan: Document, snapshot: Document) -> None:
    there = data(snapshot, "containers")
    there["run"] = {
        "state": "hung",
        "error": "docker run: no answer within 60 s",
        "gpus": [],
        "reload": None,
        "stack": None,
        "framework": None,
        "image": None,
    }
    found = failed(plan, snapshot)
    assert found["containers.gpus"]["verdict"] == "HUNG"
    assert found["containers.matmul"]["verdict"] == "HUNG"
    assert found["containers.reload"]["verdict"] == "INCONCLUSIVE"


def test_facts_alone_prove_no_container(plan: Document, snapshot: Document) -> None:
    snapshot["mode"] = "facts"
    data(snapshot, "containers")["run"] = None
    found = verdicts(plan, snapshot)
    assert {found[f"containers.{name}"] for name in ("gpus", "reload", "matmul")} == {
        "INCONCLUSIVE"
    }


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
