"""Drain hosts that stay unhealthy, and resume them once healthy; only if configured.

A host is drained once the same check of severity critical FAILED or HUNG in `after_strikes` judged
nights in a row, and resumed by the first night in which the host is healthy. A night that could not
judge the host (UNREACHABLE, INCONCLUSIVE) does not count: neither as a strike nor as a recovery.
A silenced check drains no host, and a host that is drained stays so until all of its checks pass.
A host that is left in service all the same is reported once: a flag in the history remembers it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from gpufleet.components.checks import CHECKS
from gpufleet.fleet.inventory import inventory_hosts
from gpufleet.fleet.schedulers import (
    MARK,
    PROMISE,
    NodeState,
    Scheduler,
    SchedulerError,
    scheduler_of,
)
from gpufleet.report.summary import count_consequences

from .drift import NOT_THERE, Window
from .history import NIGHTLY, HistoryError, RecordedRun

OWNER = "nightly"
STRIKES = 2
# At most so many percent of all hosts are out of service, whoever drained them.
MOST_PERCENT = 10
# How many runs back judged nights are counted.
RUNS = 30
# Runs that are closer together count as one night: a second run by hand, or a delayed one.
NIGHT = timedelta(hours=12)
BAD, GOOD = "FH", "P-"
SEVERITY = "critical"
# The flag of a host that was reported to be left in service; its value says why.
LEFT = "left in service"
UNKNOWN, MOST = "unknown", "most_percent"


class OutOfService(NamedTuple):
    """The actions and findings of a night in the scheduler.

    `failed`: a sentence for each failure. `drained`: the hosts that gpufleet's nightly keeps out of
    service. `known`: a sentence for each host that was out of service before, with who and why.
    """

    failed: list[str]
    drained: list[str]
    known: list[str]


class RunHistory(Protocol):
    """The part of `History` that draining needs."""

    def nights(self, last: int | None = None, kind: str | None = None) -> list[RecordedRun]:
        """The last runs of a kind, oldest first."""

    def window(self, nights: list[RecordedRun]) -> Window:
        """The results of these runs."""

    def flag(self, host: str, name: str, value: str | None) -> None:
        """Store a named value of a host; None deletes it."""

    def flags_named(self, pattern: str) -> list[tuple[str, str, str]]:
        """Each (host, name, value) whose name matches a GLOB pattern."""


def after_night(
    history: RunHistory,
    settings: Mapping[str, Any],
    done: Callable[[str], object],
    scheduler: Scheduler | None = None,
) -> OutOfService:
    """Drain and resume hosts; return what failed, and which hosts are out of service.

    `settings`: `hook` (none, slurm, kubernetes), `after_strikes` (2), `most_percent` (10: at most
    so many of the hosts are out of service), `selector` (a `HostSelector`, for the node names).
    `done` gets a sentence for each action, as soon as that is done: the run may be stopped.
    """
    failed: list[str] = []
    drained: list[str] = []
    known: dict[str, NodeState] = {}
    if settings.get("hook", "none") == "none" and scheduler is None:
        return OutOfService(failed, [], [])
    hosts = inventory_hosts(settings["selector"])
    names = {host.name for host in hosts}
    window = history.window(history.nights(RUNS, NIGHTLY))
    with _collect(failed):
        scheduler = scheduler or scheduler_of(settings["hook"], hosts, settings["selector"])
        states, silent = scheduler.answering()
        failed += dict.fromkeys(map(str, silent.values()))
        for host, state in states.items():
            with _collect(failed):
                scheduler.clear_marks({host: state})
        known = {host: state for host, state in states.items() if state.unschedulable}
        healthy = [
            host
            for host, letters in window.hosts.items()
            if letters.endswith("P") and host in states and states[host].ours(OWNER)
        ]
        unavailable = sum(state.unavailable for state in states.values())
        for host in healthy:
            with _collect(failed):
                scheduler.resume(host)
                del known[host]
                unavailable -= not states[host].unresponsive
                done(f"{host} is healthy again and resumed: gpufleet had drained it.")
        limit = settings.get("after_strikes", STRIKES)
        percent = settings.get("most_percent", MOST_PERCENT)
        most = max(1, math.floor(len(states) * percent / 100))
        reported = {host: why for host, _, why in history.flags_named(LEFT)}
        left: dict[str, str] = {}
        over = {host for host, state in states.items() if state.unschedulable}
        over |= {host for host in reported if _may_serve(window, host)}
        over |= reported.keys() - names
        for host, nights, checks in worst_first(window, limit):
            reason = f"{_listed(causes(window, host, checks))} failed, {nights} nights in a row"
            unschedulable = host in states and states[host].unschedulable
            if host not in names or host in silent or unschedulable:
                continue
            if host not in states:
                left[host], why = UNKNOWN, "the scheduler does not know it (gpu_node_name)"
            elif unavailable >= most and not states[host].unresponsive:
                left[host] = MOST
                why = (
                    f"{unavailable} of {len(states)} hosts are out of service already, and"
                    f" most_percent is {percent}"
                )
            else:
                with _collect(failed):
                    scheduler.drain(host, f"gpufleet {OWNER}: {reason}")
                    unavailable += not states[host].unresponsive
                    over.add(host)
                    drained.append(host)
                    done(
                        f"{host} is drained: {reason}. Once repaired, a healthy night"
                        f" resumes it; by hand: {scheduler.resume_command(host)}"
                    )
                continue
            if reported.get(host) != left[host]:
                done(f"{host} is not drained ({reason}): {why}.")
        _remember(history, reported, left, over)
    return OutOfService(
        failed,
        sorted([*drained, *(host for host, state in known.items() if state.ours(OWNER))]),
        [_out_of_service(host, state) for host, state in sorted(known.items())],
    )


def _out_of_service(host: str, state: NodeState) -> str:
    """A sentence on a host out of service: who took it out, why, and until when."""
    if not state.ours() and state.unresponsive:
        why = f": {state.reason}" if state.reason else ""
        return f"{host} does not answer its scheduler, which gives it no jobs{why} ({state.state})."
    if not state.ours():
        why = state.reason or "no reason is given"
        return f"{host} is out of service, not by gpufleet: {why}. Who drained it resumes it."
    owner, _, why = state.reason.removeprefix(f"{MARK} ").removesuffix(PROMISE).partition(": ")
    until = "a healthy night resumes it" if owner == OWNER else f"gpufleet {owner} resumes it"
    return f"{host} is drained by gpufleet {owner}: {why}; {until}."


def _remember(
    history: RunHistory, reported: Mapping[str, str], left: Mapping[str, str], over: set[str]
) -> None:
    """Remember which hosts were reported to be left in service, until that is over."""
    for host, why in left.items():
        if reported.get(host) != why:
            history.flag(host, LEFT, why)
    for host in over & reported.keys():
        history.flag(host, LEFT, None)


def strikes(letters: Sequence[str], started: Sequence[datetime]) -> int:
    """Count the judged nights in a row in which a check was bad; 0 if the last run was not bad."""
    count, newest = 0, None
    if not letters or letters[-1] not in BAD:
        return count
    for letter, at in zip(reversed(letters), reversed(started), strict=True):
        if letter in GOOD:
            break
        if letter in BAD and (newest is None or newest - at >= NIGHT):
            count, newest = count + 1, at
    return count


def worst_first(window: Window, limit: int) -> list[tuple[str, int, list[str]]]:
    """Return (host, nights, checks) of each host with a critical check bad for `limit` nights."""
    started = [datetime.fromisoformat(night) for night in window.nights]
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for (host, check), line in window.checks.items():
        if (host, check) in window.silenced:
            continue
        nights = strikes([result.letter if result else NOT_THERE for result in line], started)
        if nights >= limit and _is_critical(check):
            found[host][check] = nights
    return sorted(
        ((host, max(checks.values()), sorted(checks)) for host, checks in found.items()),
        key=lambda it: (-it[1], it[0]),
    )


def _may_serve(window: Window, host: str) -> bool:
    """Return whether tonight judged a host's critical checks, and none of them is bad."""
    letters = [
        line[-1].letter
        for (name, check), line in window.checks.items()
        if name == host and _is_critical(check) and line[-1]
    ]
    return bool(letters) and all(letter in GOOD for letter in letters)


def _is_critical(check: str) -> bool:
    return check in CHECKS and CHECKS[check].severity == SEVERITY


def causes(window: Window, host: str, checks: Sequence[str]) -> list[str]:
    """The causes of these checks of a host tonight, the one that explains most checks first."""
    explained = {
        check: result.explained_by
        for (name, check), line in window.checks.items()
        if name == host and (result := line[-1]) and result.explained_by
    }
    count = Counter(explained.values())
    own = sorted(
        {explained.get(check, check) for check in checks}, key=lambda check: (-count[check], check)
    )
    return [
        f"{check} ({count_consequences(count[check])})" if count[check] else check for check in own
    ]


@contextmanager
def _collect(failed: list[str]) -> Iterator[None]:
    """Collect an error of the scheduler or the history, so that the next host is still handled."""
    try:
        yield
    except (SchedulerError, HistoryError) as error:
        failed.append(str(error))


def _listed(checks: Sequence[str]) -> str:
    return ", ".join(checks[:3]) + (" and others" if checks[3:] else "")
