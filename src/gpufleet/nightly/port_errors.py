"""Compare error counters of a host's ports and NVLinks with those of the night before. Pure.

The rates are averages over the time between two nights: `host_state.counters` says what of them is
known, and the catalog from which rate on they are a fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gpufleet.host_state.counters import Growth, Reading, rates

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
    owners: dict[tuple[str, str, str], dict[str, Sequence[float | None]]] = defaultdict(dict)
    for (host, name), line in lines.items():
        kind, owner, counter = name.removesuffix(END).split(".", 2)
        owners[host, kind, owner][counter] = line
    for (host, kind, owner), counters in owners.items():
        loads = counters.pop(LOAD, [])
        nights = [night for night, load in enumerate(loads) if load is not None]
        if len(nights) < 2 or nights[-1] != len(seconds) - 1:
            continue
        now, before = (_reading(loads, counters, night) for night in (nights[-1], nights[-2]))
        grown = rates(before, now, seconds[nights[-1]] - seconds[nights[-2]])
        beyond = [each for each in grown if each.limit]
        if beyond:
            yield _change(host, KINDS[kind], owner, beyond)


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
