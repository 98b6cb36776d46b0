"""The state of each host in its site's life: new, commissioning, production, quarantined, returned.

A state is a flag of its host in the history, with who set it, when and why, and the states before.
A host of the nightly run without one is in production; any other one is new.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, cast, get_args

from gpufleet.documents.commission import FleetHost, HostState, HostStateName
from gpufleet.documents.validator import faults

if TYPE_CHECKING:
    from .history import History

FLAG = "state"
STATES: tuple[HostStateName, ...] = get_args(HostStateName)
# The states before the current one that are kept.
MOST_FORMER = 50


class FlagStore(Protocol):
    """The part of `History` that states need."""

    def flag(self, host: str, name: str, value: str | None) -> None:
        """Store a named value of a host; None deletes it."""

    def flags(self, host: str) -> dict[str, str]:
        """The stored values of a host."""

    def flags_named(self, pattern: str) -> list[tuple[str, str, str]]:
        """Each (host, name, value) whose name matches a GLOB pattern."""


def recorded(history: FlagStore) -> dict[str, HostState]:
    """The recorded state of each host; one that is damaged is as none."""
    found = {}
    for host, _, value in history.flags_named(FLAG):
        if states := _parsed(value):
            found[host] = states[-1]
    return found


def former(history: FlagStore, host: str) -> list[HostState]:
    """All recorded states of a host, oldest first; the last one is the current one."""
    return _parsed(history.flags(host).get(FLAG, ""))


def set_state(history: FlagStore, host: str, state: HostState) -> None:
    """Record a state, unless the host is in it already."""
    states = [*former(history, host), state]
    if states[:-1] and _same(states[-2], state):
        return
    kept = states[-MOST_FORMER:]
    if not any(map(by_person, kept)):
        # The last state by a person stays known, however often `commission` was repeated since.
        kept[0] = next(filter(by_person, reversed(states)), kept[0])
    history.flag(host, FLAG, json.dumps(kept))


def by_person(state: HostState) -> bool:
    """Return whether a person set a state, not a command by its findings."""
    return "command" not in state


def last_by_person(history: FlagStore, host: str) -> HostState | None:
    """The last state of a host that a person set, None if there is none."""
    return next(filter(by_person, reversed(former(history, host))), None)


def state_of(host: str, known: dict[str, HostState], since: dict[str, str]) -> HostState:
    """The state of a host. `since`: the first nightly run of each host that has had one."""
    if host in known:
        return known[host]
    if host in since:
        return {
            "state": "production",
            "since": since[host],
            "by": "nightly",
            "why": "it is verified every night, and no state is recorded",
        }
    return {"state": "new", "since": "-", "by": "-", "why": "no state is recorded"}


def fleet(history: History, hosts: Iterable[str]) -> list[FleetHost]:
    """The state of each of these hosts, and of those with a recorded one."""
    known, since = recorded(history), first_nights(history)
    names = sorted({*hosts, *known})
    return [cast(FleetHost, {"host": name, **state_of(name, known, since)}) for name in names]


def sentences(known: Mapping[str, HostState], hosts: Iterable[str]) -> list[str]:
    """A sentence for each of these hosts that is recorded in another state than production."""
    return [
        f"{host} is {state['state']} since {state['since']}, by {state['by']}: {state['why']}"
        for host in hosts
        if (state := known.get(host)) and state["state"] != "production"
    ]


def first_nights(history: History) -> dict[str, str]:
    """By host, when its first nightly run started."""
    return dict(
        history.rows(
            "SELECT h.name, min(n.started) FROM looks l JOIN hosts h ON h.id = l.host"
            " JOIN nights n ON n.id = l.night WHERE n.kind = 'nightly' GROUP BY h.name"
        )
    )


def _same(known: HostState, state: HostState) -> bool:
    """Return whether two states differ in nothing but who set them, and when."""
    return (known["state"], known["why"], by_person(known)) == (
        state["state"],
        state["why"],
        by_person(state),
    )


def _parsed(value: str) -> list[HostState]:
    with suppress(ValueError, TypeError, RecursionError):
        found = json.loads(value)
        if isinstance(found, list) and not any(faults(HostState, row, "state") for row in found):
            return found
    return []
