"""The interfaces of a bond below one RDMA device: the port is active with one of them left.

One that has no carrier is a fault if it has had one, or if the other bonds of the role are whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.components.base.ports import UNUSED, Port, other_legs
from gpufleet.components.base.registry import Finding
from gpufleet.documents.sections.network import Interface
from gpufleet.documents.text import quoted
from gpufleet.documents.verdict import Verdict

from .reading import Ports


def lost_legs(group: list[Port], found: Ports) -> Iterator[Finding]:
    """Interfaces without a carrier in the bonds of a group of ports."""
    judged = {port.interface["name"] for port in found.judged if port.interface}
    unused = {port.name for port in found.all if port.role == UNUSED}
    legs = {
        row["name"]: (port, row)
        for port in group
        for row in _members(port, found)
        if row["name"] not in unused
        and (
            row["name"] not in judged or (port.interface and port.interface["name"] == row["name"])
        )
    }
    whole = any(
        members and all(row["carrier"] == 1 for row in members)
        for members in (_members(port, found) for port in group)
    )
    for name, (port, row) in legs.items():
        if row["carrier"] != 0 or not port.active:
            continue
        known = bool(row["carrier_up_count"]) or whole or port.row is not None
        because = (
            f"{port.name} works with what is left of it"
            if known
            else "nothing says whether it should have a link"
        )
        yield Finding(
            f"{quoted(name)} has no carrier, of the bond {quoted(row['master'] or '')}: {because}",
            "look at its cable, at both transceivers and at the switch's port (on the host:"
            f" ethtool {quoted(name)}); if it is meant so, take it out of the bond",
            verdict=Verdict.FAIL if known else Verdict.NOT_DECLARED,
        )


def _members(port: Port, found: Ports) -> list[Interface]:
    others = other_legs(port, found.network)
    return [port.interface, *others] if port.interface and others else []
