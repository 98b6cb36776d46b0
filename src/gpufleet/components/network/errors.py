"""The error counters of the ports: a classic one that has reached its maximum counts no more.

A total proves no fault: it counts since the counter was last cleared, and a boot or a new cable
leaves some. What a port does in a time is compared with what the host has recorded.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.catalog import network as facts
from gpufleet.components.base.ports import MANAGEMENT, Port
from gpufleet.components.base.registry import INSPECT, Evidence, Finding, check, shortened
from gpufleet.components.base.sections import Sections
from gpufleet.documents.plan import Plan
from gpufleet.documents.text import quoted
from gpufleet.documents.verdict import Verdict

from .reading import named, none_declared, not_judged, ports_of


@check(
    "network.errors",
    reads=("network", "kernel"),
    repair=INSPECT,
    severity="major",
    skip_reason=none_declared,
)
def counting(plan: Plan, observed: Sections) -> Iterator[Finding | Evidence]:
    """Each error counter of the network ports can be read, and has not reached its maximum."""
    found = ports_of(plan, observed)
    yield from not_judged(plan, observed, found)
    full: list[str] = []
    clear: list[Port] = []
    for group in found.groups:
        yield from _missing([port for port in group if port.port and port.role != MANAGEMENT])
    for port in found.judged:
        if port.port is None or port.role == MANAGEMENT:
            continue
        counters = port.port["counters"] or {}
        unread = sorted(
            name
            for name, value in {**counters, **(port.port["hw_counters"] or {})}.items()
            if value is None
        )
        if unread:
            yield Finding(
                f"Counters of {port.name} cannot be read: {shortened(unread)}",
                "on the host: read one by hand (below /sys/class/infiniband/"
                f"{quoted(_device(port))}/ports), and look for messages of its driver (dmesg)",
                verdict=Verdict.INCONCLUSIVE,
            )
        saturated = [name for name, value in counters.items() if _saturated(name, value)]
        errors = [name for name in saturated if facts.counts_errors(name)]
        if errors:
            clear.append(port)
            full.append(f"{port.name}: {', '.join(f'{n} {counters[n]}' for n in errors)}")
        shown = [
            f"{name} {value}" + (" (its maximum)" if name in saturated else "")
            for name, value in counters.items()
            if value and (facts.counts_errors(name) or name in saturated)
        ]
        if shown:
            yield Evidence(f"{port.name}: {', '.join(shown)}")
    bare = [port for port in found.judged if port.port and not port.port["counters"]]
    if silent := [
        port
        for port in bare
        if port.role != MANAGEMENT and port.port and not port.port["hw_counters"]
    ]:
        yield Finding(
            f"No counter of {named(silent, 12)} was read",
            "on the host: see below /sys/class/infiniband/DEVICE/ports/1 whether counters and"
            " hw_counters are there, and look for messages of the driver (dmesg)",
            verdict=Verdict.INCONCLUSIVE,
        )
    if bare := [port for port in bare if port not in silent]:
        yield Evidence(f"no classic error counters: {named(bare, 12)}")
    if full:
        number = clear[0].port["port"] if clear[0].port else 1
        yield Finding(
            "Error counters have reached their maximum and count no more, so that new errors of"
            f" these ports are not seen: {shortened(full, 8)}",
            f"clear them; on the host: perfquery -C {quoted(_device(clear[0]))} -P {number} -R"
            " (package infiniband-diags), for each port; then ./gpufleet verify",
            "\n".join(full),
            Verdict.INCONCLUSIVE,
        )


def _device(port: Port) -> str:
    return port.device["name"] if port.device else port.name


def _missing(ports: list[Port]) -> Iterator[Finding]:
    """Ports without counters that their siblings have; adapters of a kind have the same ones."""
    known: dict[tuple[str, str | None], set[str]] = {}
    for port in ports:
        known.setdefault(_kind(port), set()).update(_names(port))
    for port in ports:
        if lacking := known[_kind(port)] - _names(port):
            yield Finding(
                f"{port.name} has no counters that its siblings have: {shortened(sorted(lacking))}",
                "on the host: compare their files (ls /sys/class/infiniband/*/ports/*/counters)",
                verdict=Verdict.INCONCLUSIVE,
            )


def _names(port: Port) -> set[str]:
    counters = (port.port["counters"] if port.port else None) or {}
    return {name for name in counters if facts.counts_errors(name)}


def _kind(port: Port) -> tuple[str, str | None]:
    return port.layer, port.device["type"] if port.device else None


def _saturated(name: str, value: int | None) -> bool:
    limit = facts.counter_limit(name)
    return limit is not None and value is not None and value >= limit
