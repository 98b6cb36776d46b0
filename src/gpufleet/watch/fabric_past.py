"""The history of ports, NVLinks and fabric tests: `gpufleet history --fabric`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from gpufleet.components.base.counters import Growth
from gpufleet.documents.text import natural

from . import columns, port_states, versions
from .drift import NOT_THERE
from .fabric_history import recorded_bandwidths, recorded_tests
from .history import COUNTERS, History, RecordedRun
from .port_errors import END, LOAD, growths
from .port_states import PORTS
from .retention import read_time

Document = dict[str, Any]

# A port's letter of a night: not there or not recorded is `NOT_THERE`.
UP, DOWN, ERRORS, SLOWER, UNREAD = "u", "d", "e", "s", "?"


def hosts_past(
    history: History, nights: list[RecordedRun], host: str | None = None
) -> dict[str, Document]:
    """The `ports` by GUID and `nvlinks` by the GPU's address of each host, a value for each night.

    `nvlink_errors` has by UUID the GPUs whose counters grew, as `errors` of a port.
    A port has `name`, `role` and `layer` as last recorded; `nights`: a letter each; `gb_s`; and in
    `errors`, of each counter that grew, by how much since the reading before, null: not known.
    """
    states, links = cache(port_states.states), cache(versions.links)
    errors = _errors(history, nights, host)
    found: dict[str, Document] = {}
    for name, texts in history.texts(nights, PORTS, host).items():
        read = [states(text) if text else {} for text in texts]
        ports = {guid: port for ports in read for guid, port in ports.items()}
        found.setdefault(name, {})["ports"] = {
            guid: _port([ports.get(guid) for ports in read], errors.get((name, guid), []))
            for guid in sorted(ports, key=lambda guid: natural(ports[guid].name))
        }
    for name, texts in history.texts(nights, "nvlinks", host).items():
        counts = [links(text) if text else {} for text in texts]
        found.setdefault(name, {})["nvlinks"] = {
            address: [count.get(address) for count in counts]
            for address in sorted({address for count in counts for address in count})
        }
    for (name, owner), grown in errors.items():
        if owner not in found.get(name, {}).get("ports", {}) and (counters := _counters(grown)):
            found.setdefault(name, {}).setdefault("nvlink_errors", {})[owner] = counters
    return {name: found[name] for name in sorted(found)}


def _port(
    line: Sequence[port_states.PortState | None], grown: Sequence[Sequence[Growth]]
) -> Document:
    last = next(port for port in reversed(line) if port)
    rates = [port.gb_s if port and port.state == port_states.UP else None for port in line]
    best = max((rate for rate in rates if rate), default=0.0)
    letters = ""
    for night, port in enumerate(line):
        rate, beyond = rates[night], any(each.limit for each in (grown or [()] * len(line))[night])
        if port is None:
            letters += NOT_THERE
        elif port.state != port_states.UP:
            letters += DOWN if port.state == port_states.DOWN else UNREAD
        elif beyond:
            letters += ERRORS
        else:
            letters += SLOWER if rate and rate < best else UP
    return {
        "name": last.name,
        "role": last.role or None,
        "layer": last.layer,
        "nights": letters,
        "gb_s": rates,
        "errors": _counters(grown),
    }


def _counters(grown: Sequence[Sequence[Growth]]) -> dict[str, list[float | None]]:
    """The growth of each counter that grew, in each night; None where it is not known."""
    counters = sorted({each.counter for night in grown for each in night if each.growth})
    return {
        counter: [
            next((each.growth for each in night if each.counter == counter), None)
            for night in grown
        ]
        for counter in counters
    }


def _errors(
    history: History, nights: list[RecordedRun], host: str | None
) -> dict[tuple[str, str], list[list[Growth]]]:
    """The growth of the counters of hosts with one that changed, by port or GPU; most never do."""
    seconds = [read_time(night.started).timestamp() for night in nights]
    changed = columns.changed(
        history,
        nights,
        lambda name: name.endswith(END) and name != f"{LOAD}{END}",
        None if host is None else {host},
    )
    return growths(history.numbers(nights, COUNTERS, changed), seconds)


def tests_past(history: History, last: int, host: str | None = None) -> list[Document]:
    """Return the last fabric tests, oldest first: of all hosts, or those that a host took part in.

    `bandwidths` has for each collective and size the slowest and the fastest group.
    """
    tests = recorded_tests(history, last)
    by_test: dict[int, dict[tuple[str, int], list[Any]]] = {test.id: {} for test in tests}
    for row in recorded_bandwidths(history, tests, host):
        by_test[row.test].setdefault((row.collective, row.bytes), []).append(row)
    return [
        {
            "started": test.started,
            "verdict": test.verdict.value,
            "scope": test.scope,
            "algorithm": test.algorithm or None,
            "ranks": test.ranks or None,
            "bandwidths": [
                {"collective": collective, "bytes": size, **_extremes(rows)}
                for (collective, size), rows in by_test[test.id].items()
            ],
            "culprits": list(test.culprits),
        }
        for test in tests
        if by_test[test.id] or host is None
    ]


def _extremes(rows: Sequence[Any]) -> Document:
    known = [row for row in rows if row.gb_per_s is not None]
    slowest = min(known, key=lambda row: row.gb_per_s, default=None)
    fastest = max(known, key=lambda row: row.gb_per_s, default=None)
    return {
        "groups": len(rows),
        "unknown": len(rows) - len(known),
        "least_gb_per_s": slowest and slowest.gb_per_s,
        # All hosts together need no list.
        "slowest": list(slowest.hosts) if slowest and len(slowest.hosts) <= 2 else None,
        "most_gb_per_s": fastest and fastest.gb_per_s,
    }
