"""Select pairs of hosts for distributed runs, and the stacks and kinds of run of each pair.

Pure, apart from the resolver, which reads the catalog. `pairs.py` runs the jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpufleet.documents.pairs import Kind, PlannedMeeting, lacking
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import InventoryHost
from gpufleet.frameworks import DEFAULT, FRAMEWORKS, FrameworkId, framework_id

KINDS: tuple[Kind, ...] = ("parameter-server", "all-reduce", "nccl")


@dataclass(frozen=True)
class PairOptions:
    """Which pairs: `HOST,OTHER` each, or a ring of all hosts; in which stack (default: all)."""

    pairs: Sequence[str] = ()
    ring: bool = False
    stack: str | None = None


NO_PAIRS = PairOptions()


@dataclass(frozen=True)
class Stack:
    """A framework's release that both hosts have, with its name and venv on each."""

    release: str
    names: tuple[str, str]
    venvs: tuple[str, str]
    framework: FrameworkId = DEFAULT.id

    @property
    def title(self) -> str:
        """The usual name of the framework."""
        return FRAMEWORKS[self.framework].title


@dataclass(frozen=True)
class Pair:
    """Two hosts and the stacks to test between them."""

    hosts: tuple[InventoryHost, InventoryHost]
    stacks: tuple[Stack, ...]

    @property
    def names(self) -> tuple[str, str]:
        """The hosts' names in the inventory."""
        return self.hosts[0].name, self.hosts[1].name

    @property
    def gpus(self) -> tuple[int | None, int | None]:
        """The declared number of GPUs of each host."""
        return declared_gpus(self.hosts[0]), declared_gpus(self.hosts[1])

    @property
    def common_gpus(self) -> int | None:
        """The number of GPUs that both hosts have."""
        first, second = self.gpus
        return None if first is None or second is None else min(first, second)


@dataclass(frozen=True)
class Job:
    """One kind of run with one stack between two hosts."""

    kind: Kind
    pair: Pair
    stack: Stack


def declared_gpus(host: InventoryHost) -> int | None:
    """`gpu_expect.count`, if it is declared."""
    count: int | None = host.spec.expect.get("count")
    return count


def select_pairs(hosts: Sequence[InventoryHost], options: PairOptions) -> list[Pair]:
    """The selected pairs, each once. Raises `ConfigurationError`."""
    known = {host.name: host for host in hosts}
    found: dict[frozenset[str], Pair] = {}
    for names, where in _named_pairs(list(known), options):
        for name in names:
            if name not in known:
                raise ConfigurationError(
                    f"{name} is not among the hosts of this run.",
                    where,
                    f"The hosts are {', '.join(known)}: correct the name, or --limit.",
                )
        if len(names) != 2 or names[0] == names[1]:
            raise ConfigurationError(
                "A pair needs two different hosts.", where, "Use --pair HOST,OTHER."
            )
        first, second = (known[name] for name in names)
        for host in (first, second):
            pair_address(host)
        found.setdefault(
            frozenset(names),
            Pair((first, second), _common_stacks(first, second, options.stack, where)),
        )
    return list(found.values())


def _named_pairs(names: list[str], options: PairOptions) -> Iterator[tuple[list[str], str]]:
    for text in options.pairs:
        yield [name.strip() for name in text.split(",") if name.strip()], f"--pair {text}"
    if options.ring:
        if len(names) < 2:
            raise ConfigurationError(
                f"A ring needs two hosts; this run has only {', '.join(names)}.",
                "--pairs",
                "Widen --limit.",
            )
        for first, second in pairwise([*names, names[0]]):
            yield [first, second], "--pairs"
    if options.stack and not options.pairs and not options.ring:
        raise ConfigurationError(
            "The option selects a stack, but no pair is selected.",
            "--pair-stack",
            "Add --pair HOST,OTHER or --pairs.",
        )


def pair_address(host: InventoryHost) -> str:
    """The address at which the other host of a pair reaches this one."""
    address = host.variables.get("gpu_pair_address")
    if address is not None and not (isinstance(address, str) and address.strip()):
        raise ConfigurationError(
            f"Expected an address, got {address!r}.",
            f"{host.name}: gpu_pair_address",
            "Set an address that other hosts can reach, in quotes.",
        )
    if address:
        return address
    if host.connection.kind == "local":
        raise ConfigurationError(
            "Other hosts cannot reach a host with the connection 'local'.",
            host.name,
            "Set gpu_pair_address to an address of this machine that they can reach.",
        )
    return host.connection.address or host.name


def _common_stacks(
    first: InventoryHost, second: InventoryHost, name: str | None, where: str
) -> tuple[Stack, ...]:
    from gpufleet.components import resolver  # noqa: PLC0415 (as in judging.py)

    first_rows, second_rows = (
        [
            row
            for row in resolver.resolve_declaration(host.declaration, None, host.name)["stacks"]
            if name in {None, row["name"]}
        ]
        for host in (first, second)
    )
    found: dict[tuple[str, str], Stack] = {}
    for row in first_rows:
        release = framework_id(row), row["version"]
        same = [
            other for other in second_rows if (framework_id(other), other["version"]) == release
        ]
        same.sort(key=lambda other: other["name"] != row["name"])
        if same:
            found.setdefault(
                release,
                Stack(
                    row["version"],
                    (row["name"], same[0]["name"]),
                    (row["venv"], same[0]["venv"]),
                    release[0],
                ),
            )
    if not found:
        stacks = "; ".join(
            f"{host.name}: {', '.join(row['name'] for row in rows) or 'none'}"
            for host, rows in ((first, first_rows), (second, second_rows))
        )
        raise ConfigurationError(
            f"{first.name} and {second.name} have no stack"
            f" {name + ' ' if name else ''}of the same release of a framework ({stacks}).",
            where,
            "Declare one for both in gpu_stacks.",
        )
    return tuple(found.values())


def jobs_of(pairs: Iterable[Pair]) -> list[Job]:
    """The jobs that can run between the pairs; the checks skip the others with a reason."""
    return [
        Job(kind, pair, stack)
        for pair in pairs
        for stack in pair.stacks
        for kind in KINDS
        if not lacking(kind, stack.framework, stack.release, pair.gpus)
    ]


def rounds(jobs: Sequence[Job], most: int) -> Iterator[list[Job]]:
    """Batches of at most `most` hosts (but at least 2), each host in one job of a batch."""
    remaining = list(jobs)
    while remaining:
        batch: list[Job] = []
        taken: set[str] = set()
        for job in remaining:
            if not taken & set(job.pair.names) and len(taken) + 2 <= max(2, most):
                batch.append(job)
                taken |= set(job.pair.names)
        remaining = [job for job in remaining if job not in batch]
        yield batch


def planned_pairs(host: str, pairs: Iterable[Pair]) -> list[PlannedMeeting]:
    """The `pairs` of a host's plan: the other host and the stacks of each; empty without a pair."""
    return [
        {
            "with": pair.names[1 - index],
            "gpus": pair.gpus[1 - index],
            "stacks": [
                {"name": stack.names[index], "release": stack.release, "framework": stack.framework}
                for stack in pair.stacks
            ],
        }
        for pair in pairs
        if host in pair.names
        for index in [pair.names.index(host)]
    ]
