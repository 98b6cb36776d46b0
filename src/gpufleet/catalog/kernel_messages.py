"""Messages of the kernel log that are no Xid or SXid (catalog/data/kernel_log.yml)."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpufleet.documents.types import Row

from . import facts, gpus, pci, versions

_PCI_ID = re.compile(r"\(PCI ID: 10de:([0-9a-f]{4})\)", re.IGNORECASE)
_NAME = re.compile(r"[\w-]{1,64}", re.ASCII)
_SYMBOL = re.compile(r"symbols? (\w+)")


class Refusal(NamedTuple):
    """Why the kernel does not load a module, and what to do on the host about it."""

    reason: str
    remedy: str


def meaning(kind: str, text: str = "") -> Row | None:
    """The judgement of a kind of message, whose line is `text`; None if no rule judges it."""
    found: Row | None = facts.document("kernel_log.yml")["kinds"].get(kind)
    newer: Row | None = found and found.get("newer_cards")
    return newer if newer and _has_gsp(text) else found


def refusal(module: str, text: str) -> Refusal:
    """Why the kernel refuses a module, by its line; a host's strange words are no command."""
    rules = facts.document("kernel_log.yml")
    row = next((each for each in rules["refusals"] if each["words"] in text), rules["refusals"][-1])
    symbol = _SYMBOL.search(text)
    named = symbol[1] if symbol else ""
    owner = next((name for begins, name in rules["owners"].items() if named.startswith(begins)), "")
    row = row if owner else row.get("unless_owner", row)
    values = {
        "module": module if _NAME.fullmatch(module) else "that module",
        "owner": f"the module {owner}" if owner else "the kernel or another module",
        "owner_module": owner,
    }
    return Refusal(row["says"].format(**values), row["remedy"].format(**values))


def _has_gsp(text: str) -> bool:
    """Return whether the card that a line names is one that the open modules support."""
    number = _PCI_ID.search(text)
    card = pci.device(number[1]) if number else None
    return card is not None and versions.key(card.capability) >= versions.key(gpus.OPEN_MODULE_MIN)
