"""Which GPUs have another sum of the same random products than the others. Pure.

GPUs of one compute capability that computed with the same operands have the same sums, whatever
their number of multiprocessors. A sum after more rounds includes those before, so GPUs are compared
where they first differ; one that computed fewer rounds than that takes no part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpufleet.documents.sections.compute import Compute, ComputeRun, ConsensusResult


class Group(NamedTuple):
    """The format, the capability and the seed of GPUs whose sums must agree."""

    format: str
    capability: str
    seed: int


@dataclass(frozen=True)
class Difference:
    """After so many rounds GPUs of a group differ: how many have which sum, and on how many hosts.

    Without `hosts` all are one host's.
    """

    rounds: int
    gpus: Mapping[str, int]
    hosts: Mapping[str, int] = field(default_factory=dict)

    @property
    def at(self) -> int:
        """The position of the sum among the sums of a GPU."""
        return self.rounds.bit_length() - 1

    @property
    def right(self) -> str | None:
        """The sum of more than half of the GPUs, at least two; None if no sum has that many."""
        total = sum(self.gpus.values())
        common = max(self.gpus, key=lambda each: self.gpus[each])
        return common if 2 * self.gpus[common] > max(total, 2) else None


def groups_of(run: ComputeRun) -> Iterator[tuple[ConsensusResult, Group | None]]:
    """Each entry of a run, and its group; None where it has nothing to be compared."""
    capabilities = {device["index"]: device["compute_capability"] for device in run["devices"]}
    for entry in run.get("consensus") or []:
        capability, seed = capabilities.get(entry["gpu"]), entry["seed"]
        if capability and seed is not None and entry["sums"] and entry["wrong"] == 0:
            yield entry, Group(entry["format"], capability, seed)
        else:
            yield entry, None


def differences(members: Iterable[Sequence[str]]) -> list[Difference]:
    """Where the sums of a group's GPUs differ, in the order of rounds; empty where they agree.

    GPUs that have not the sum of most take no part in later rounds. After a difference in which no
    sum is that of most, nothing more is known.

    `members`: the sums of each GPU after 1, 2, 4, 8 ... rounds.
    """
    found: list[Difference] = []
    left = [sums for sums in members if sums]
    at = 0
    while left:
        sums_here = Counter(sums[at] for sums in left)
        if len(sums_here) > 1:
            found.append(Difference(1 << at, sums_here))
            if (right := found[-1].right) is None:
                break
            left = [sums for sums in left if sums[at] == right]
        at += 1
        left = [sums for sums in left if len(sums) > at]
    return found


def sums_by_group(compute: Compute) -> dict[Group, list[tuple[str, ...]]]:
    """The sums of each GPU of a host, by group; a GPU that contradicts itself is left out."""
    found: dict[Group, list[tuple[str, ...]]] = {}
    for run in compute["runs"]:
        for entry, group in groups_of(run):
            if group:
                found.setdefault(group, []).append(tuple(entry["sums"]))
    return found
