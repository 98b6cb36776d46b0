"""PCI: which GPU a device id stands for (catalog/data/pci.yml)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from . import facts
from .records import Row


@dataclass(frozen=True)
class Device:
    """A GPU by its device id, four hexadecimal digits.

    `name` is None where only the chip is known, by the id's range.
    """

    number: str
    chip: str
    capability: str
    name: str | None

    @property
    def label(self) -> str:
        return self.name or f"the {self.chip} with PCI id 10de:{self.number}"


def digits(text: str) -> str:
    """`0x2330`, `10de:2330` and `2330` are the same device."""
    return text.lower().removeprefix("0x").rpartition(":")[2].zfill(4)


@cache
def device(text: str) -> Device | None:
    """The GPU of an id as a snapshot has it; None where not even its range tells the chip."""
    number = digits(text)
    for row in _table()["chips"]:
        if number in row["devices"] or any(_within(number, each) for each in row["ranges"]):
            name = row["devices"].get(number)
            return Device(number, row["chip"], row["compute_capability"], name)
    return None


def _table() -> Row:
    return facts.document("pci.yml")


def _within(number: str, rule: str) -> bool:
    first, last = rule.split("-")
    return first <= number <= last


def with_grace(number: str) -> bool:
    """Whether it is a Hopper of a Grace Hopper, which has the open kernel module only."""
    return number in _table()["grace_hopper"]


def behind_nvswitch(number: str) -> bool:
    """Whether the GPU is always behind an NVSwitch that the PCI bus does not show."""
    return number in _table()["fabric"]


def can_be_split(number: str) -> bool:
    """Whether the GPU knows MIG."""
    rule, found = _table()["mig"], device(number)
    return number in rule["devices"] or (found is not None and found.chip in rule["chips"])


def listed_from(number: str) -> str | None:
    """The first branch seen to list a device that branches with its architecture leave out."""
    for branch, members in _table()["listed_from"].items():
        if number in members:
            return str(branch)
    return None
