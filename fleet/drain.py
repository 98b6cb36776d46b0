"""What the nightly does to hosts that stay bad, where it is asked to: drain them, and back again.

A host is drained once it FAILED or HUNG in so many judged nights in a row, and given back by the
first night in which all holds. A night that could not judge it (UNREACHABLE, INCONCLUSIVE) neither
counts nor forgives: a host that is away takes no jobs anyway, and what was not seen is no reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from verify.wishes import declared

from .hooks import Hook, HookError, hook

ROOM = "nightly"
STRIKES = 2
# Of all hosts, in percent: what is out of service already counts, whoever took it.
MOST_PERCENT = 10
# So many nights back it looks for those that judged a host.
NIGHTS = 14
BAD, GOOD = "FH", "P"


class Past(Protocol):
    """What is needed of the history: the PAST document."""

    def past(self, last: int = 30) -> dict[str, Any]:
        """Letters per host and night."""


def after_night(
    changes: Mapping[str, Any], history: Past, settings: Mapping[str, Any],
    made: Hook | None = None,
) -> list[str]:
    """Drain and give back; says what it did, a sentence for each host.

    `settings`: `hook` (none, slurm, kubernetes), `after_strikes` (2), `most_percent` (10: of the
    hosts never more are out of service), `question` (verify.wishes.Question, for nodes' names).
    """
    if settings.get("hook", "none") == "none" and made is None:
        return []
    hosts = declared(settings["question"])
    known = history.past(max(NIGHTS, 2 * settings.get("after_strikes", STRIKES)))["hosts"]
    letters = {host.name: known[host.name]["verdicts"] for host in hosts if host.name in known}
    said: list[str] = []
    try:
        there = made or hook(settings["hook"], hosts, settings["question"])
        _act(there, letters, changes, settings, said)
    except HookError as error:
        said.append(f"Nothing was drained or given back any more: {error}")
    return said


def strikes(letters: str) -> int:
    """How many judged nights in a row were bad, up to a last night that was."""
    if not letters.endswith(tuple(BAD)):
        return 0
    judged = [letter for letter in letters if letter in BAD + GOOD]
    return len(judged) - 1 - max((i for i, it in enumerate(judged) if it in GOOD), default=-1)


def _act(
    there: Hook, letters: Mapping[str, str], changes: Mapping[str, Any],
    settings: Mapping[str, Any], said: list[str],
) -> None:
    places = there.look()
    there.forget(places)
    out = sum(place.out for place in places.values())
    for host, told in letters.items():
        if told.endswith(GOOD) and places[host].ours(ROOM):
            there.resume(host)
            out -= not places[host].away
            said.append(f"{host} is healthy again and takes jobs: gpufleet had drained it.")
    limit = settings.get("after_strikes", STRIKES)
    percent = settings.get("most_percent", MOST_PERCENT)
    most = max(1, math.floor(len(places) * percent / 100))
    bad = sorted((-strikes(told), host) for host, told in letters.items()
                 if strikes(told) >= limit and not places[host].taken)
    for nights, host in bad:
        reason = f"{_why(host, changes)}, {-nights} nights in a row"
        if out >= most and not places[host].away:
            said.append(f"{host} is not drained ({reason}): {out} of {len(places)} hosts are out of"
                        f" service already, and most_percent is {percent}.")
            continue
        there.drain(host, f"gpufleet {ROOM}: {reason}")
        out += not places[host].away
        said.append(f"{host} is drained: {reason}. Once repaired, a healthy night gives it back;"
                    f" by hand: {there.by_hand(host)}")


def _why(host: str, changes: Mapping[str, Any]) -> str:
    # What failed last night for the first time, and what had failed before.
    rows = [row for row in changes["changes"] if row["weight"] == "bad"]
    rows += [row for row in changes.get("standing", []) if row["verdict"] in {"FAIL", "HUNG"}]
    checks = list(dict.fromkeys(row["check"] for row in rows
                                if row["host"] == host and row["check"]))
    shown = ", ".join(checks[:3]) + (" and others" if len(checks) > 3 else "")
    return f"{shown} failed" if checks else "not healthy"
