"""What the nightly does to hosts that stay bad, where it is asked to: drain them, and back again.

A host is drained once the same check, one of those without which it cannot compute (severity
critical), FAILED or HUNG in so many judged nights in a row, and given back by the first night in
which all holds. A night that could not judge it (UNREACHABLE, INCONCLUSIVE) neither counts nor
forgives: a host that is away takes no jobs anyway, and what was not seen is no reason.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Protocol

from gpufleet.checks import CHECKS
from gpufleet.inventory import inventory_hosts
from gpufleet.rollout.schedulers import Hook, HookError, hook

from .drift import NOT_THERE, Window
from .history import NIGHTLY, Night

ROOM = "nightly"
STRIKES = 2
# Of all hosts, in percent: what is out of service already counts, whoever took it.
MOST_PERCENT = 10
# So many runs back it looks for those that judged a host.
RUNS = 30
# Runs that are closer together are one night: a second one by hand, one that was caught up.
NIGHT = timedelta(hours=12)
BAD, GOOD = "FH", "P-"
SEVERITY = "critical"


class Past(Protocol):
    """What is needed of the history."""

    def nights(self, last: int | None = None, kind: str | None = None) -> list[Night]:
        """The last runs of a kind, oldest first."""

    def window(self, nights: list[Night]) -> Window:
        """What they said."""


def after_night(
    history: Past, settings: Mapping[str, Any], made: Hook | None = None
) -> tuple[list[str], list[str]]:
    """Drain and give back; what it did and what it could not do, a sentence for each host.

    `settings`: `hook` (none, slurm, kubernetes), `after_strikes` (2), `most_percent` (10: of the
    hosts never more are out of service), `question` (verify.wishes.Question, for nodes' names).
    """
    done: list[str] = []
    failed: list[str] = []
    if settings.get("hook", "none") == "none" and made is None:
        return done, failed
    hosts = inventory_hosts(settings["question"])
    names = {host.name for host in hosts}
    window = history.window(history.nights(RUNS, NIGHTLY))
    with _noting(failed):
        there = made or hook(settings["hook"], hosts, settings["question"])
        places = there.look(known_only=True)
        there.forget(places)
        healthy = [host for host, letters in window.hosts.items()
                   if letters.endswith("P") and host in places and places[host].ours(ROOM)]
        out = sum(place.out for place in places.values())
        for host in healthy:
            with _noting(failed):
                there.resume(host)
                out -= not places[host].away
                done.append(f"{host} is healthy again and takes jobs: gpufleet had drained it.")
        limit = settings.get("after_strikes", STRIKES)
        percent = settings.get("most_percent", MOST_PERCENT)
        most = max(1, math.floor(len(places) * percent / 100))
        for host, nights, checks in worst_first(window, limit):
            reason = f"{_listed(checks)} failed, {nights} nights in a row"
            if host not in names or (host in places and places[host].taken):
                continue
            if host not in places:
                why = "the scheduler does not know it (gpu_node_name)"
            elif out >= most and not places[host].away:
                why = (f"{out} of {len(places)} hosts are out of service already, and most_percent"
                       f" is {percent}")
            else:
                with _noting(failed):
                    there.drain(host, f"gpufleet {ROOM}: {reason}")
                    out += not places[host].away
                    done.append(f"{host} is drained: {reason}. Once repaired, a healthy night gives"
                                f" it back; by hand: {there.by_hand(host)}")
                continue
            if nights == limit:  # told once
                done.append(f"{host} is not drained ({reason}): {why}.")
    return done, failed


def strikes(letters: Sequence[str], started: Sequence[datetime]) -> int:
    """For how many judged nights in a row a check was bad, up to a last run in which it was."""
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
    """Hosts of which a check was bad for so many nights: host, nights, and those checks."""
    started = [datetime.fromisoformat(night) for night in window.nights]
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for (host, check), line in window.checks.items():
        nights = strikes([said.letter if said else NOT_THERE for said in line], started)
        if nights >= limit and check in CHECKS and CHECKS[check].severity == SEVERITY:
            found[host][check] = nights
    return sorted(((host, max(checks.values()), sorted(checks)) for host, checks in found.items()),
                  key=lambda it: (-it[1], it[0]))


@contextmanager
def _noting(failed: list[str]) -> Iterator[None]:
    """One host, or one scheduler, that cannot be told is no reason to leave out the next."""
    try:
        yield
    except HookError as error:
        failed.append(str(error))


def _listed(checks: Sequence[str]) -> str:
    return ", ".join(checks[:3]) + (" and others" if checks[3:] else "")
