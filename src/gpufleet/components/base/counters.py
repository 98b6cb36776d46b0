"""How fast error counters of ports and NVLinks grow between two readings of one host. Pure.

A reading belongs to one boot and one load of the port's driver: counters begin again with each. A
counter that is smaller than before was cleared, and one at its maximum counts no more: at most the
least growth is known.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gpufleet.catalog import network as facts
from gpufleet.documents.sections.gpu import Smi

from .ports import Port

State = Literal["known", "reset", "saturated"]


@dataclass(frozen=True)
class Reading:
    """The counters of one port, or of the NVLinks of one GPU.

    `load` is another number after each boot, and of a port after each load of its driver.
    """

    load: float
    counters: Mapping[str, float]


@dataclass(frozen=True)
class Growth:
    """How much a counter grew in a time, where that is known, and the limit that it is beyond.

    Of one that has reached its maximum it is the least growth.
    """

    counter: str
    state: State
    growth: float | None
    seconds: float
    limit: facts.Limit | None = None

    @property
    def text(self) -> str:
        """`symbol_error grew by 700 in 24 h`."""
        hours = self.seconds / 3600
        time = f"{hours:.3g} h" if hours >= 1 else f"{self.seconds:.0f} s"
        return f"{self.counter} grew by {self.growth or 0:g} in {time}"


def rates(before: Reading, now: Reading, seconds: float) -> list[Growth]:
    """The growth of each counter that both readings have and that has a limit."""
    if seconds <= 0:
        return []
    found = []
    for name, value in now.counters.items():
        limit = facts.rate_limit(name)
        if limit is None or name not in before.counters:
            continue
        most = facts.counter_limit(name)
        full = most is not None and value >= most
        growth = value - before.counters[name]
        if before.load != now.load or growth < 0:
            found.append(Growth(name, "reset", None, seconds))
        elif full and not growth:
            found.append(Growth(name, "saturated", None, seconds))
        else:
            # A counter that has reached its maximum in the meantime grew by at least this much.
            # Two readings within the time of a limit say nothing of the rest of that time.
            beyond = growth * limit.seconds > limit.more * max(seconds, limit.seconds)
            found.append(
                Growth(
                    name,
                    "saturated" if full else "known",
                    growth,
                    seconds,
                    limit if beyond else None,
                )
            )
    return found


def readings(ports: Iterable[Port], boot_id: str | None) -> Iterator[tuple[str, Reading]]:
    """Pairs of a port's GUID and its reading, for each port of an RDMA device."""
    for each in ports:
        port, guid = each.port, port_guid(each)
        if port is None or guid is None or boot_id is None:
            continue
        changes = each.interface["carrier_changes"] if each.interface else None
        counters = {
            "carrier_changes": changes,
            **(port["hw_counters"] or {}),
            **(port["counters"] or {}),
        }
        known = {
            name: float(value)
            for name, value in counters.items()
            if value is not None and facts.rate_limit(name)
        }
        # An interface gets another number with each load of its driver.
        number = each.interface["index"] if each.interface else None
        if known:
            yield guid, Reading(float(zlib.crc32(f"{boot_id} {number}".encode())), known)


def link_readings(smi: Smi, boot_id: str | None) -> Iterator[tuple[str, Reading]]:
    """Pairs of a GPU's UUID and the reading of its NVLinks' counters, where NVML reports links.

    A driver that was loaded again starts its counters at 0: a smaller value says so.
    """
    uuids = {card["address"] or "none": card["uuid"] for card in smi["devices"]}
    for row in smi.get("nvlink") or []:
        uuid = uuids.get(row["address"] or "")
        known = {name: float(value) for name, value in row["errors"].items()}
        if uuid and known and boot_id is not None:
            yield uuid, Reading(float(zlib.crc32(boot_id.encode())), known)


def port_guid(port: Port) -> str | None:
    """The port's GUID: the last half of its first GID, else its device's and its number.

    Where the first GID is not in use, the others hold IP addresses, which change.
    """
    if port.device is None or port.port is None:
        return None
    gids, node = port.port["gids"], port.device["guid"]
    if gids and gids[0]["index"] == 0 and len(parts := gids[0]["gid"].split(":")) == 8:
        return "".join(parts[4:])
    return f"{node.replace(':', '')}-{port.port['port']}" if node else None
