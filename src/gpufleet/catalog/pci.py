"""PCI: the GPU of a device id, and its properties (catalog/data/pci.yml)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gpufleet.documents.types import Row

from . import facts


@dataclass(frozen=True)
class Device:
    """A GPU with its device id, four hexadecimal digits.

    `name` is None if only the chip is known, by the id's range.
    """

    number: str
    chip: str
    capability: str
    name: str | None

    @property
    def label(self) -> str:
        return self.name or f"the {self.chip} with PCI id 10de:{self.number}"


def digits(text: str) -> str:
    """The four digits of a device id: `0x2330`, `10de:2330` and `2330` are all `2330`."""
    return text.lower().removeprefix("0x").rpartition(":")[2].zfill(4)


@cache
def device(text: str) -> Device | None:
    """The GPU of a device id in a snapshot; None if its range of ids is not known either."""
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


def is_grace_hopper(number: str) -> bool:
    """Return whether the GPU is a Grace Hopper's, which only the open kernel module supports."""
    return number in _table()["grace_hopper"]


def behind_nvswitch(number: str) -> bool:
    """Return whether the GPU is always on an NVSwitch that the host's PCI bus does not show."""
    return number in _table()["fabric"]


def model_behind_nvswitch(model: str) -> bool:
    """Return whether a model by its name is such a GPU: a virtual function has another id."""
    names = (device(number) for number in _table()["fabric"])
    return model.removeprefix("NVIDIA ") in {each.name for each in names if each}


def in_rack(number: str) -> bool:
    """Return whether the GPU is one of a rack whose NVSwitches are in machines of their own."""
    return number in _table()["rack"]


def supports_mig(number: str) -> bool:
    """Return whether the GPU supports MIG."""
    rule, found = _table()["mig"], device(number)
    return number in rule["devices"] or (found is not None and found.chip in rule["chips"])


def listed_from(number: str) -> str | None:
    """The first branch that lists a device which earlier branches of its architecture omit."""
    for branch, members in _table()["listed_from"].items():
        if number in members:
            return str(branch)
    return None
