"""Compare the hosts that were verified together, where one alone has nothing to be compared with.

A host's plan gets where the hosts of its declared rack are in the NVLink fabric (`rack`, by which
`gpu.rack` judges), and the sums of random products in which its GPUs differ from others
(`sums`, by which `gpu.consensus` judges), and which hosts have its very GPUs (`twins`, by which
`host.plan` judges: a machine under two names leaves another one unverified). Hosts are judged as
their snapshots arrive, so those that differ are judged once more; where all agree the first
judgement stands.

A host may lie, so a comparison costs a host that agrees with itself a note alone, unless two others
or more agree against it. The checks count them, by the hosts of each row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from gpufleet.components.base.consensus import Group, differences
from gpufleet.components.gpu.nvlink_domain import Place
from gpufleet.documents.plan import ComparedSum, ExpectedFabric, RackPlace

from .judging import result_of
from .session import HostRun

# A host has the vote of each declared GPU, or of so many where no number is declared: more than a
# server has, and too few for one that lies to outvote the others.
MOST_GPUS = 16

# Keys that only the comparison adds to a plan.
COMPARED = ("rack", "sums", "twins", "claims")


def compared(hosts: Iterable[HostRun], changed: Iterable[str] = ()) -> list[HostRun]:
    """The hosts in their order, compared with each other; `changed` ones are judged once more."""
    found = list(hosts)
    differ = _racks(found) | _sums(found) | _twins(found) | {*changed}
    return [
        host.with_result(result_of(host.plan, host.snapshot, host.result))
        if host.name in differ
        else host
        for host in found
    ]


def compared_again(hosts: Iterable[HostRun]) -> list[HostRun]:
    """Hosts of which some were probed again, compared with all others, not among themselves."""
    found = list(hosts)
    changed = set()
    for host in found:
        rack, *others = (host.plan.pop(key, []) for key in COMPARED)  # type: ignore[misc]
        if len(rack) > 1 or any(others):
            changed.add(host.name)
    return compared(found, changed)


def _twins(hosts: Iterable[HostRun]) -> set[str]:
    """Set `twins` in the plans of hosts that are one machine, or else `claims`; their names.

    One machine shows the same boot and the same GPUs under each of its names. Each account of a
    host can read both, so another host can claim them: they are one machine only where
    `is_machine_of` confirms it.
    """
    machines: dict[frozenset[tuple[str, str]], list[HostRun]] = defaultdict(list)
    for host in hosts:
        if host.beside and host.beside.cards:
            machines[host.beside.cards].append(host)
    named = set()
    for members in machines.values():
        for host in members:
            others = [other for other in members if other.name != host.name]
            confirmed = {
                other.name
                for other in others
                if host.beside and other.beside and host.beside.is_machine_of(other.beside)
            }
            if confirmed:
                host.plan["twins"] = sorted(confirmed)
            if claims := {other.name for other in others} - {*host.plan.get("twins", [])}:
                host.plan["claims"] = sorted(claims)
            if others:
                named.add(host.name)
    return named


def _racks(hosts: Iterable[HostRun]) -> set[str]:
    """Set `rack` in the plans; the names of the hosts in racks whose hosts differ."""
    racks = defaultdict(list)
    for host in hosts:
        place = host.beside.place if host.beside else None
        if (declared := host.plan["expect"].get("fabric")) and declared["rack"] and place:
            racks[declared["rack"]].append((host, place, declared))
    differ = set()
    for members in racks.values():
        if len(members) < 2:
            continue
        rows = _places((place, declared) for _, place, declared in members)
        for host, _, _ in members:
            host.plan["rack"] = rows
            if len(rows) > 1:
                differ.add(host.name)
    return differ


def _places(members: Iterable[tuple[Place, ExpectedFabric]]) -> list[RackPlace]:
    """How many hosts are in each place; a declared clique is judged by its declaration."""
    counts = Counter(
        (place.domain, place.clique if declared["clique"] is None else None)
        for place, declared in members
    )
    return [
        {"domain": domain, "clique": clique, "hosts": number}
        for (domain, clique), number in counts.items()
    ]


def _sums(hosts: Iterable[HostRun]) -> set[str]:
    """Set `sums` in the plans of hosts in whose groups sums differ; their names."""
    groups: dict[Group, list[tuple[HostRun, tuple[str, ...]]]] = defaultdict(list)
    for host in hosts:
        for group, members in (host.beside.sums if host.beside else {}).items():
            most = host.plan["expect"]["count"] or MOST_GPUS
            groups[group] += [(host, sums) for sums in members[:most]]
    differ: dict[str, list[ComparedSum]] = {}
    for group, gpus in groups.items():
        rows: list[ComparedSum] = [
            {
                "format": group.format,
                "capability": group.capability,
                "seed": group.seed,
                "rounds": difference.rounds,
                "sum": value,
                "gpus": number,
                "hosts": len(
                    {
                        host.name
                        for host, sums in gpus
                        if sums[difference.at : difference.at + 1] == (value,)
                    }
                ),
            }
            for difference in differences(sums for _, sums in gpus)
            for value, number in sorted(difference.gpus.items())
        ]
        if rows:
            for host in {host.name: host for host, _ in gpus}.values():
                differ.setdefault(host.name, []).extend(rows)
                host.plan["sums"] = differ[host.name]
    return set(differ)
