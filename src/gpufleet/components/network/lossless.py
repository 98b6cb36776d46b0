"""The lossless class of RoCE ports, where one is declared: flow control and ECN of its priority.

Flow control without ECN stops whole switches under congestion, and ECN without flow control loses
packets: a class that is set up by halves is slower than none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gpufleet.components.base.ports import INFINIBAND, Port
from gpufleet.components.base.registry import INSPECT, Evidence, Finding, check
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.network import Lossless
from gpufleet.documents.text import quoted
from gpufleet.documents.verdict import Verdict

from .reading import declared, have, named, none_declared, not_judged, odd, ports_of

# Settings that have to be on for the priority, with the commands that read and set them.
PARTS = {
    "pfc": ("priority flow control (PFC)", "mlnx_qos -i {interface}, or dcb pfc show dev"),
    "notify": (
        "ECN of the receiver (roce_np)",
        "cat /sys/class/net/{interface}/ecn/roce_np/enable/{priority}",
    ),
    "react": (
        "ECN of the sender (roce_rp)",
        "cat /sys/class/net/{interface}/ecn/roce_rp/enable/{priority}",
    ),
}


def _not_declared(plan: Plan) -> str | None:
    if skip_reason := none_declared(plan):
        return skip_reason
    rows = declared(plan)
    classes = [row for row in rows if row.get("lossless_priority") is not None]
    return None if classes else "gpu_expect.network[].lossless_priority: not set"


@check(
    "network.lossless",
    reads=("network", "kernel"),
    repair=INSPECT,
    severity="major",
    skip_reason=_not_declared,
)
def lossless(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """The declared lossless class of RoCE ports has flow control and ECN, on each port."""
    found = ports_of(plan, observed)
    yield from not_judged(plan, observed, found)
    for group in found.groups:
        row = declared(plan)[group[0].row] if group[0].row is not None else None
        priority = row.get("lossless_priority") if row else None
        if priority is None:
            continue
        yield from _infiniband([port for port in group if port.layer == INFINIBAND])
        ports = [port for port in group if port.layer != INFINIBAND]
        for key, (what, command) in PARTS.items():
            yield from _part(ports, key, priority, (what, command))
        yield from _marking(ports)


def _of(port: Port) -> Lossless | None:
    return port.interface.get("lossless") if port.interface else None


def _mask(port: Port, key: str) -> int | None:
    read = _of(port)
    value = {"pfc": read["pfc"], "notify": read["notify"], "react": read["react"]} if read else {}
    return value.get(key)


def _infiniband(ports: list[Port]) -> Iterator[Finding]:
    if ports:
        yield Finding(
            f"{have(ports, 'is an InfiniBand port', 'are InfiniBand ports')} and"
            f" {'needs' if len(ports) == 1 else 'need'} no lossless class; declared is"
            f" {ports[0].because}.lossless_priority",
            f"remove lossless_priority from {ports[0].because}, or set the adapter's LINK_TYPE",
        )


def _part(
    ports: list[Port], key: str, priority: int, about: tuple[str, str]
) -> Iterator[Finding | Evidence]:
    what, command = about
    off: dict[int, list[Port]] = defaultdict(list)
    unread: list[Port] = []
    for port in ports:
        mask = _mask(port, key)
        if mask is None:
            unread.append(port)
        elif not mask >> priority & 1:
            off[mask].append(port)

    def shown(port: Port) -> str:
        interface = quoted(port.interface["name"]) if port.interface else "INTERFACE"
        return command.format(interface=interface, priority=priority)

    for mask, own in off.items():
        yield Finding(
            f"{have(own, 'has', 'have')} {what} off for priority {priority}, on for"
            f" {_priorities(mask)}; declared is {own[0].because}.lossless_priority",
            f"set it as on the switch, and again at each boot (on the host: {shown(own[0])}"
            f" shows it); or correct {own[0].because}",
        )
    if unread:
        yield Finding(
            f"Whether {named(unread)} {'has' if len(unread) == 1 else 'have'} {what} on cannot be"
            " read",
            f"on the host: {shown(unread[0])}"
            + ("" if key == "pfc" else " (the drivers of MLNX_OFED and DOCA have these files)"),
            verdict=Verdict.INCONCLUSIVE,
        )
    on = len(ports) - len(unread) - sum(map(len, off.values()))
    if ports:
        yield Evidence(f"{what}: on for priority {priority} of {on} of {len(ports)} ports")


def _priorities(mask: int) -> str:
    return ", ".join(str(each) for each in range(8) if mask >> each & 1) or "none"


def _marking(ports: list[Port]) -> Iterator[Finding | Evidence]:
    """Findings where ports of a role take a packet's priority from different fields."""
    sources = {port.name: read["trust"] for port in ports if (read := _of(port))}
    classes = {port.name: read["traffic_class"] for port in ports if (read := _of(port))}
    yield from _alike(
        odd(ports, lambda port: sources.get(port.name)),
        "the field that gives a packet its priority",
        "mlnx_qos -i INTERFACE --trust dscp",
    )
    yield from _alike(
        odd(ports, lambda port: _class(classes.get(port.name))),
        "the traffic class of RoCE packets",
        "cat /sys/class/infiniband/DEVICE/tc/1/traffic_class",
    )


def _class(value: int | None) -> str | None:
    return "none" if value == -1 else None if value is None else str(value)


def _alike(
    values: tuple[str | None, dict[str, list[Port]]], what: str, command: str
) -> Iterator[Finding | Evidence]:
    common, others = values
    if others:
        listed = "; ".join(
            f"{have(own, 'has', 'have')} {value}" for value, own in sorted(others.items())
        )
        yield Finding(
            f"{what[:1].upper()}{what[1:]} is not the same on all ports: {listed}"
            + (f", the others have {common}" if common else ""),
            "set it on all ports as on the switch, and again at each boot (on the host:"
            f" {command})",
        )
    elif common:
        yield Evidence(f"{what}: {common}")
