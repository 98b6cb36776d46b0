"""Compare the error counters of a host's ports with those of the night before. Pure.

The rates are averages over the time between two nights: `host_state.counters` says what of them is
known, and the catalog from which rate on they are a fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from gpufleet.host_state.counters import Growth, Reading, rates

from .change import Change

CHECK = "network.errors"
# A measure is `port.GUID.COUNTER.reading`; that of the load says to which others belong.
LOAD, END = "load", ".reading"
REMEDY = (
    "look at the cable and the transceivers of this port (on the host: ibstat, mlxlink -c -e), at"
    " the other end, and at the kernel's messages (dmesg | grep mlx5)"
)


def error_changes(
    lines: Mapping[tuple[str, str], Sequence[float | None]], seconds: Sequence[float]
) -> Iterator[Change]:
    """Yield a change for each port whose errors grow faster than they may.

    `lines`: the values of each measure in some nights, oldest first; `seconds`: when each began.
    """
    for (host, guid), nights in growths(lines, seconds, last=1).items():
        beyond = [each for each in nights[0] if each.limit]
        if beyond:
            yield _change(host, guid, beyond)


def growths(
    lines: Mapping[tuple[str, str], Sequence[float | None]],
    seconds: Sequence[float],
    last: int | None = None,
) -> dict[tuple[str, str], list[list[Growth]]]:
    """Return {(host, GUID): by night, the growth of its counters since the reading before}.

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


def _change(host: str, guid: str, beyond: list[Growth]) -> Change:
    fatal = any(each.limit and each.limit.fatal for each in beyond)
    return Change(
        "errors",
        host,
        CHECK,
        None,
        ", ".join(f"{each.counter} +{each.growth:g}" for each in beyond),
        f"Errors of the port with GUID {guid} grow: {', '.join(each.text for each in beyond)}.",
        REMEDY,
        "bad" if fatal else "note",
        1 if fatal else 0,
    )
