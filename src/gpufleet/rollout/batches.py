"""Which hosts go together in a rollout, and in which order. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpufleet.errors import ConfigurationError

CANARY = "canary"


@dataclass(frozen=True)
class Batch:
    """Hosts that are out of service at the same time."""

    name: str
    hosts: tuple[str, ...]


def size_of(told: str, total: int, option: str = "--batch") -> int:
    """How many hosts `10` or `10%` are of so many: rounded down, but never none."""
    match = re.fullmatch(r"(\d+)(%?)", told)
    number = int(match[1]) if match else 0
    if not match or not number or (match[2] and number > 100):
        raise ConfigurationError(
            f"It is {told!r}, neither a number of hosts nor a share of them.", option,
            "Say 5 or 10%, and no share above 100%.")
    return max(1, total * number // 100) if match[2] else number


def canaries(told: str, hosts: Sequence[str]) -> list[str]:
    """The first hosts to go: those that are named, or the first few; `0` is none."""
    if told.isdecimal() and told not in hosts:
        if int(told) > len(hosts):
            raise ConfigurationError(
                f"{told} are asked for, and there are {len(hosts)} hosts.", "--canary",
                "Ask for fewer, or widen --limit.")
        return list(hosts[: int(told)])
    named = list(dict.fromkeys(name.strip() for name in told.split(",") if name.strip()))
    strange = [name for name in named if name not in hosts]
    if strange or not named:
        raise ConfigurationError(
            f"{', '.join(strange) or 'Nobody'} is not among the hosts of this rollout.",
            "--canary", "Name hosts of the inventory that --limit leaves in, or say how many.")
    return named


def batches(
    hosts: Sequence[str], canary: Sequence[str], size: int,
    domains: Mapping[str, str | None] | None = None,
) -> list[Batch]:
    """The canary, then batches of at most `size` hosts, each within one failure domain.

    So whatever a batch takes out of service, the other domains are whole. The canary's hosts are
    chosen by a person, who may want one of each kind: they need not share a domain.
    """
    where = domains or dict.fromkeys(hosts, "")
    nowhere = [name for name in hosts if where.get(name) is None]
    if nowhere:
        raise ConfigurationError(
            f"No failure domain is known of {', '.join(nowhere[:5])}"
            f"{' and others' if len(nowhere) > 5 else ''}.", "--domain",
            "Give each host that variable, or put it into a group NAME_x.")
    rest = [name for name in hosts if name not in canary]
    found = [Batch(CANARY, tuple(canary))] if canary else []
    for domain in dict.fromkeys(where[name] for name in rest):
        members = [name for name in rest if where[name] == domain]
        for start in range(0, len(members), size):
            found.append(Batch(domain or "", tuple(members[start : start + size])))
    return found
