"""The network ports: each that is wanted carries data, at its rate.

A port that is down may never have had a cable. Without a declaration it is a fault only if it has
had a link since the driver was loaded, or if most ports that serve the GPUs have one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gpufleet.catalog import network as facts
from gpufleet.components.base import ports as roles
from gpufleet.components.base import subjects
from gpufleet.components.base.ports import COMPUTE, INFINIBAND, Port
from gpufleet.components.base.registry import HARDWARE, Evidence, Finding, check, shortened
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan, PlannedPorts
from gpufleet.documents.sections.network import Network
from gpufleet.documents.text import quantity, quoted
from gpufleet.documents.verdict import Verdict

from .beside import without_adapter
from .legs import lost_legs
from .locked_memory import locked_memory
from .reading import (
    Ports,
    declared,
    have,
    named,
    none_declared,
    not_judged,
    ports_of,
    role_evidence,
)

CABLE = (
    "look at its cable, at both transceivers and at the switch's port (on the host: ibstat, or"
    " ethtool and `ip link`); of a cloud's instance: report it to the provider"
)
SET_UP = "set its interface up (on the host: ip link set {} up); if it stays down, "
INFINIBAND_CLASS = "0x0207"


@check(
    "network.ports",
    reads=("network", "kernel"),
    repair=HARDWARE,
    severity="critical",
    skip_reason=none_declared,
)
def carrying(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each network port carries data, at the rate that is declared or that its siblings have."""
    found = ports_of(plan, observed)
    yield from not_judged(plan, observed, found)
    yield from role_evidence(found)
    yield from _missing(declared(plan), found)
    yield from locked_memory(found, observed)
    if found.groups or not observed.data["kernel"].get("container"):
        yield from _without_device(found.network)
    for group in found.groups:
        row = declared_row(plan, group)
        yield from _states(group, wanted=row is not None)
        yield from _without_address(group)
        yield from lost_legs(group, found)
        yield from without_adapter(group, found.network, observed)
        yield from _rates(group, row)
        if row and row["link_layer"]:
            others = [port for port in group if port.layer != row["link_layer"]]
            if others:
                yield Finding(
                    f"{have(others, 'has', 'have')} link layer {others[0].layer}, declared is"
                    f" {row['link_layer']}",
                    "set the adapter's LINK_TYPE (mlxconfig) and restart its firmware, or correct"
                    " gpu_expect.network",
                )
        rates = sorted({port.port["rate"] or "" for port in group if port.port and port.active})
        up = sum(bool(port.active) for port in group)
        yield Evidence(f"{named(group, 12)}: {up} of {len(group)} active, {', '.join(rates)}")


def declared_row(plan: Plan, group: list[Port]) -> PlannedPorts | None:
    """The declaration of a group of ports; None where its role is derived."""
    number = group[0].row
    return None if number is None else declared(plan)[number]


def _missing(rows: list[PlannedPorts], found: Ports) -> Iterator[Finding]:
    """Declared ports that are not there."""
    for number, row in enumerate(rows):
        own = [port for port in found.all if port.row == number]
        absent = [each for each in row["ports"] if not roles.matched({**row, "ports": [each]}, own)]
        if row["role"] == roles.UNUSED and not row["count"]:
            continue
        remedy = (
            "on the host: look for the adapter (lspci) and for messages of its driver (dmesg |"
            f" grep mlx5), reboot; or correct gpu_expect.network[{number}]"
        )
        if row["count"] is not None and len(own) < row["count"]:
            yield Finding(
                f"{quantity(len(own), 'port')} {'matches' if len(own) == 1 else 'match'}"
                f" {shortened(row['ports'])}, declared are {row['count']}",
                remedy,
            )
        elif absent and not (row["count"] is not None and len(own) >= row["count"]):
            yield Finding(f"The declared port {shortened(absent)} is not there", remedy)


