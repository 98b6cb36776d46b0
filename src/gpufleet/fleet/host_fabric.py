"""The network ports and NVLinks of a host, read from its snapshot, for the report.

Ports and GPUs that are alike are one row, so that a healthy host has a row for each role.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from gpufleet.catalog import network as facts
from gpufleet.components.base.ports import COMPUTE, Port
from gpufleet.components.base.sections import by_name
from gpufleet.components.network import ports as ports_check
from gpufleet.components.network.reading import Ports, with_roles
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.gpu import GpuNvlinks
from gpufleet.documents.snapshot import SectionData, Snapshot
from gpufleet.documents.text import natural
from gpufleet.documents.validator import section_data

# How a port is: it carries data; it should and does not; it is slower than it should be; its state
# was not read; it is down, and nothing says that it should not be.
State = Literal["up", "down", "slower", "unread", "idle"]
READS = ("network", "kernel", "smi")
# A host has two dozen ports at most; another number is no host's.
MOST_PORTS = 256
# Shown for an interface that is no RDMA device: its error counters are not read.
NO_COUNTERS = "–"


@dataclass(frozen=True)
class PortRow:
    """The ports of a host that are alike."""

    role: str
    because: str
    layer: str
    state: State
    text: str
    rate: str
    firmware: str
    names: str = ""
    errors: str = ""


@dataclass(frozen=True)
class LinkRow:
    """The GPUs of a host whose NVLinks are alike."""

    gpus: str
    active: str
    version: str
    errors: str


@dataclass(frozen=True)
class HostFabric:
    """The rows of a host; `rails`: (name, state) of each port that serves the GPUs, in order."""

    ports: tuple[PortRow, ...] = ()
    links: tuple[LinkRow, ...] = ()
    rails: tuple[tuple[str, State], ...] = ()


def fabric_of(snapshot: Snapshot | None, plan: Plan) -> HostFabric:
    """The ports and links of a host whose snapshot is of its type; none of what was not read."""
    sections = by_name(snapshot) if snapshot else {}
    data = {
        name: sections[name]["data"]
        for name in READS
        if name in sections and sections[name]["state"] == "ok"
    }
    return _fabric(cast(SectionData, data), plan)


def read_fabric(snapshot: Mapping[str, Any] | None, plan: Mapping[str, Any]) -> HostFabric:
    """The fabric by a snapshot and a plan that anybody may have written."""
    sections, expect = (snapshot or {}).get("sections"), plan.get("expect")
    if not isinstance(sections, Mapping) or not isinstance(expect, Mapping):
        return HostFabric()
    data = section_data({"sections": {name: sections[name] for name in READS if name in sections}})
    return _fabric(data, cast(Plan, plan))


def _fabric(data: SectionData, plan: Plan) -> HostFabric:
    links = tuple(_links(data["smi"].get("nvlink") or [])) if "smi" in data else ()
    if "network" not in data or "kernel" not in data:
        return HostFabric(links=links)
    return _ports(plan, data, links)


def _ports(plan: Plan, data: SectionData, links: tuple[LinkRow, ...]) -> HostFabric:
    found = with_roles(plan, data)
    states = _states(plan, found)
    shown = sorted(found.all, key=lambda port: natural(port.name))[:MOST_PORTS]
    rails = tuple((port.name, states[port.name]) for port in shown if port.role == COMPUTE)
    return HostFabric(tuple(_rows(shown, states)), links, rails)


def _states(plan: Plan, found: Ports) -> dict[str, State]:
    """The state of each port, by the faults that the check `network.ports` finds."""
    states: dict[str, State] = {}
    for port in found.all:
        states[port.name] = "unread" if port.active is None else "up" if port.active else "idle"
    for group in found.groups:
        row = ports_check.declared_row(plan, group)
        for name in ports_check.lost_links(group, wanted=row is not None):
            states[name] = "down"
        for port in ports_check.slower(group, row):
            states[port.name] = "slower"
    return states


def _rows(ports: Iterable[Port], states: Mapping[str, State]) -> Iterator[PortRow]:
    alike: dict[PortRow, list[Port]] = defaultdict(list)
    for port in ports:
        rate = f"{port.rate.gb_s:g} Gb/s" if port.rate and port.active else ""
        row = PortRow(
            role=port.role or "none",
            because=port.because,
            layer=port.layer,
            state=states[port.name],
            text=port.state_text,
            rate=rate,
            firmware=_firmware(port),
        )
        alike[row].append(port)
    for row, members in alike.items():
        names = ", ".join(port.name for port in members)
        found = {port.name: _errors(port) for port in members}
        yield replace(row, names=names, errors=_together(found))


def _firmware(port: Port) -> str:
    if port.device is None:
        return ""
    board = port.device["board"]
    return f"{port.device['firmware'] or 'not read'}{f' ({board})' if board else ''}"


def _errors(port: Port) -> str:
    """The error counters of a port that are not 0, or that were not read."""
    if port.port is None:
        return NO_COUNTERS
    counters = {
        name: value
        for name, value in (port.port["counters"] or {}).items()
        if facts.counts_errors(name)
    }
    return _counted(counters)


def _counted(counters: Mapping[str, int | None]) -> str:
    """The counters that are not 0; nothing says that they are 0 where there are none."""
    if not counters:
        return "not read"
    return ", ".join(
        f"{name} {'not read' if value is None else value}"
        for name, value in counters.items()
        if value != 0
    )


def _together(found: Mapping[str, str]) -> str:
    """The text that all have in common, or each name with its own."""
    if len(set(found.values())) == 1:
        return next(iter(found.values())) or "0"
    return "; ".join(f"{name}: {text}" for name, text in found.items() if text)


def _links(cards: Iterable[GpuNvlinks]) -> Iterator[LinkRow]:
    alike: dict[tuple[str, str], list[GpuNvlinks]] = defaultdict(list)
    for card in cards:
        if card["links"] != []:
            alike[_active(card), _version(card)].append(card)
    for (active, version), members in alike.items():
        names = ", ".join(str(card["index"]) for card in members)
        errors = {f"GPU {card['index']}": _counted(card["errors"]) for card in members}
        yield LinkRow(names, active, version, _together(errors))


def _active(card: GpuNvlinks) -> str:
    """`18 of 18`, and which ones are not active."""
    links = card["links"]
    if links is None:
        return "not read"
    active = sum(link["active"] is True for link in links)
    down = [str(link["link"]) for link in links if link["active"] is False]
    unread = [str(link["link"]) for link in links if link["active"] is None]
    parts = [f"{active} of {len(links)}"]
    # All of a GPU without bridges are inactive.
    parts += [f"inactive: {', '.join(down)}"] if down and active else []
    parts += [f"not read: {', '.join(unread)}"] if unread else []
    return "; ".join([*parts, *(["MIG is on"] if card["mig"] else [])])


def _version(card: GpuNvlinks) -> str:
    known = {link["version"] for link in card["links"] or () if link["version"] is not None}
    # NVML numbers them from 1.0, with 2.2 between 2.0 and 3.0.
    names = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0"}
    return ", ".join(names.get(number, str(number)) for number in sorted(known))
