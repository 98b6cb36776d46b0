"""Split the hosts of a rollout into batches, in their order. Pure."""

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


def size_of(size: str, total: int, option: str = "--batch") -> int:
    """Return how many of `total` hosts `10` or `10%` are: rounded down, at least one."""
    match = re.fullmatch(r"(\d+)(%?)", size)
    number = int(match[1]) if match else 0
    if not match or not number or (match[2] and number > 100):
        raise ConfigurationError(
            f"{size!r} is neither a number of hosts nor a percentage.",
            option,
            "Use a value such as 5 or 10%, at most 100%.",
        )
    return max(1, total * number // 100) if match[2] else number


def canaries(canary: str, hosts: Sequence[str]) -> list[str]:
    """Return the canary's hosts: `gpu1,gpu2` by name, `2` the first two, `0` none."""
    if canary.isdecimal() and canary not in hosts:
        if int(canary) > len(hosts):
            raise ConfigurationError(
                f"{canary} canary hosts are requested, but the rollout has {len(hosts)} hosts.",
                "--canary",
                "Request fewer, or widen --limit.",
            )
        return list(hosts[: int(canary)])
    named = list(dict.fromkeys(name.strip() for name in canary.split(",") if name.strip()))
    unknown = [name for name in named if name not in hosts]
    if unknown or not named:
        raise ConfigurationError(
            f"{', '.join(unknown) or 'No host'} is not among the hosts of this rollout.",
            "--canary",
            "Name hosts of the inventory that --limit includes, or give a number.",
        )
    return named


def batches(
    hosts: Sequence[str],
    canary: Sequence[str],
    size: int,
    domains: Mapping[str, str | None] | None = None,
) -> list[Batch]:
    """Return the canary, then batches of at most `size` hosts, each within one failure domain.

    So a batch affects no other domain. The canary's hosts need not share a domain: a person
    chooses them, for example one of each model. `domains`: {host: domain, None if unknown}.
    """
    domain_of = domains or dict.fromkeys(hosts, "")
    unknown = [name for name in hosts if domain_of.get(name) is None]
    if unknown:
        raise ConfigurationError(
            f"No failure domain is known for {', '.join(unknown[:5])}"
            f"{' and others' if len(unknown) > 5 else ''}.",
            "--domain",
            "Set that variable for each host, or put the host into a group NAME_x.",
        )
    rest = [name for name in hosts if name not in canary]
    found = [Batch(CANARY, tuple(canary))] if canary else []
    for domain in dict.fromkeys(domain_of[name] for name in rest):
        members = [name for name in rest if domain_of[name] == domain]
        for start in range(0, len(members), size):
            found.append(Batch(domain or "", tuple(members[start : start + size])))
    return found
