"""Machines as the probe reads them: none is judged wrong, and one fault is that host's only one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.judge import judge
from tests.support import rdma_machines, rdma_tree
from tests.support.healthy_host import Document, data, document, with_cards
from tests.support.rdma_tree import Tree

NETWORK = ("network.errors", "network.gpudirect", "network.ports", "network.settings")


def judged(tree: Tree) -> dict[str, Document]:
    """{check: what it says} of a machine whose ports are not declared."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_cards(plan, snapshot)
    del plan["expect"]["network"]
    snapshot["sections"]["network"]["data"] = tree.read()
    checks = {row["id"]: row for row in judge.judge(plan, snapshot)["checks"]}
    every = {name for name in checks if name.startswith("network.")}
    assert every == {*NETWORK, "network.lossless"}
    assert checks["network.lossless"]["verdict"] == "NOT-DECLARED"
    return {name: checks[name] for name in NETWORK}


MACHINES = {**rdma_tree.MACHINES, **rdma_machines.MACHINES}


@pytest.mark.parametrize("name", MACHINES)
def test_a_healthy_machine_raises_no_alarm(tmp_path: Path, name: str) -> None:
    tree = Tree(tmp_path)
    MACHINES[name](tree)
    verdicts = {row["verdict"] for row in judged(tree).values()}
    assert verdicts == ({"NOT-DECLARED"} if name in rdma_machines.ALONE else {"PASS"})


def attribute(tree: Tree, name: str, text: str) -> None:
    """Another value of a file of an RDMA device."""
    path = tree.root / "sys/class/infiniband" / name
    assert path.exists()
    path.write_text(text + "\n", encoding="utf-8")


def down(name: str) -> Callable[[Tree], None]:
    def of(tree: Tree) -> None:
        for file, text in rdma_tree.DOWN.items():
            attribute(tree, f"{name}/ports/1/{file}", text)

    return of


def set_to(name: str, text: str) -> Callable[[Tree], None]:
    return lambda tree: attribute(tree, name, text)


ONE_FAULT: dict[str, tuple[str, Callable[[Tree], None], str]] = {
    "h100: mlx5_5 is down": ("network.ports", down("mlx5_5"), "FAIL"),
    "b200: mlx5_2 is down": ("network.ports", down("mlx5_2"), "FAIL"),
    "efa: rdmap9s0 is down": ("network.ports", down("rdmap9s0"), "FAIL"),
    "gb200: mlx5_1 is down": ("network.ports", down("mlx5_1"), "FAIL"),
    "b300: mlx5_3 is down": ("network.ports", down("mlx5_3"), "FAIL"),
    "dual ports: mlx5_4 is down": ("network.ports", down("mlx5_4"), "FAIL"),
    "virtual functions: mlx5_6 is down": ("network.ports", down("mlx5_6"), "FAIL"),
    "h200 with roce: mlx5_2 carries 200 Gb/sec (4X HDR)": (
        "network.ports",
        set_to("mlx5_2/ports/1/rate", "200 Gb/sec (4X HDR)"),
        "FAIL",
    ),
    "h200 with roce: mlx5_5 has another RoCE v2 GID": (
        "network.settings",
        set_to("mlx5_5/ports/1/gids/3", "0000:" * 7 + "0000"),
        "FAIL",
    ),
    "a100: mlx5_4 carries 100 Gb/sec (2X HDR)": (
        "network.ports",
        set_to("mlx5_4/ports/1/rate", "100 Gb/sec (2X HDR)"),
        "FAIL",
    ),
    "h100: mlx5_1: symbol_error 65535": (
        "network.errors",
        set_to("mlx5_1/ports/1/counters/symbol_error", "65535"),
        "INCONCLUSIVE",
    ),
    "b200: mlx5_7 has 28.39.2048": (
        "network.settings",
        set_to("mlx5_7/fw_ver", "28.39.2048"),
        "FAIL",
    ),
    "h100: mlx5_7 has board MT_0000000970": (
        "network.settings",
        set_to("mlx5_7/board_id", "MT_0000000970"),
        "FAIL",
    ),
    "gb200: mlx5_2 has PCIe lanes 8": (
        "network.settings",
        set_to("mlx5_2/device/current_link_width", "8"),
        "FAIL",
    ),
}


@pytest.mark.parametrize("fault", ONE_FAULT)
def test_one_fault_is_found_by_one_check(tmp_path: Path, fault: str) -> None:
    machine, _, words = fault.partition(": ")
    check, change, verdict = ONE_FAULT[fault]
    tree = Tree(tmp_path)
    MACHINES[machine](tree)
    change(tree)
    found = judged(tree)
    assert {name: row["verdict"] for name, row in found.items()} == {
        **dict.fromkeys(NETWORK, "PASS"),
        check: verdict,
    }
    assert words in found[check]["cause"]


def test_no_value_of_a_bridge_is_judged(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    rdma_tree.b200(tree)
    down("mlx5_9")(tree)
    attribute(tree, "mlx5_10/fw_ver", "28.39.2048")
    found = judged(tree)
    assert {row["verdict"] for row in found.values()} == {"PASS"}
    assert "mlx5_9" in found["network.ports"]["evidence"]


def test_data_of_the_healthy_host_is_judged_with_its_declaration() -> None:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_cards(plan, snapshot)
    assert len(data(snapshot, "network")["devices"]) == plan["expect"]["network"][0]["count"]
