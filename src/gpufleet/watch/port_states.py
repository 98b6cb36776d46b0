"""The ports of a host as one text of a night, and what changed since the text before. Pure.

    a088c20300ab0000 mlx5_0 compute InfiniBand up 400; a088c20300ab0001 mlx5_1 storage ...

A port is known by its GUID; a card that was replaced, or a virtual function that has another GUID
after each boot, by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpufleet.components.base.counters import port_guid
from gpufleet.components.base.ports import UNUSED, Port
from gpufleet.documents.nightly import Weight

from .change import Change

# The measure.
PORTS = "ports"
NOTHING = "none"
UP, DOWN, NOT_READ = "up", "down", "?"
_NO_ROLE, _NO_RATE = "-", "-"
# Ports of which nobody expects that they have a link.
_UNWANTED = {UNUSED, ""}
CABLE = "look at its cable, at both transceivers and at the switch's port; see network.ports"


@dataclass(frozen=True)
class PortState:
    """A port in one night. `state`: up, down or not read; `gb_s`: None where it was not read."""

    name: str
    role: str
    layer: str
    state: str
    gb_s: float | None

    @property
    def title(self) -> str:
        """`mlx5_0 (compute)`."""
        return f"{self.name} ({self.role})" if self.role else self.name


def text_of(ports: Iterable[Port]) -> str:
    """The measure of these ports: those of RDMA devices whose GUID was read."""
    rows = []
    for port in ports:
        if guid := port_guid(port):
            state = {True: UP, False: DOWN, None: NOT_READ}[port.active]
            # A name is one word, whatever a host calls its device.
            name, layer = ("_".join(text.split()) for text in (port.name, port.layer))
            gb_s = port.rate.gb_s if port.rate else None
            rows.append(_row(guid, PortState(name, port.role or "", layer, state, gb_s)))
    return "; ".join(sorted(rows)) or NOTHING


def _row(guid: str, port: PortState) -> str:
    rate = _NO_RATE if port.gb_s is None else f"{port.gb_s:g}"
    return f"{guid} {port.name} {port.role or _NO_ROLE} {port.layer} {port.state} {rate}"


def last_known(texts: Sequence[str]) -> str:
    """The last of these texts, with what it did not read of a port as it was read before."""
    ports = states(texts[-1])
    for text in reversed(texts[:-1]):
        if all(port.state == DOWN or (port.state == UP and port.gb_s) for port in ports.values()):
            break
        for guid, was in states(text).items():
            port = ports.get(guid)
            if port and port.state == NOT_READ:
                ports[guid] = replace(port, state=was.state, gb_s=was.gb_s)
            elif port and port.state == was.state == UP and not port.gb_s:
                ports[guid] = replace(port, gb_s=was.gb_s)
    return "; ".join(sorted(_row(*item) for item in ports.items())) or texts[-1]


def states(text: str) -> dict[str, PortState]:
    """The ports of the measure, by GUID; text that is no row of it is left out."""
    found = {}
    for row in text.split("; "):
        parts = row.split(" ")
        if len(parts) == 6 and parts[4] in {UP, DOWN, NOT_READ}:
            guid, name, role, layer, state, rate = parts
            try:
                gb_s = None if rate == _NO_RATE else float(rate)
            except ValueError:
                continue
            found[guid] = PortState(name, "" if role == _NO_ROLE else role, layer, state, gb_s)
    return found


def port_changes(
    host: str, before: Mapping[str, PortState], after: Mapping[str, PortState]
) -> Iterator[Change]:
    """Yield a change for each port that lost its link or has one again, is slower, or is gone."""

    def change(was: str | None, now: str | None, text: str, remedy: str, weight: Weight) -> Change:
        return Change("port", host, None, was, now, text, remedy, weight)

    new = {port.name: port for guid, port in after.items() if guid not in before}
    for guid, was in before.items():
        now = after.get(guid) or new.get(was.name)
        if now is None:
            yield change(
                was.name,
                None,
                f"The port {was.title} with GUID {guid} is not there, or was not read.",
                "look for its adapter (lspci) and for messages of its driver (dmesg); see"
                " network.ports",
                "note" if was.role in _UNWANTED else "bad",
            )
        elif {was.state, now.state} == {UP, DOWN}:
            lost = now.state == DOWN
            yield change(
                was.state,
                now.state,
                f"The port {now.title} {'has no link any more' if lost else 'has a link again'}.",
                CABLE if lost else "",
                ("note" if now.role in _UNWANTED else "bad") if lost else "good",
            )
        elif was.state == now.state == UP and was.gb_s and now.gb_s and was.gb_s != now.gb_s:
            slower = now.gb_s < was.gb_s
            yield change(
                f"{was.gb_s:g} Gb/s",
                f"{now.gb_s:g} Gb/s",
                f"The port {now.title} carries {now.gb_s:g} Gb/s, {was.gb_s:g} before.",
                CABLE if slower else "",
                "bad" if slower else "good",
            )
