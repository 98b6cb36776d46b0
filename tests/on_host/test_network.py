"""Section `network`: RDMA devices and their ports, bridges to the NVSwitches, interfaces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from gpufleet.documents import validator
from gpufleet.documents.sections.network import Network
from gpufleet.on_host import pci, rdma
from gpufleet.on_host.host import Host
from gpufleet.on_host.sections.network import section_network
from tests.support import rdma_tree
from tests.support.rdma_tree import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize("name", rdma_tree.MACHINES)
def test_the_section_of_each_machine_is_of_its_type(tree: Tree, name: str) -> None:
    rdma_tree.MACHINES[name](tree)
    assert validator.faults(Network, tree.read(), "network") == []


def test_a_port_is_read_with_its_tables_and_counters(tree: Tree) -> None:
    rdma_tree.h100(tree)
    device = tree.read()["devices"][0]
    (port,) = device.pop("ports")
    assert device == {
        "name": "mlx5_0",
        "type": "MT4129",
        "firmware": "28.41.1000",
        "board": "MT_0000000838",
        "guid": "a088:c203:00ab:0000",
        "driver": "mlx5_core",
        "vendor": "0x15b3",
        "device": "0x1021",
        "address": "0000:22:00.0",
        "path": ["0000:00:01.0", "0000:01:00.0", "0000:02:01.0"],
        "numa": 0,
        "iommu": "none",
        "bridge": False,
        "link": {
            "current_link_speed": "32.0 GT/s PCIe",
            "current_link_width": "16",
            "max_link_speed": "32.0 GT/s PCIe",
            "max_link_width": "16",
        },
        "above": {
            "address": "0000:02:01.0",
            "vendor": "0x1000",
            "current_link_speed": "32.0 GT/s PCIe",
            "current_link_width": "16",
            "max_link_speed": "32.0 GT/s PCIe",
            "max_link_width": "16",
        },
        "max_read_request": 4096,
        "relaxed_ordering": True,
        "traffic_gb_s": 0.0,
        "error": None,
        "hung": False,
    }
    assert port == {
        "port": 1,
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "gids": [
            {
                "index": 0,
                "gid": "fe80:0000:0000:0000:a088:c203:00ab:0000",
                "kind": "link-local",
                "type": "IB/RoCE v1",
                "interface": None,
            }
        ],
        "pkeys": ["0xffff"],
        "counters": {"symbol_error": 0, "link_downed": 0, "port_xmit_data": 1 << 45},
        "hw_counters": {"out_of_buffer": 0},
    }


def test_a_roce_port_has_the_kinds_of_its_gids(tree: Tree) -> None:
    tree.mlx("mlx5_0", 0, "01", link_layer="Ethernet", address=7)
    (port,) = tree.read()["devices"][0]["ports"]
    kinds = [(gid["index"], gid["kind"], gid["type"]) for gid in port["gids"]]
    assert kinds == [
        (0, "link-local", "IB/RoCE v1"),
        (1, "link-local", "RoCE v2"),
        (2, "IPv4", "IB/RoCE v1"),
        (3, "IPv4", "RoCE v2"),
    ]


def test_what_a_device_moves_while_it_is_read_is_measured(tree: Tree) -> None:
    rdma_tree.h100(tree)
    counted = iter((1000, 1000 + 5 * 10**9))
    with (
        patch.object(rdma, "moved", lambda host, directory: next(counted)),
        patch.object(rdma.time, "monotonic", iter((100.0, 101.0)).__next__),
    ):
        row, _ = rdma.read_device(Host({"root": str(tree.root)}, 20), "mlx5_0")
    assert row["traffic_gb_s"] == 160.0


def test_octets_of_all_ports_are_counted_in_words_of_four(tree: Tree) -> None:
    tree.mlx("mlx5_0", 0, "01", ports=2, counters={"port_xmit_data": 7, "port_rcv_data": 4})
    host = Host({"root": str(tree.root)}, 20)
    directory = host.realpath("/sys/class/infiniband/mlx5_0")
    assert rdma.moved(host, directory) == 22
    (tree.root / f"{directory}/ports/2/counters/port_rcv_data".lstrip("/")).write_text("broken")
    assert rdma.moved(host, directory) is None


def opened_of(tree: Tree, name: str) -> list[str]:
    """The files of a device that the probe opens to read them."""
    opened = []
    real = os.open

    def record(path: Any, *arguments: Any, **named: Any) -> int:
        opened.append(str(path))
        return real(path, *arguments, **named)

    with patch.object(os, "open", record):
        rdma.read_device(Host({"root": str(tree.root)}, 20), name)
    return [path.rpartition(f"/{name}/")[2] for path in opened if f"/{name}/" in path]


def test_nothing_that_asks_the_firmware_is_read_of_a_bridge(tree: Tree) -> None:
    rdma_tree.b200(tree)
    found = {row["name"]: (row["bridge"], row["ports"] is None) for row in tree.read()["devices"]}
    assert found["mlx5_0"] == (False, False)
    assert {found[f"mlx5_{number}"] for number in range(8, 12)} == {(True, True)}
    assert opened_of(tree, "mlx5_8") == ["hca_type", "fw_ver", "board_id", "node_guid"]
    assert len(opened_of(tree, "mlx5_0")) > 20


def test_nothing_is_asked_of_a_device_that_may_be_a_bridge(tree: Tree) -> None:
    place = tree.mlx("mlx5_0", 0, "01")
    older = tree.mlx("mlx5_1", 1, "01", "0x101b")
    for each in (place, older):
        (tree.root / each / "vpd").unlink()
        (tree.root / each / "vpd").mkdir()
    first, second = tree.read()["devices"]
    assert (first["bridge"], first["ports"]) == (None, None)
    assert (second["bridge"], len(second["ports"])) == (None, 1)
    assert opened_of(tree, "mlx5_0") == ["hca_type", "fw_ver", "board_id", "node_guid"]


def test_the_speed_of_a_bridges_interface_is_not_asked_for(tree: Tree) -> None:
    rdma_tree.b200(tree)
    for name in ("mlx5_0", "mlx5_8"):
        place = str((tree.root / "sys/class/infiniband" / name / "device").resolve())
        tree.interface(f"ib{name[-1]}", place.removeprefix(f"{tree.root}/"), type="32")
    speeds = {row["name"]: row["speed"] for row in tree.read()["interfaces"]}
    assert speeds == {"ib0": 400000, "ib8": None}


def test_virtual_functions_of_the_host_are_left_out(tree: Tree) -> None:
    place = tree.mlx("mlx5_0", 0, "01", "0x101e", vpd=None)
    tree.mlx("mlx5_1", 1, "01")
    tree.interface("ens0v0", place)
    (tree.root / place / "physfn").mkdir()
    found = tree.read()
    assert [row["name"] for row in found["devices"]] == ["mlx5_1"]
    assert len(found["adapters"]) == 1
    assert found["interfaces"] == []


def test_a_virtual_function_in_its_virtual_machine_is_read(tree: Tree) -> None:
    tree.mlx("mlx5_0", 0, "01", "0x101e", vpd=None)
    (device,) = tree.read()["devices"]
    assert (device["bridge"], len(device["ports"])) == (False, 1)


def test_a_device_that_hangs_costs_no_other_one_its_values(tree: Tree) -> None:
    rdma_tree.h100(tree)
    real = rdma.read_device

    def read(host: Host, name: str) -> Any:
        if name == "mlx5_3":
            os.read(os.pipe()[0], 1)
        return real(host, name)

    with patch.object(rdma, "read_device", read):
        found = section_network(Host({"root": str(tree.root)}, 4))["devices"]
    assert {row["name"] for row in found if row["error"] and row["hung"]} == {"mlx5_3"}
    assert found[3]["error"].startswith("no answer within")
    assert [row["name"] for row in found] == [f"mlx5_{number}" for number in range(10)]


def test_the_default_route_of_a_bond_is_that_of_its_interfaces(tree: Tree) -> None:
    place = tree.mlx("mlx5_0", 0, "01", link_layer="Ethernet")
    tree.interface("ens0np0", place)
    (tree.root / "sys/class/net/bond0").mkdir()
    tree.link(f"{place}/net/ens0np0/master", "sys/class/net/bond0")
    tree.route("bond0")
    (found,) = tree.read()["interfaces"]
    assert (found["master"], found["default_route"]) == ("bond0", True)


def test_a_pipe_or_a_directory_in_place_of_a_file_is_null(tree: Tree) -> None:
    place = tree.mlx("mlx5_0", 0, "01")
    for name, make in (("rate", os.mkfifo), ("state", os.mkdir)):
        path = tree.root / place / "infiniband/mlx5_0/ports/1" / name
        path.unlink()
        make(path)
    (port,) = tree.read()["devices"][0]["ports"]
    assert (port["rate"], port["state"], port["phys_state"]) == (None, None, "5: LinkUp")


def test_a_tree_without_sys_is_not_read_and_a_host_without_devices_has_none(tmp_path: Path) -> None:
    assert section_network(Host({"root": str(tmp_path)}, 20))["devices"] is None
    assert Tree(tmp_path).read()["devices"] == []


@pytest.mark.parametrize("size", [128, 512, 4096])
def test_the_settings_of_pcie_are_found_in_the_chain_of_capabilities(size: int) -> None:
    for relaxed in (True, False):
        assert pci.express_settings(rdma_tree.config(size, relaxed=relaxed)) == {
            "max_read_request": size,
            "relaxed_ordering": relaxed,
        }


@pytest.mark.parametrize(
    "config",
    [
        None,
        b"",
        rdma_tree.config()[:64],
        b"\xff" * 256,
        bytes(256),
        # A chain whose last capability names the first one as the next.
        bytes(6) + b"\x10" + bytes(45) + b"\x40" + bytes(11) + b"\x01\x40" + bytes(190),
    ],
)
def test_a_configuration_that_cannot_be_read_has_no_settings(config: bytes | None) -> None:
    assert set(pci.express_settings(config).values()) == {None}


def test_access_control_is_read_of_the_ports_above_gpus_and_adapters(tree: Tree) -> None:
    tree.gpu(0)
    tree.mlx("mlx5_0", 0, "01")
    port = tree.root / "sys/bus/pci/devices/0000:02:01.0/config"
    port.write_bytes(rdma_tree.port_config(0x1D))
    # Without rights there are 64 bytes, and without access control nothing is redirected.
    (tree.root / "sys/bus/pci/devices/0000:01:00.0/config").write_bytes(bytes(64))
    none = tree.root / "sys/bus/pci/devices/0000:00:01.0/config"
    none.write_bytes(rdma_tree.port_config(None))
    assert tree.read()["access_control"] == {
        "0000:00:01.0": 0,
        "0000:01:00.0": None,
        "0000:02:01.0": 0x1D,
        "0000:02:03.0": 0,
    }


def test_a_chain_of_capabilities_that_leads_to_itself_ends(tree: Tree) -> None:
    tree.mlx("mlx5_0", 0, "01")
    looping = bytearray(4096)
    looping[0x100:0x104] = (1 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    (tree.root / "sys/bus/pci/devices/0000:02:01.0/config").write_bytes(bytes(looping))
    assert tree.read()["access_control"]["0000:02:01.0"] == 0


def test_the_iommu_of_a_device_is_the_type_of_its_group(tree: Tree) -> None:
    place = tree.mlx("mlx5_0", 0, "01")
    tree.put("sys/kernel/iommu_groups/17/type", "DMA-FQ")
    tree.link(f"{place}/iommu_group", "sys/kernel/iommu_groups/17")
    assert tree.read()["devices"][0]["iommu"] == "DMA-FQ"
    (tree.root / "sys/kernel/iommu_groups/17/type").unlink()
    assert tree.read()["devices"][0]["iommu"] is None


def test_the_version_of_peermem_is_that_of_the_loaded_module(tree: Tree) -> None:
    tree.put("sys/module/nvidia_peermem/version", "535.261.03")
    found = tree.read()
    assert (found["peermem"], found["modules"]["nvidia_peermem"]) == ("535.261.03", True)
