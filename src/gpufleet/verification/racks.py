"""Compare the hosts of a declared rack (`gpu_expect.fabric.rack`) that were verified together.

A host's plan gets where the hosts of its rack are in the NVLink fabric (`rack`), by which the check
`gpu.rack` judges. Hosts are judged as their snapshots arrive, so a rack whose hosts differ is
judged once more; where all agree the first judgement stands.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from gpufleet.host_state.nvlink_domain import Place
from gpufleet.model.plan import ExpectedFabric, RackPlace

from .judging import result_of
from .session import HostRun


def compared(hosts: Iterable[HostRun]) -> list[HostRun]:
    """The hosts in their order, those of each rack compared with each other."""
    found, racks = list(hosts), defaultdict(list)
    for host in found:
        if (declared := host.plan["expect"].get("fabric")) and declared["rack"] and host.place:
            racks[declared["rack"]].append((host, host.place, declared))
    again: dict[str, HostRun] = {}
    for members in racks.values():
        if len(members) < 2:
            continue
        rows = _places((place, declared) for _, place, declared in members)
        for host, _, _ in members:
            host.plan["rack"] = rows
            if len(rows) > 1:
                again[host.name] = host.with_result(
                    result_of(host.plan, host.snapshot, host.result)
                )
    return [again.get(host.name, host) for host in found]


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