def _without_device(network: Network) -> Iterator[Finding]:
    """Adapters without a driver, or without an RDMA device, where others of their kind have one."""
    devices = network["devices"]
    if devices is None:
        return
    # A bond of two functions has one RDMA device.
    cards = {(device["address"] or "").rpartition(".")[0] for device in devices}
    kinds = {(device["vendor"], device["device"]) for device in devices if device["vendor"]}
    loaded = (network["modules"] or {}).get("mlx5_ib")
    lost = [
        row
        for row in network["adapters"]
        if row["address"].rpartition(".")[0] not in cards
        # Another driver (vfio-pci) has given it to a virtual machine.
        and row["driver"] in (None, "mlx5_core", "efa")
        and facts.carries_rdma(row["vendor"])
        and (
            (row["vendor"], row["device"]) in kinds
            or (row["class"].startswith(INFINIBAND_CLASS) and not devices)
        )
    ]
    bare = [row["address"] for row in lost if row["driver"] is None]
    if bare:
        yield Finding(
            f"No driver has the adapter at {shortened(bare)}, others of its kind have one",
            "on the host: look for the driver's messages of it (dmesg); reboot, and if it stays so,"
            " have the adapter serviced",
        )
    silent = [row["address"] for row in lost if row["driver"] is not None]
    if silent:
        yield Finding(
            (
                f"The adapter at {silent[0]} is no RDMA device"
                if len(silent) == 1
                else f"The adapters at {shortened(silent)} are no RDMA devices"
            )
            + ("" if loaded or devices else ": the module mlx5_ib is not loaded"),
            "on the host: modprobe mlx5_ib; if it is loaded, look for its messages (dmesg)",
            about=() if loaded else (f"{subjects.MODULE}/mlx5_ib",),
        )


def _states(group: list[Port], *, wanted: bool) -> Iterator[Finding | Evidence]:
    unread = [port for port in group if port.active is None or port.layer == roles.NOT_READ]
    if unread:
        yield Finding(
            f"State or link layer of {named(unread)} cannot be read",
            "on the host: read it by hand (ibstat, `ip link`), and look for messages of its driver"
            " (dmesg)",
            verdict=Verdict.INCONCLUSIVE,
        )
    down = [port for port in group if port.active is False]
    spare = set() if wanted else _never_cabled(group)
    reasons = lost_links(group, wanted=wanted)
    faults: dict[tuple[str, str], list[Port]] = defaultdict(list)
    undecided = []
    for port in down:
        if reason := reasons.get(port.name):
            faults[port.state_text, reason].append(port)
        elif port.name not in spare:
            undecided.append(port)
    for (state, reason), ports in faults.items():
        if ports[0].signal and ports[0].layer == INFINIBAND:
            yield Finding(
                f"{have(ports, 'has', 'have')} a link ({state}), but no subnet manager has set it"
                f" up; {reason}",
                "see whether a subnet manager runs in this fabric (on the host: sminfo), and what"
                " it logs of this port",
            )
        else:
            unset = [port.interface for port in ports if port.disabled and port.interface]
            yield Finding(
                f"{have(ports, 'is', 'are')} down ({state}): {reason}",
                (SET_UP.format(quoted(unset[0]["name"])) if unset else "") + CABLE,
            )
    if undecided:
        yield Finding(
            f"{have(undecided, 'is', 'are')} down ({undecided[0].state_text}), and nothing says"
            " whether it should have a link; gpu_expect.network: not set",
            f"declare gpu_expect: {{network: [{{ports: {quoted(undecided[0].name)}, role: unused}},"
            f" {{ports: ..., role: {undecided[0].role}}}]}}",
            verdict=Verdict.NOT_DECLARED,
        )
    idle = [port for port in down if port.name in spare and not port.was_up]
    if idle:
        yield Evidence(f"never cabled on any card, not judged: {named(idle, 12)}")


def _without_address(group: list[Port]) -> Iterator[Finding]:
    """Active InfiniBand ports that can address nobody: without a partition, or without a GID.

    The subnet manager gives an active port both: IBA specification, volume 1, chapters 4 and 14.
    """
    ports = [port for port in group if port.port and port.active and port.layer == INFINIBAND]
    for key, what in (("pkeys", "partition key"), ("gids", "GID")):
        bare = [port for port in ports if port.port and port.port[key] == []]  # type: ignore[literal-required]
        if bare:
            yield Finding(
                f"{have(bare, 'is', 'are')} active and {'has' if len(bare) == 1 else 'have'} no"
                f" {what}: nothing can be sent",
                "see what the subnet manager logs of this port, and in which partition it puts it"
                " (on the host: smpquery pkeys, show_gids); then restart the port's driver",
            )


