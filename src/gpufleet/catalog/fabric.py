"""Links of GPUs: NVLinks of a model, and rates of PCIe and NVLink (catalog/data/fabric.yml)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from gpufleet.documents.types import Row

from . import facts, model_names, pci

_GB_PER_GIB = 1e9 / 2**30


@dataclass(frozen=True)
class Nvlinks:
    """The NVLinks of a model.

    `wired`: they end on the board, where all of them are active on a healthy host with several
    GPUs. `bridge`: how many links one bridge activates, and `bridged` all bridges together.
    `gib_s`: the lowest rate of a healthy copy between two GPUs that all of them connect.
    """

    links: int
    wired: bool
    bridge: int | None
    bridged: int | None
    gib_s: float


# Asked of both ends of every pair of GPUs; a host may send any name.
@lru_cache(maxsize=1024)
def nvlinks(name: str, device: str | None = None) -> Nvlinks | None:
    """The NVLinks of a GPU by its PCI device id, else by its name; None if no row has either."""
    if model_names.is_share(name):
        return None
    rows = _table()["models"]
    number = pci.digits(device) if device else None
    row = next((row for row in rows if number in row["devices"]), None) or model_names.row_of(
        rows, name
    )
    if row is None:
        return None
    carried = row["links"] * row["gb_s"] * _GB_PER_GIB * _table()["share"]["peer_nvlink"]
    return Nvlinks(
        row["links"],
        row["kind"] == "board",
        row.get("bridge"),
        row.get("bridged"),
        round(carried, 1),
    )


def most_wrong_bits() -> float:
    """The largest rate of bits that are wrong after correction on a healthy NVLink."""
    return float(_table()["effective_ber"]["most"])


def pcie_gib_s(generation: int | None, width: int | None) -> float | None:
    """The bandwidth of a PCIe link in one direction; None if its generation is not known."""
    lane = _table()["pcie"].get(generation)
    return lane * width * _GB_PER_GIB if lane and width else None


def pcie_generation(speed: str | None) -> int | None:
    """The generation of a speed in the kernel's files, such as `16.0 GT/s PCIe`."""
    found = re.match(r"(\d+(?:\.\d+)?) GT/s", speed or "")
    rates = {rate: number for number, rate in _table()["pcie_gt_s"].items()}
    return rates.get(float(found[1])) if found else None


def is_virtual_port(vendor: str | None) -> bool:
    """Return whether a PCI port with this vendor id is a hypervisor's."""
    return vendor in _table()["virtual_ports"]


def share(link: str) -> float:
    """The part of a link's rate that healthy copies reach: `host`, `virtual_host`, `peer_pcie`."""
    return float(_table()["share"][link])


def _table() -> Row:
    return facts.document("fabric.yml")
