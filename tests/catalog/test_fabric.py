"""NVLinks per model, kinds of names, what PCIe carries."""

from __future__ import annotations

import re

import pytest

from gpufleet.catalog import fabric, model_names
from tests.support.gathered_facts import GATHERED, needs_gathered


@pytest.mark.parametrize(("name", "links", "wired"), [
    ("NVIDIA A100-SXM4-80GB", 12, True), ("NVIDIA H100 80GB HBM3", 18, True),
    ("NVIDIA H800", 8, True), ("NVIDIA H200", 18, True), ("NVIDIA H200 NVL", 12, False),
    ("NVIDIA A100 80GB PCIe", 12, False), ("NVIDIA B300 SXM6 AC", 18, True),
    ("NVIDIA GB200", 18, True), ("NVIDIA RTX A6000", 4, False), ("NVIDIA A40", 4, False)])
def test_a_model_has_so_many_nvlinks(name: str, links: int, wired: bool) -> None:
    found = fabric.nvlinks(name)
    assert found is not None
    assert (found.links, found.wired) == (links, wired)
    # Above what PCIe carries, far below what was reached.
    assert not wired or 45 < found.gib_s < 230


@pytest.mark.parametrize("name", ["NVIDIA L40S", "Tesla T4", "NVIDIA H20", "NVIDIA A40-48Q", ""])
def test_a_model_of_which_no_nvlink_is_known_has_no_number(name: str) -> None:
    assert fabric.nvlinks(name) is None


@pytest.mark.parametrize(("name", "share", "portable"), [
    ("NVIDIA L40S-48Q", True, False), ("GRID A100-40C", True, False),
    ("NVIDIA A10-24Q", True, False), ("NVIDIA L4-24Q", True, False),
    ("NVIDIA A100-1-5C", True, False), ("GRID T4-2B4", True, False),
    ("NVIDIA A100-1-5CME", True, False), ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", True, False),
    ("NVIDIA A100-SXM4-40GB", False, False), ("Tesla V100-SXM2-16GB", False, False),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", False, True),
    ("Quadro RTX 6000 with Max-Q Design", False, True), ("Quadro T2000 Mobile", False, True),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", False, False)])
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


@needs_gathered
def test_the_numbers_of_links_are_those_of_the_facts() -> None:
    text = (GATHERED / "fabric.md").read_text(encoding="utf-8")
    table = text.partition("### a.2 Links per GPU")[2].partition("###")[0]
    seen = 0
    for row in table.splitlines():
        cells = [cell.strip() for cell in row.split("|")]
        said = re.match(r"\d+", cells[2]) if len(cells) > 4 else None
        for label in cells[1].replace("SXM5", "80GB HBM3").split(", ") if said else ():
            known = fabric.nvlinks(label)
            assert known is None or known.links == int(said[0]), label
            seen += known is not None
    assert seen >= 15