def lost_links(group: list[Port], *, wanted: bool) -> dict[str, str]:
    """The reasons why ports that are down are faults, by port; `wanted`: the group is declared."""
    up = [port for port in group if port.active]
    down = [port for port in group if port.active is False]
    spare = set() if wanted else _never_cabled(group)
    reasons = {
        port.name: _fault(port, up, down, wanted=wanted, spare=port.name in spare) for port in down
    }
    return {name: reason for name, reason in reasons.items() if reason}


def _fault(
    port: Port, up: list[Port], down: list[Port], *, wanted: bool, spare: bool
) -> str | None:
    """Why it is a fault that a port is down; None if it may be meant so."""
    if wanted:
        return f"it is declared in {port.because}"
    if port.was_up and (port.role == COMPUTE or not port.disabled):
        return "it has had a link since its driver was loaded"
    if spare:
        return None
    if port.signal and port.layer == INFINIBAND:
        return "its cable ends at a port that answers"
    if port.role == COMPUTE:
        # Second ports of all cards may have no cable: first ports are compared with first ports.
        alike = [[each for each in ports if each.position == port.position] for ports in (up, down)]
        for active, inactive in ((up, down), alike):
            if len(active) > 1 and len(active) > len(inactive):
                return f"{len(active)} ports of role {port.role} are active"
    return None


def _never_cabled(group: list[Port]) -> set[str]:
    """The ports at a position of a card at which no card of the group has a link.

    Most cards have to be in use: a card without any link says nothing about its second port.
    """
    by_position: dict[tuple[str, int], list[Port]] = defaultdict(list)
    for port in group:
        by_position[port.position].append(port)
    used = {port.card for port in group if port.active}
    return {
        port.name
        for members in by_position.values()
        if not any(port.active for port in members)
        and 2 * len((cards := {port.card for port in members}) & used) > len(cards)
        for port in members
    }


def slower(group: list[Port], row: PlannedPorts | None) -> list[Port]:
    """The active ports of a group that carry less than declared, or than the best of them."""
    rates = {port.name: rate.gb_s for port in group if port.active and (rate := port.rate)}
    wanted = row["rate"] if row and row["rate"] else max(rates.values(), default=0)
    return [port for port in group if port.name in rates and rates[port.name] < wanted]


def _rates(group: list[Port], row: PlannedPorts | None) -> Iterator[Finding]:
    active = [port for port in group if port.active]
    rates = {port.name: rate for port in active if (rate := port.rate)}
    unread = [port for port in active if port.name not in rates]
    if unread and (row is None or row["rate"] or row["role"] == COMPUTE):
        yield Finding(
            f"The rate of {named(unread)} cannot be read",
            "on the host: read it by hand (ibstat, ethtool)",
            verdict=Verdict.INCONCLUSIVE,
        )
    if not rates:
        return
    slow = slower(group, row)
    if not slow:
        return
    shown = "; ".join(dict.fromkeys(_rate_text(port) for port in slow))
    if row and row["rate"] and all(rate.unknown for rate in rates.values()):
        yield Finding(
            f"The kernel says {shown} of {named(slow)}, declared are {row['rate']:g} Gb/s: one that"
            " does not know a speed prints the slowest",
            "on the host: read the rate by `mlxlink -d DEVICE`, or update the kernel or its driver",
            verdict=Verdict.INCONCLUSIVE,
        )
        return
    others = [port for port in active if port not in slow]
    compared = (
        f"declared are {row['rate']:g} Gb/s in {slow[0].because}"
        if row and row["rate"]
        else f"{have(others, 'carries', 'carry')} {_rate_text(others[0])}"
    )
    yield Finding(
        f"{have(slow, 'carries', 'carry')} {shown}: {compared}",
        f"{CABLE}; if it is by design, declare gpu_expect: {{network: [{{ports:"
        f" {quoted(slow[0].name)}, rate: {rates[slow[0].name].gb_s:g}}}, ...]}}",
    )


def _rate_text(port: Port) -> str:
    if port.port is not None:
        return port.port["rate"] or "no rate"
    return f"{port.rate.gb_s:g} Gb/s" if port.rate else "no rate"
