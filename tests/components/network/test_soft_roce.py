"""A soft RoCE device with a declared GID, planted as a virtual machine shows it, and its faults.

`tests/acceptance/test_rdma.py` has the same faults on two virtual machines.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.judge import judge
from tests.support import rdma_machines
from tests.support.healthy_host import Document, document, with_cards
from tests.support.rdma_host import declared
from tests.support.rdma_tree import Tree

PORT = "sys/class/infiniband/rxe0/ports/1"
INTERFACE = "sys/class/net/enp0s3"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    found = Tree(tmp_path)
    rdma_machines.soft_roce(found)
    return found


def unhealthy(tree: Tree) -> dict[str, Document]:
    """The network checks that are neither PASS nor NOT-DECLARED, by check."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_cards(plan, snapshot)
    row = declared(ports=["rxe0"], link_layer="Ethernet", gid_index=1, gid_type="v2")
    plan["expect"]["network"] = [row]
    snapshot["sections"]["network"]["data"] = tree.read()
    return {
        check["id"]: check
        for check in judge.judge(plan, snapshot)["checks"]
        if check["id"].startswith("network.") and check["verdict"] not in {"PASS", "NOT-DECLARED"}
    }


def without_gid(tree: Tree) -> None:
    tree.put(f"{PORT}/gids/1", "0000:" * 7 + "0000")


def test_a_declared_port_with_its_gid_is_healthy(tree: Tree) -> None:
    assert unhealthy(tree) == {}


def test_a_gid_is_lost_with_its_interfaces_address(tree: Tree) -> None:
    without_gid(tree)
    found = unhealthy(tree)
    assert list(found) == ["network.settings"]
    assert "rxe0 has no GID with index 1" in found["network.settings"]["cause"]
    assert "give enp0s3 its IP address" in found["network.settings"]["remedy"]


def test_a_port_that_is_down_with_its_interface_is_one_fault(tree: Tree) -> None:
    without_gid(tree)
    tree.put(f"{PORT}/state", "1: DOWN")
    tree.put(f"{PORT}/phys_state", "3: Disabled")
    tree.put(f"{INTERFACE}/operstate", "down")
    (tree.root / INTERFACE / "carrier").unlink()
    found = unhealthy(tree)
    assert list(found) == ["network.ports"]
    assert "rxe0 is down (1: DOWN, 3: Disabled): it is declared" in found["network.ports"]["cause"]
    assert "ip link set enp0s3 up" in found["network.ports"]["remedy"]
