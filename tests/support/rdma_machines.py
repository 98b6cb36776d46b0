"""More machines with RDMA devices, of kinds beside those in `rdma_tree`, to be planted as a tree.

Likewise derived from public descriptions: models, counts and rates of adapters. Places on the PCI
bus, firmware, addresses and counters are made up.
"""

from __future__ import annotations

from typing import Any

from tests.support.rdma_tree import DOWN, Tree, modules, storage

CX8: dict[str, Any] = {"model": "MT4131", "board": "MT_0000001180", "firmware": "40.48.1000"}
VIRTIO = {"class": "0x020000", "vendor": "0x1af4", "device": "0x1000"}
ROCE: dict[str, Any] = {"link_layer": "Ethernet", "rate": "400 Gb/sec (4X NDR)"}


def h200_roce(tree: Tree) -> None:
    """HGX H200 with RoCE: eight ports of 400 Gb/s, and one of a BlueField-3 for storage."""
    modules(tree)
    for number in range(8):
        tree.gpu(number, "0x2335")
        place = tree.mlx(f"mlx5_{number}", number, "01", address=number, **ROCE)
        tree.interface(f"ens{number}np0", place)
    storage(tree, 8, "200 Gb/sec (4X HDR)")


def b300(tree: Tree) -> None:
    """HGX B300: eight XDR ports of ConnectX-8, and two bridges to the NVSwitches."""
    modules(tree)
    for number in range(8):
        tree.gpu(number, "0x3182")
        tree.mlx(f"mlx5_{number}", number, "01", "0x1023", rate="800 Gb/sec (4X XDR)", **CX8)
    for number in (8, 9):
        tree.bridge(number)


def dual_ports(tree: Tree) -> None:
    """HGX H100 with four cards of two ports, of which only the first one of each has a cable."""
    modules(tree)
    for number in range(8):
        tree.gpu(number // 2)
    for card in range(4):
        place = tree.mlx(f"mlx5_{2 * card}", card, "01")
        second = f"{place[:-1]}1"
        address = second.rpartition("/")[2]
        for file, text in (("class", "0x020700"), ("vendor", "0x15b3"), ("device", "0x1021")):
            tree.put(f"{second}/{file}", text)
        tree.link(f"sys/bus/pci/devices/{address}", second)
        tree.adapter(f"mlx5_{2 * card + 1}", second, **DOWN)


def soft_roce(tree: Tree) -> None:
    """A virtual machine with two soft RoCE devices, as read in one with kernel 6.1, and two GPUs."""
    modules(tree, "ib_core", "ib_uverbs", "rdma_rxe")
    for number in range(3):
        if number:
            tree.gpu(number)
        place = tree.function("0000:00", (f"0000:00:{number + 2:02x}.0",), **VIRTIO)
        # The interface belongs to the device on the bus of virtio, below the PCI function.
        own = f"{place}/virtio{number}"
        tree.interface(f"enp0s{number + 2}", own, speed="-1", carrier_up_count="1")
        if number:
            tree.software(f"rxe{number - 1}", number, f"enp0s{number + 2}")
    tree.route("enp0s2")


def virtual(tree: Tree) -> None:
    """A cloud's instance: eight GPUs and eight virtual functions, each in a PCI domain of its own."""
    modules(tree)
    for number in range(8):
        tree.gpu(number, domain=f"{0x100 + number:04x}:00")
        tree.mlx(
            f"mlx5_{number}",
            0,
            "01",
            "0x101e",
            model="MT4126",
            board="MSF0000000024",
            vpd=b"\x82NVIDIA ConnectX Family mlx5Gen Virtual Function",
            domain=f"{0x200 + number:04x}:00",
        )


def grace(tree: Tree) -> None:
    """GH200: one GPU and one NDR port, which is near no GPU and has no sibling."""
    modules(tree)
    tree.gpu(0, "0x2342", domain="0009:00")
    tree.mlx("mlx5_0", 0, "01", domain="0002:00")


def bond(tree: Tree) -> None:
    """A server with four L40S and a bond of both ports of one card, which is one RDMA device."""
    modules(tree)
    for number in range(4):
        tree.gpu(number, "0x26b9")
    place = tree.mlx(
        "mlx5_bond_0",
        4,
        "01",
        "0x101d",
        model="MT4125",
        board="MT_0000000359",
        firmware="22.41.1000",
        link_layer="Ethernet",
        rate="100 Gb/sec (4X EDR)",
        address=7,
    )
    tree.interface("bond0", place, speed="200000")
    tree.route("bond0")


MACHINES = {
    "h200 with roce": h200_roce,
    "b300": b300,
    "dual ports": dual_ports,
    "virtual functions": virtual,
    "grace": grace,
    "bond": bond,
    "soft roce": soft_roce,
}
# Where nothing is declared and no two ports have one role.
ALONE = {"workstation", "grace", "bond"}
