"""Machines as the probe reads them: none is judged wrong, and one fault is that host's only one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.components.base import counters
from gpufleet.components.base import ports as roles
from gpufleet.judge import judge
from tests.support import rdma_machines, rdma_tree
from tests.support.healthy_host import Document, data, document, other_than, with_cards
from tests.support.rdma_tree import Tree

NETWORK = ("network.errors", "network.gpudirect", "network.ports", "network.settings")


def judged(
    tree: Tree, *, hypervisor: bool | None = False, arch: str = "x86_64"
) -> dict[str, Document]:
    """The checks of a machine whose ports are not declared, by check."""
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_cards(plan, snapshot)
    del plan["expect"]["network"]
    plan["arch"] = arch
    data(snapshot, "gpus")["hypervisor"] = hypervisor
    snapshot["sections"]["network"]["data"] = tree.read()
    checks = {row["id"]: row for row in judge.judge(plan, snapshot)["checks"]}
    every = {name for name in checks if name.startswith("network.")}
    declared = every - set(NETWORK)
    assert declared == {"network.lossless", "network.setup"}
    excused = {name: checks[name]["verdict"] for name in declared}
    assert other_than("NOT-DECLARED", excused) == {}
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


def no_module(name: str, *files: str) -> Callable[[Tree], None]:
    """A module that is not loaded, and the device files that it would make."""

    def of(tree: Tree) -> None:
        shutil.rmtree(tree.root / "sys/module" / name)
        for pattern in files:
            for path in tree.root.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    return of


def redirecting(tree: Tree) -> None:
    """Access control of the port between a GPU's switch and its adapter."""
    (path,) = tree.root.glob("sys/devices/pci0004:00/0004:00:01.0/0004:01:00.0/0004:02:01.0/config")
    path.write_bytes(rdma_tree.port_config(0x001D))


def translating(tree: Tree) -> None:
    """An IOMMU that translates the addresses of GPUs and adapters."""
    for kind in ("infiniband/*/device", "../bus/pci/devices/*"):
        for device in (tree.root / "sys/class").glob(kind):
            tree.put(f"{device.resolve().relative_to(tree.root)}/iommu_group/type", "DMA-FQ")


def peermem(tree: Tree) -> None:
    tree.put("sys/module/nvidia_peermem/version", "535.54.03")


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
    "h100: 0004:02:01.0 (request redirect, completion redirect, upstream forwarding)": (
        "network.gpudirect",
        redirecting,
        "FAIL",
    ),
    "a100: The IOMMU translates addresses of": ("network.gpudirect", translating, "FAIL"),
    "b200: nvidia_peermem is of driver 535.54.03, loaded is": (
        "network.gpudirect",
        peermem,
        "FAIL",
    ),
    "b300: /dev/infiniband/umad*: the module ib_umad is not loaded": (
        "network.settings",
        no_module("ib_umad", "sys/class/infiniband_mad/*", "dev/infiniband/umad*"),
        "FAIL",
    ),
    "h100: mlx5_6 has PCIe generation 3, possible are 5: no data was moved": (
        "network.settings",
        set_to("mlx5_6/device/current_link_speed", "8.0 GT/s PCIe"),
        "INCONCLUSIVE",
    ),
    "gb200: mlx5_2 has 8 PCIe lanes": (
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


@pytest.mark.parametrize("name", ["gb200", "h200 with roce"])
def test_the_smmu_of_grace_and_a_virtual_machine_may_translate(tmp_path: Path, name: str) -> None:
    """Grace needs it for its coherent memory; in a virtual machine access control has to be on."""
    tree = Tree(tmp_path)
    MACHINES[name](tree)
    translating(tree)
    for config in tree.root.glob("sys/devices/*/*/*/*/config"):
        config.write_bytes(rdma_tree.port_config(0x001D))
    grace = name == "gb200"
    found = judged(tree, hypervisor=None if grace else True, arch="aarch64" if grace else "x86_64")
    assert other_than("PASS", {name: row["verdict"] for name, row in found.items()}) == {}


def test_a_link_that_went_down_between_two_nights_is_named_by_its_port(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    rdma_tree.h100(tree)
    before = dict(counters.readings(roles.ports(tree.read(), gpus=8), "boot"))
    attribute(tree, "mlx5_3/ports/1/counters/link_downed", "4")
    attribute(tree, "mlx5_5/ports/1/counters/symbol_error", "0")
    now = dict(counters.readings(roles.ports(tree.read(), gpus=8), "boot"))
    beyond = {
        guid: [each.text for each in counters.rates(before[guid], reading, 86400) if each.limit]
        for guid, reading in now.items()
    }
    assert {guid: texts for guid, texts in beyond.items() if texts} == {
        "a088c20300ab0003": ["link_downed grew by 4 in 24 h"]
    }


def test_no_value_of_a_bridge_is_judged(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    rdma_tree.b200(tree)
    down("mlx5_9")(tree)
    attribute(tree, "mlx5_10/fw_ver", "28.39.2048")
    found = judged(tree)
    assert other_than("PASS", {name: row["verdict"] for name, row in found.items()}) == {}
    assert "mlx5_9" in found["network.ports"]["evidence"]


def test_data_of_the_healthy_host_is_judged_with_its_declaration() -> None:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    with_cards(plan, snapshot)
    assert len(data(snapshot, "network")["devices"]) == plan["expect"]["network"][0]["count"]
