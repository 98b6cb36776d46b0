"""Compare error counters of a host's ports and NVLinks with those of the night before. Pure.

The rates are averages over the time between two nights: `components.base.counters` says what of
them is known, and the catalog from which rate on they are a fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from gpufleet.components.base.counters import Growth, Reading, rates

from .change import Change

# A measure is `port.GUID.COUNTER.reading`; that of the load says to which others belong.
LOAD, END = "load", ".reading"


class Kind(NamedTuple):
    """Whose counters they are, the check that reads them, and what to do."""

    owner: str
    check: str
    remedy: str


KINDS = {
    "port": Kind(
        "the port with GUID",
        "network.errors",
        "look at the cable and the transceivers of this port (on the host: ibstat, mlxlink -c -e),"
        " at the other end, and at the kernel's messages (dmesg | grep mlx5)",
    ),
    "nvlink": Kind(
        "the NVLinks of",
        "gpu.nvlink",
        "see kernel.log for Xid 74 and SXids (on the host: nvidia-smi nvlink -e shows the link);"
        " drain the host and reset its GPUs; if they grow again, have the board serviced",
    ),
}


def error_changes(
    lines: Mapping[tuple[str, str], Sequence[float | None]], seconds: Sequence[float]
) -> Iterator[Change]:
    """Yield a change for each port, or GPU with NVLinks, whose errors grow faster than they may.

    `lines`: the values of each measure in some nights, oldest first; `seconds`: when each began.
    """
    for name, kind in KINDS.items():
        own = {key: line for key, line in lines.items() if key[1].startswith(f"{name}.")}
        for (host, owner), nights in growths(own, seconds, last=1).items():
            beyond = [each for each in nights[0] if each.limit]
            if beyond:
                yield _change(host, kind, owner, beyond)


def growths(
    lines: Mapping[tuple[str, str], Sequence[float | None]],
    seconds: Sequence[float],
    last: int | None = None,
) -> dict[tuple[str, str], list[list[Growth]]]:
    """Return {(host, GUID of a port or UUID of a GPU): by night, the growth since the one before}.

    Of all nights, or the last ones; a night without a reading, or without one before, has none.
    """
    ports: dict[tuple[str, str], dict[str, Sequence[float | None]]] = defaultdict(dict)
    for (host, name), line in lines.items():
        _, guid, counter = name.removesuffix(END).split(".", 2)
        ports[host, guid][counter] = line
    begin = 0 if last is None else max(0, len(seconds) - last)
    found: dict[tuple[str, str], list[list[Growth]]] = {}
    for port, counters in ports.items():
        loads = counters.pop(LOAD, [])
        read = [night for night, load in enumerate(loads) if load is not None]
        found[port] = [[] for _ in seconds[begin:]]
        for before, now in pairwise(read):
            if now >= begin:
                found[port][now - begin] = rates(
                    _reading(loads, counters, before),
                    _reading(loads, counters, now),
                    seconds[now] - seconds[before],
                )
    return found


def _reading(
    loads: Sequence[float | None], counters: Mapping[str, Sequence[float | None]], night: int
) -> Reading:
    values = {name: line[night] for name, line in counters.items()}
    return Reading(
        loads[night] or 0.0, {name: value for name, value in values.items() if value is not None}
    )


def _change(host: str, kind: Kind, owner: str, beyond: list[Growth]) -> Change:
    fatal = any(each.limit and each.limit.fatal for each in beyond)
    return Change(
        "errors",
        host,
        kind.check,
        None,
        ", ".join(f"{each.counter} +{each.growth:g}" for each in beyond),
        f"Errors of {kind.owner} {owner} grow: {', '.join(each.text for each in beyond)}.",
        kind.remedy,
        "bad" if fatal else "note",
        1 if fatal else 0,
    )
