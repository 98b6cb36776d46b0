"""NVLinks per model, kinds of names, what PCIe carries."""

from __future__ import annotations

import pytest

from gpufleet.catalog import fabric, facts, model_names, pci


@pytest.mark.parametrize(
    ("name", "links", "wired"),
    [
        ("NVIDIA A100-SXM4-80GB", 12, True),
        ("NVIDIA H100 80GB HBM3", 18, True),
        ("NVIDIA H800", 8, True),
        ("NVIDIA H200", 18, True),
        ("NVIDIA H200 NVL", 18, False),
        ("NVIDIA A100 80GB PCIe", 12, False),
        ("NVIDIA B300 SXM6 AC", 18, True),
        ("NVIDIA B100", 18, True),
        ("NVIDIA H20", 18, True),
        ("NVIDIA H20-3e", 18, True),
        ("NVIDIA GH200 480GB", 18, False),
        ("NVIDIA H100", 18, False),
        ("NVIDIA H100 NVL", 18, False),
        ("NVIDIA GB200", 18, True),
        ("NVIDIA RTX A6000", 4, False),
        ("NVIDIA A40", 4, False),
    ],
)
def test_a_model_has_so_many_nvlinks(name: str, links: int, wired: bool) -> None:
    found = fabric.nvlinks(name)
    assert found is not None
    assert (found.links, found.wired) == (links, wired)
    # Above what PCIe carries, far below what was reached.
    assert not wired or 45 < found.gib_s < 230


@pytest.mark.parametrize(
    ("name", "device", "bridged"),
    [
        ("NVIDIA H100", "0x2330", None),
        ("NVIDIA H100", "0x2321", 12),
        ("NVIDIA H100 80GB HBM3", "0x2331", 12),
        ("NVIDIA A100", "20B5", 12),
        ("NVIDIA RTX A6000", "0x3fff", 4),
    ],
)
def test_the_id_decides_before_the_name(name: str, device: str, bridged: int | None) -> None:
    found = fabric.nvlinks(name, device)
    assert found is not None
    assert (found.bridged, found.wired) == (bridged, bridged is None)


def test_no_device_has_two_rows() -> None:
    devices = [
        number for row in facts.document("fabric.yml")["models"] for number in row["devices"]
    ]
    assert sorted(set(devices)) == sorted(devices)
    assert all(pci.device(number) for number in devices)


@pytest.mark.parametrize("name", ["NVIDIA L40S", "Tesla T4", "NVIDIA A40-48Q", "NVIDIA R100", ""])
def test_a_model_of_which_no_nvlink_is_known_has_no_number(name: str) -> None:
    assert fabric.nvlinks(name) is None


@pytest.mark.parametrize(
    ("name", "share", "portable"),
    [
        ("NVIDIA L40S-48Q", True, False),
        ("GRID A100-40C", True, False),
        ("NVIDIA A10-24Q", True, False),
        ("NVIDIA L4-24Q", True, False),
        ("NVIDIA A100-1-5C", True, False),
        ("GRID T4-2B4", True, False),
        ("NVIDIA A100-1-5CME", True, False),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", True, False),
        ("NVIDIA A100-SXM4-40GB", False, False),
        ("Tesla V100-SXM2-16GB", False, False),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", False, True),
        ("Quadro RTX 6000 with Max-Q Design", False, True),
        ("Quadro T2000 Mobile", False, True),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", False, False),
    ],
)
def test_a_share_of_a_gpu_and_a_portable_one_are_known_by_name(
    name: str, share: bool, portable: bool
) -> None:
    assert (model_names.is_share(name), model_names.is_portable(name)) == (share, portable)


def test_what_a_link_carries() -> None:
    assert fabric.pcie_gib_s(4, 16) == pytest.approx(29.3, abs=0.1)
    assert fabric.pcie_gib_s(1, 16) == pytest.approx(3.7, abs=0.1)
    assert (fabric.pcie_gib_s(None, 16), fabric.pcie_gib_s(9, 16)) == (None, None)
    speeds = ["2.5 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s", "Unknown", None]
    assert [fabric.pcie_generation(speed) for speed in speeds] == [1, 4, 5, None, None]
