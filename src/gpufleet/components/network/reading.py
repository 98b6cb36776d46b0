"""The ports that the checks of the network judge, and what keeps them from judging any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from gpufleet.components.base import ports as roles
from gpufleet.components.base import subjects
from gpufleet.components.base.ports import Port
from gpufleet.components.base.registry import (
    AS_ROOT,
    Evidence,
    Finding,
    is_hung,
    no_gpus,
    shortened,
)
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan, PlannedPorts
from gpufleet.documents.sections.network import Network
from gpufleet.documents.snapshot import SectionData
from gpufleet.documents.text import quoted
from gpufleet.documents.verdict import Verdict

Value = TypeVar("Value", bound=Hashable)
# The declaration by which a person has the ports judged.
DECLARATION = "gpu_expect: {network: [{ports: NAMES, role: compute, rate: GB_PER_S}]}"


def none_declared(plan: Plan) -> str | None:
    """The skip reason where no ports are declared: an empty list, or a host without GPUs."""
    rows = plan["expect"].get("network")
    if rows is not None:
        return None if rows else "gpu_expect.network: []"
    reason = no_gpus(plan)
    return reason and f"gpu_expect.network: not set, {reason}"


def declared(plan: Plan) -> list[PlannedPorts]:
    """The declared ports, by role."""
    return plan["expect"].get("network") or []


@dataclass(frozen=True)
class Ports:
    """The ports of a host, and the groups of those that are compared with each other."""

    network: Network
    all: list[Port]
    groups: list[list[Port]]

    @property
    def judged(self) -> list[Port]:
        """Every port of a group."""
        return [port for group in self.groups for port in group]


def ports_of(plan: Plan, observed: Sections) -> Ports:
    """The ports of a host that a check observes."""
    return with_roles(plan, observed.data)


def with_roles(plan: Plan, data: SectionData) -> Ports:
    """The ports with their roles. A container's are the machine's: only declared ones count."""
    network = data["network"]
    found = roles.of_plan(network, plan)
    container = data["kernel"].get("container") and not declared(plan)
    every = (roles.COMPUTE, roles.STORAGE, roles.MANAGEMENT)
    groups = roles.groups(found, every if declared(plan) else every[:2])
    return Ports(network, found, [] if container else groups)


def not_judged(plan: Plan, observed: Sections, ports: Ports) -> Iterator[Finding]:
    """Why ports are not judged: nothing was read, or nothing says what they should be."""
    network = ports.network
    if network["devices"] is None or network["interfaces"] is None:
        what = "RDMA devices" if network["devices"] is None else "network interfaces"
        yield Finding(
            f"The {what} were not read",
            "on the host: see whether /sys is mounted, and whether `ip link` answers",
            verdict=Verdict.INCONCLUSIVE,
            about=(subjects.rdma(""),),
        )
    if observed.data["kernel"].get("container") and not declared(plan):
        yield Finding(
            "gpu_expect.network: not set, and the ports are the machine's, not this container's",
            f"verify the machine itself, or declare {DECLARATION}",
            verdict=Verdict.NOT_DECLARED,
        )
        return
    yield from _unread(network)
    if not ports.groups and network["devices"] is not None:
        alone = [port.name for port in ports.all if port.device]
        shown = shortened(alone) if alone else "no RDMA device is on this host"
        line = DECLARATION.replace("NAMES", quoted(alone[0])) if alone else DECLARATION
        yield Finding(
            f"gpu_expect.network: not set, and no two ports have one role to be compared: {shown}",
            f"declare {line}, or gpu_expect: {{network: []}} for a host without such ports",
            verdict=Verdict.NOT_DECLARED,
        )


def _unread(network: Network) -> Iterator[Finding]:
    """Devices of which nothing was read, or that may be bridges to the NVSwitches."""
    for device in network["devices"] or []:
        if device["error"]:
            yield Finding(
                f"{device['name']} gave no values: {device['error']}",
                "on the host: look for its messages (dmesg | grep -i -e mlx5 -e infiniband); where"
                " its firmware hangs, only a reboot or a power cycle helps",
                verdict=Verdict.HUNG if is_hung(device) else Verdict.INCONCLUSIVE,
                about=(subjects.rdma(device["name"]),),
            )
    closed = [
        device["name"]
        for device in network["devices"] or []
        if device["ports"] is None and device["bridge"] is None and not device["error"]
    ]
    if closed:
        yield Finding(
            f"The ports of {shortened(closed)} were not read: these may be bridges to the"
            " NVSwitches, which only their product data (vpd) tells",
            AS_ROOT,
            verdict=Verdict.INCONCLUSIVE,
            about=tuple(map(subjects.rdma, closed)),
        )


def role_evidence(ports: Ports) -> Iterator[Evidence]:
    """The role of each port, with its reason."""
    lines: dict[tuple[str, str], list[str]] = {}
    for port in ports.all:
        lines.setdefault((port.role or "no role", port.because), []).append(port.name)
    for (role, because), names in lines.items():
        yield Evidence(f"{role}: {shortened(names, 12)} ({because})")
    if bridges := roles.bridges(ports.network):
        yield Evidence(f"bridges to the NVSwitches, not judged: {shortened(bridges, 12)}")


def named(ports: Iterable[Port], most: int = 8) -> str:
    """The names of ports."""
    return shortened([port.name for port in ports], most)


def have(ports: list[Port], one: str, more: str) -> str:
    """`mlx5_1 is`, or `mlx5_1, mlx5_2 are`."""
    return f"{named(ports)} {one if len(ports) == 1 else more}"


def odd(
    ports: list[Port], value: Callable[[Port], Value | None]
) -> tuple[Value | None, dict[Value, list[Port]]]:
    """The value that most ports have (None: no majority), and the ports of each other value."""
    by_value: dict[Value, list[Port]] = defaultdict(list)
    for port in ports:
        if (own := value(port)) is not None:
            by_value[own].append(port)
    if len(by_value) < 2:
        return next(iter(by_value), None), {}
    common = max(by_value, key=lambda each: len(by_value[each]))
    if 2 * len(by_value[common]) <= sum(map(len, by_value.values())):
        return None, dict(by_value)
    return common, {each: own for each, own in by_value.items() if each != common}
