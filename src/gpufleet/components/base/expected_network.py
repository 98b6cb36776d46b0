"""Read what is declared of a host's network ports (`gpu_expect.network`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpufleet.documents.plan import PlannedPorts

from .reader import Reader

KEYS = (
    "ports",
    "role",
    "count",
    "rate",
    "link_layer",
    "firmware",
    "board",
    "gid_index",
    "gid_type",
    "lossless_priority",
    "pcie",
)
ROLES = ("compute", "storage", "management", "unused")
LINK_LAYERS = ("InfiniBand", "Ethernet")
GID_TYPES = ("v1", "v2")
# Keys that take one of a few values; the inventory's schema lists them.
CHOICES = {"role": ROLES, "link_layer": LINK_LAYERS, "gid_type": GID_TYPES}
# More than a host has. The kernel's table of GIDs has no more entries.
MOST_PORTS, MOST_GIDS = 256, 255
LAST_PRIORITY = 7
# The generations and widths of a PCIe link.
PCIE = {"generation": tuple(range(1, 8)), "width": (1, 2, 4, 8, 16)}
PATTERN = r"[A-Za-z0-9_.:*?!\[\]/-]{1,64}"
_EXAMPLE = "a name or pattern such as mlx5_* or ens1np0"


def read(reader: Reader, value: Any, where: str) -> list[PlannedPorts] | None:
    """The rows of the declaration; a row of a wrong type becomes a problem and is left out."""
    if value is None:
        return None
    rows = (
        _row(reader, each, f"{where}[{at}]")
        for at, each in enumerate(reader.sequence(value, where))
    )
    return [row for row in rows if row]


def _row(reader: Reader, value: Any, where: str) -> PlannedPorts | None:
    entry = reader.mapping(value, where, KEYS)
    if not isinstance(value, Mapping):
        return None
    patterns = _patterns(reader, entry.get("ports"), f"{where}.ports")
    chosen = {
        key: reader.choice(entry.get(key), f"{where}.{key}", choices)
        for key, choices in CHOICES.items()
    }
    if not patterns:
        return None
    row: Any = {
        "ports": patterns,
        **chosen,
        "role": chosen["role"] or ROLES[0],
        "count": reader.count(
            entry.get("count"), f"{where}.count", f"a number up to {MOST_PORTS}", MOST_PORTS
        ),
        "rate": reader.amount(entry.get("rate"), f"{where}.rate", "in Gb/s, such as 400"),
        "firmware": reader.text(entry.get("firmware"), f"{where}.firmware", "such as 28.41.1000"),
        "board": reader.text(entry.get("board"), f"{where}.board", "such as MT_0000000838"),
        "gid_index": reader.count(
            entry.get("gid_index"), f"{where}.gid_index", f"a number up to {MOST_GIDS}", MOST_GIDS
        ),
        "lossless_priority": reader.count(
            entry.get("lossless_priority"),
            f"{where}.lossless_priority",
            f"a number up to {LAST_PRIORITY}",
            LAST_PRIORITY,
        ),
        "pcie": pcie_link(reader, entry.get("pcie"), f"{where}.pcie"),
    }
    found: PlannedPorts = row
    return found


def _patterns(reader: Reader, value: Any, where: str) -> list[str]:
    """One name or pattern, or a list of them."""
    if value is None or value == []:
        reader.wrong(value, where, _EXAMPLE)
        return []
    single = isinstance(value, str)
    found = []
    for at, each in enumerate([value] if single else reader.sequence(value, where)):
        place = where if single else f"{where}[{at}]"
        text = reader.text(each, place, _EXAMPLE)
        if text and not re.fullmatch(PATTERN, text):
            reader.wrong(text, place, _EXAMPLE)
        elif text:
            found.append(text)
    return found


def pcie_link(reader: Reader, value: Any, where: str) -> dict[str, int | None] | None:
    """The least PCIe generation and width of each GPU or adapter."""
    if value is None:
        return None
    entry = reader.mapping(value, where, tuple(PCIE))
    found = {}
    for key, known in PCIE.items():
        number = reader.count(entry.get(key), f"{where}.{key}", "a number")
        if number is not None and number not in known:
            listed = ", ".join(map(str, known))
            reader.wrong(number, f"{where}.{key}", f"one of {listed}")
            number = None
        found[key] = number
    return found if any(found.values()) else None
