"""Network adapters, and what the files of their ports mean (catalog/data/network.yml)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from gpufleet.documents.types import Row

from . import facts


@dataclass(frozen=True)
class Rate:
    """The rate of a port: `400 Gb/sec (4X NDR)`."""

    gb_s: float
    lanes: int | None
    speed: str

    @property
    def unknown(self) -> bool:
        """True if the rate may be a speed unknown to the kernel, printed as the slowest one."""
        row = _table()["unknown_rate"]
        slowest = self.lanes is None or self.gb_s == row["gb_s_per_lane"] * self.lanes
        return slowest and self.speed in row["speeds"]


@dataclass(frozen=True)
class Limit:
    """A growth of a counter that is a fault (`fatal`), or a warning: more than this in a time.

    `alone`: more than this per second says something within one verification; None: nothing does.
    """

    more: float
    seconds: float
    fatal: bool
    alone: float | None = None


def rate_limit(counter: str) -> Limit | None:
    """The limit of the growth of a port's or a GPU's NVLinks' counter; None if no tool has one."""
    return _limits().get(counter)


@cache
def _limits() -> dict[str, Limit]:
    return {
        row["counter"]: Limit(row["more"], row["seconds"], row["fatal"], row.get("alone"))
        # No counter of a port has the name of one of a GPU's NVLinks.
        for row in [*_table()["rates"], *facts.document("fabric.yml")["rates"]]
    }


def rate(text: str | None) -> Rate | None:
    """The rate that the kernel prints; None if it prints none."""
    found = re.match(
        r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec(?: \((\d{1,3})X(?: ([A-Z0-9]{1,8}))?\))?", text or ""
    )
    if not found:
        return None
    return Rate(float(found[1]), int(found[2]) if found[2] else None, found[3] or "")


def state_number(text: str | None) -> int | None:
    """The number of a state such as `4: ACTIVE`."""
    found = re.match(r"(\d{1,2}):", text or "")
    return int(found[1]) if found else None


def state(name: str) -> int:
    """The number of a port's state, or of its physical state, by its name in the table."""
    return int(_table()["port_states"][name])


def counter_limit(name: str) -> int | None:
    """The maximum of a classic counter, where it stays; None if it has no such limit."""
    row = _table()["counters"].get(name)
    return (1 << row["bits"]) - 1 if row else None


def counts_errors(name: str) -> bool:
    """Return whether a classic counter counts faults."""
    row = _table()["counters"].get(name)
    return bool(row and row["error"])


def redirects(control: int) -> list[str]:
    """The settings in a port's access control that send copies between devices elsewhere."""
    bits = _table()["access_control"]
    return [
        name.replace("_", " ")
        for name, bit in bits.items()
        if name != "source" and control >> bit & 1
    ]


def translates(iommu: str) -> bool:
    """Return whether an IOMMU of this type translates the addresses of copies between devices."""
    return iommu in _table()["translating"]["types"]


def carries_rdma(vendor: str | None) -> bool:
    """Return whether adapters of this PCI vendor are RDMA devices."""
    return vendor in _table()["vendors"]


def packages(driver: str, family: str) -> list[str]:
    """The packages of a network driver (`inbox` or `doca`) for a family of distributions."""
    return [*_table()["drivers"][driver][family]]


def modules(vendors: Iterable[str], *, peermem: bool = False) -> list[str]:
    """The kernel modules for adapters of these PCI vendors, in the order in which they load."""
    table = _table()["modules"]
    kinds = [each for each in table if each in {*vendors, "programs", *["peermem"] * peermem}]
    # Modules that programs open depend on the vendors' modules, and nvidia_peermem on both.
    kinds.sort(key=lambda each: ("programs", "peermem").index(each) if each[:2] != "0x" else -1)
    return [name for kind in kinds for name in table[kind]["names"]]


def read_requests() -> list[int]:
    """The sizes that a PCI device's MaxReadReq can have, in bytes."""
    return [*_table()["read_requests"]["bytes"]]


def _table() -> Row:
    return facts.document("network.yml")
