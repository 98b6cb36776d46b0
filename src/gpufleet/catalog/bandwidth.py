"""The least bus bandwidth of healthy machines (catalog/data/bandwidth.yml)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.documents.types import Row
from gpufleet.fabric.threshold import Floor

from . import facts, model_names, pci

_GBIT_PER_GB = 8


@dataclass(frozen=True)
class Machine:
    """The GPUs of a host that take part in a test, and the rates of the ports that they use.

    `device`: the PCI device id of its GPUs, `name` their name. `bridged`: NVLinks are declared for
    them. `ports_gbit_s`: in Gb/s.
    """

    device: str | None
    name: str | None
    gpus: int
    bridged: bool = False
    ports_gbit_s: tuple[float, ...] = ()


def applies(operation: str, algorithm: str, size: int, ranks: int) -> bool:
    """Return whether the figures hold for a collective of so many bytes among so many ranks."""
    rule = _table()["applies"]
    return (
        operation == rule["operation"]
        and algorithm in rule["algorithms"]
        and size >= rule["bytes"]
        and ranks > 1
        and size / ranks >= rule["bytes_per_rank"]
    )


def within(machine: Machine) -> Floor | None:
    """The floor of all GPUs of one host; None where no row has such a machine."""
    row = _row(machine)
    if row is None or row["gpus"] != machine.gpus or "gb_s" not in row:
        return None
    return Floor(row["gb_s"], _because(f"{machine.gpus} {row['names'][0]} of one host", row))


def between(machines: Sequence[Machine]) -> Floor | None:
    """The floor of a group of hosts: that of the weakest; None where one of them has none."""
    found = [_between(machine) for machine in machines]
    known = [floor for floor in found if floor]
    return min(known, key=lambda floor: floor.gb_s) if known and len(known) == len(found) else None


def _between(machine: Machine) -> Floor | None:
    row, rule = _row(machine), _table()["adapters"]
    if row is None or machine.gpus > row["gpus"]:
        return None
    if "hosts" in row:
        what = f"hosts with {row['gpus']} {row['names'][0]}"
        return Floor(row["hosts"], _because(what, row)) if machine.gpus == row["gpus"] else None
    rates = machine.ports_gbit_s
    if not rates:
        return None
    carried = rule["share"] * sum(min(rate / _GBIT_PER_GB, row["port"]) for rate in rates)
    if carried >= row["gb_s"]:
        return Floor(row["gb_s"], _because(f"hosts with {row['gpus']} {row['names'][0]}", row))
    ports = f"{len(rates)} ports" if len(rates) > 1 else "a port"
    what = f"{rule['share']:.0%} of what {ports} of hosts with {row['names'][0]} can carry"
    return Floor(float(f"{carried:.4g}"), _because(what, rule))


def past_tests() -> int:
    """From how many earlier tests on their median is what is usual."""
    return int(_table()["past"]["tests"])


def past_share() -> float:
    """The part of what is usual below which a bandwidth is slow."""
    return float(_table()["past"]["share"])


def _because(what: str, row: Row) -> str:
    return f"the floor of {what} (catalog bandwidth.yml: {', '.join(row['source'])})"


def _row(machine: Machine) -> Row | None:
    table, name = _table(), machine.name or ""
    if model_names.is_share(name):
        return None
    number = pci.digits(machine.device) if machine.device else None
    found = next((row for row in table["models"] if number in row["devices"]), None)
    known = found or (number and pci.device(number))
    if not known and not any(model_names.contains(name, other) for other in table["not"]):
        found = model_names.row_of(table["models"], name)
    return found if found and (machine.bridged or not found.get("bridged")) else None


def _table() -> Row:
    return facts.document("bandwidth.yml")
