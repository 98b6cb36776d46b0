"""The least rates of copies between two GPUs, by the links that connect them."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.components.base.sections import Sections
from gpufleet.components.compute.peer_rates import least_peer
from tests.support.healthy_host import Document, nvlinks

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


def address(index: int) -> str:
    return f"0000:0{index}:00.0"


def observed(switches: list[str] | None, rows: list[Document] | None = None) -> Sections:
    sections: dict[str, Any] = {}
    if switches is not None:
        sections["gpus"] = {"state": "ok", "data": {"nvswitches": switches}}
    if rows is not None:
        sections["smi"] = {"state": "ok", "data": {"nvlink": rows}}
    snapshot: Any = {"sections": sections}
    return Sections(snapshot, ())


def direct(count: int, links: int, each: int) -> list[Document]:
    """NVLinks that end at the other GPUs of a board, so many at each."""
    rows = []
    for index in range(count):
        row = nvlinks(index, links, links)
        others = [other for other in range(count) if other != index]
        for at, link in enumerate(row["links"]):
            link.update(remote="gpu", remote_address=address(others[min(at // each, count - 2)]))
        rows.append(row)
    return rows


def least(name: str, count: int, found: Sections) -> tuple[float, str]:
    devices: Any = {n: {"index": n, "name": name, "address": address(n)} for n in range(count)}
    entry: Any = {"from": 0, "to": 1, "access": True}
    return least_peer(found, devices, entry)


@pytest.mark.parametrize(
    ("name", "count", "found", "expected"),
    [
        # Four GPUs on a board without NVSwitches have a third of their links to each other one.
        (H100, 4, observed([]), (34.9, "of 6 of 18 NVLinks")),
        (A100, 4, observed([]), (23.3, "of 4 of 12 NVLinks")),
        (H100, 4, observed(None), (34.9, "of 6 of 18 NVLinks")),
        (H100, 4, observed([], direct(4, 18, 6)), (34.9, "of 6 of 18 NVLinks")),
        # Two of the four GPUs in a virtual machine: NVML reports where the links end.
        (A100, 2, observed([], direct(4, 12, 4)), (23.3, "of 4 of 12 NVLinks")),
        (H100, 2, observed([]), (104.8, "of 18 NVLinks")),
        # NVSwitches connect each GPU to each other one by all links, on the bus or by NVML.
        (H100, 4, observed(["0000:c0:00.0"]), (104.8, "of 18 NVLinks")),
        (H100, 4, observed([], [nvlinks(0), nvlinks(1)]), (104.8, "of 18 NVLinks")),
        (H100, 8, observed([]), (104.8, "of 18 NVLinks")),
    ],
)
def test_the_floor_is_that_of_the_links_between_two_gpus(
    name: str, count: int, found: Sections, expected: tuple[float, str]
) -> None:
    assert least(name, count, found) == expected
