"""The PCIe links of the adapters: as declared, or as wide and fast as adapter and slot allow.

The number of lanes is judged always. The speed of a link may be low while nothing is sent over it,
so it is a fault only where the adapter moved data while it was read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Literal

from gpufleet.catalog import fabric
from gpufleet.components.base.ports import Port
from gpufleet.components.base.registry import Finding
from gpufleet.documents.plan import PlannedPorts
from gpufleet.documents.sections.network import DeviceLink
from gpufleet.documents.text import is_number, quoted
from gpufleet.documents.verdict import Verdict

from .reading import have, named, odd

# From this traffic on an adapter's link must have its full speed: what manages a port, and what
# reads its counters, sends far less.
LOADED_GB_S = 1.0
Key = Literal["width", "generation"]
# (what it has now, what it can have); null: not known.
Measure = Callable[[DeviceLink], tuple[int | None, int | None]]
SERVICE = (
    "reseat the adapter, check its riser and the firmware's settings of the slot; of a cloud's"
    " instance: report it to the provider"
)


def _lanes(text: str | None) -> int | None:
    # 255 and 0 stand for unknown.
    return int(text) if text and is_number(text) and 0 < int(text) <= 32 else None


# The key of a declaration, what it is about, its value in a sentence, and how it is read.
MEASURES: tuple[tuple[Key, str, str, Measure], ...] = (
    (
        "width",
        "PCIe lanes",
        "{} PCIe lanes",
        lambda link: (_lanes(link["current_link_width"]), _lanes(link["max_link_width"])),
    ),
    (
        "generation",
        "PCIe generation",
        "PCIe generation {}",
        lambda link: (
            fabric.pcie_generation(link["current_link_speed"]),
            fabric.pcie_generation(link["max_link_speed"]),
        ),
    ),
)


def pcie_links(ports: list[Port], row: PlannedPorts | None) -> Iterator[Finding]:
    """Findings about the PCIe links of adapters of one role."""
    for key, what, value, measure in MEASURES:
        link_row = row.get("pcie") if row else None
        declared = link_row[key] if link_row else None
        known: dict[str, int] = {}
        possible: dict[str, int] = {}
        for port in ports:
            link, above = (
                (port.device["link"], port.device["above"]) if port.device else (None,) * 2
            )
            current, most = measure(link) if link else (None, None)
            if current is None:
                continue
            known[port.name] = current
            slot = measure(above)[1] if above and not fabric.is_virtual_port(above["vendor"]) else 0
            if most and slot:
                possible[port.name] = min(most, slot)
        unread = [
            port
            for port in ports
            if port.name not in known and port.device and port.device["address"]
        ]
        if unread and (known or declared):
            yield Finding(
                f"The {what} of {named(unread)} cannot be read",
                "on the host: read them by hand (lspci -vv, LnkSta)",
                verdict=Verdict.INCONCLUSIVE,
            )
        best = max(known.values(), default=0)
        less: dict[tuple[int, int, bool], list[Port]] = defaultdict(list)
        for port in ports:
            wanted = declared or possible.get(port.name, best)
            if port.name in known and known[port.name] < wanted:
                idle = key == "generation" and not _loaded(port)
                less[known[port.name], wanted, idle].append(port)
        for (own, wanted, idle), slow in less.items():
            yield _less(slow, value.format(own), wanted, idle=idle, declared=bool(declared))
        if not declared:
            yield from _other_slots(ports, value, key, possible)


def _loaded(port: Port) -> bool:
    traffic = port.device.get("traffic_gb_s") if port.device else None
    return (traffic or 0.0) >= LOADED_GB_S


def _less(slow: list[Port], what: str, wanted: int, *, idle: bool, declared: bool) -> Finding:
    source = "declared are" if declared else "possible are"
    cause = f"{have(slow, 'has', 'have')} {what}, {source} {wanted}"
    if idle:
        return Finding(
            f"{cause}: no data was moved while it was read, so it may save power",
            "./gpufleet verify while a job uses these ports, or on the host during one: lspci -vv"
            f" (LnkSta); if it stays so: {SERVICE}",
            verdict=Verdict.INCONCLUSIVE,
        )
    return Finding(cause, SERVICE)


def _other_slots(
    ports: list[Port], shown: str, key: Key, possible: dict[str, int]
) -> Iterator[Finding]:
    """Adapters whose slot allows less than the slots of the others of their model."""
    by_model: dict[str | None, list[Port]] = defaultdict(list)
    for port in ports:
        by_model[port.device["type"] if port.device else None].append(port)
    for alike in by_model.values():
        common, others = odd(alike, lambda port: possible.get(port.name))
        for value, own in others.items():
            if common and value < common:
                yield Finding(
                    f"Adapter and slot of {named(own)} allow {shown.format(value)}, those of the"
                    f" siblings {common}",
                    "put the adapter into a slot like its siblings'; if it is by design, declare"
                    " it in an entry of its own: gpu_expect: {network: [{ports:"
                    f" {quoted(own[0].name)}, pcie: {{{key}: {value}}}}}, ...]}}",
                    verdict=Verdict.INCONCLUSIVE,
                )
