"""Run NCCL's collectives between the GPUs of several hosts, several groups at the same time.

`workload/collective.py` runs on each host of a group; `sides.py` hands their messages around. A
group ends when one of its hosts has failed, and at the latest at its deadline.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from gpufleet.documents.collectives import (
    CollectiveMessage,
    CollectiveRow,
    CollectiveSide,
    Operation,
)
from gpufleet.errors import ConfigurationError
from gpufleet.fabric.rounds import GroupTest, Outcome, Result
from gpufleet.fleet.inventory import InventoryHost
from gpufleet.on_host import payload

from .pair_selection import declared_gpus
from .rails import Rail, environment
from .sides import Exchange, Side, framed, gate, run_together

OPERATIONS: tuple[Operation, ...] = ("all_reduce", "all_gather", "sendrecv")
# How much of a rank's data crosses the bus, by the operation, for n ranks:
# https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "sendrecv": lambda n: 1.0,
}
EMPTY_DOCUMENT: CollectiveSide = {
    "state": "silent",
    "stage": "starting",
    "error": None,
    "nccl": None,
    "library": None,
    "gpus": None,
    "results": [],
    "skipped": [],
    "seconds": None,
}
# The open files of this process beside those of its connections, and those of each connection.
FILES, FILES_PER_HOST = 256, 4


@dataclass(frozen=True)
class Member:
    """A host with the place of its NCCL: a stack's environment, or a directory."""

    host: InventoryHost
    place: str
    is_venv: bool
    gpus: int | None
    # Where rails are tested, its part of each one, in their order.
    rails: tuple[Rail, ...] = ()

    def settings(self, rails: Sequence[int]) -> tuple[list[int] | None, dict[str, str]]:
        """The GPUs that a test on these rails uses (None: all), and NCCL's variables for them."""
        if not self.rails:
            return None if self.gpus is None else list(range(self.gpus)), {}
        used = [self.rails[rail] for rail in rails]
        return sorted({gpu for rail in used for gpu in rail.gpus}), environment(used)

    @property
    def programs(self) -> bytes:
        """The program that becomes the interpreter in which NCCL is loaded."""
        if self.is_venv:
            return gate(f"{self.place}/bin/python")
        return gate(None, [self.place])


@dataclass(frozen=True)
class Measure:
    """The collectives that each group runs. The largest size of the first operation is judged."""

    operations: tuple[Operation, ...]
    sizes: tuple[int, ...]
    repeats: int = 10
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class GroupRun:
    """How one group's test ended: each host's own document."""

    test: GroupTest
    measure: Measure
    sides: dict[str, CollectiveSide]
    remedies: dict[str, str]

    @property
    def ranks(self) -> int:
        """GPUs in all."""
        return sum(side["gpus"] or 0 for side in self.sides.values())

    def at_fault(self) -> dict[str, str]:
        """The errors of hosts that failed by themselves, for a reason that they name, by host."""
        return {
            name: side["error"] or f"it ended while {side['stage']}"
            for name, side in self.sides.items()
            if side["state"] in {"failed", "absent", "silent"}
        }

    def rows(self) -> list[CollectiveRow]:
        """The group's results: the slowest host's time, all hosts' wrong numbers."""
        found: list[CollectiveRow] = []
        sides, n = list(self.sides.values()), self.ranks
        for own in zip(*(side["results"] for side in sides), strict=False):
            operation, size = own[0]["operation"], own[0]["bytes"]
            times = [
                one["seconds"] or 0
                for one in own
                if (one["operation"], one["bytes"]) == (operation, size)
            ]
            # A host that reports something else, or nothing yet, leaves this row unknown.
            if len(times) < len(sides) or min(times) <= 0 or n < 1:
                continue
            # One rank reduces nothing; it sends to itself all the same.
            if not FACTORS[operation](n):
                continue
            rate = size / max(times) * FACTORS[operation](n) / 1e9
            found.append(
                {
                    "operation": operation,
                    "bytes": size,
                    "seconds": max(times),
                    "gb_per_s": float(f"{rate:.4g}"),
                    "wrong": sum(one["wrong"] or 0 for one in own),
                }
            )
        return found

    def result(self) -> Result:
        """The same as one outcome, with the bandwidth of the row that is judged."""
        states = {side["state"] for side in self.sides.values()}
        wrong = any(one["wrong"] for side in self.sides.values() for one in side["results"])
        if wrong:
            return Result(Outcome.WRONG)
        if "hung" in states:
            return Result(Outcome.HUNG)
        wanted = self.measure.operations[0], max(self.measure.sizes)
        rates = [
            row["gb_per_s"] for row in self.rows() if (row["operation"], row["bytes"]) == wanted
        ]
        # Another collective or size, of a GPU with less memory, is compared with none of this one.
        if states != {"ok"} or not rates:
            return Result(Outcome.NOT_RUN)
        return Result(Outcome.PASSED, rates[0])


class _GroupExchange(Exchange):
    """The hosts of one group at the same time."""

    def __init__(
        self, test: GroupTest, members: Mapping[str, Member], measure: Measure, deadline_s: float
    ) -> None:
        self.test, self.measure = test, measure
        self.members = [members[name] for name in test.members]
        super().__init__(
            [
                Side(
                    member.host.connection,
                    f"{member.place}/bin/python" if member.is_venv else "python3",
                    deadline_s,
                    cast("Mapping[str, Any]", EMPTY_DOCUMENT),
                    CollectiveMessage,
                )
                for member in self.members
            ]
        )

    def start_all(self, task: Any) -> None:
        """Schedule the commands of all hosts."""
        for index, (member, side) in enumerate(zip(self.members, self.sides, strict=True)):
            gpus, variables = member.settings(self.test.rails)
            config = {
                "index": index,
                "place": member.place,
                "gpus": gpus,
                "operations": list(self.measure.operations),
                "sizes": list(self.measure.sizes),
                "repeats": self.measure.repeats,
                "environment": {**self.measure.environment, **variables},
                "deadline_s": side.deadline_s,
            }
            self.start(task, side, member.programs + framed(config, payload.collective()))

    def run(self) -> GroupRun:
        """How it ended."""
        sides = [cast("CollectiveSide", side.outcome()) for side in self.sides]
        names = [member.host.name for member in self.members]
        remedies = {
            name: str(cast("Any", side).pop("remedy"))
            for name, side in zip(names, sides, strict=True)
            if "remedy" in side
        }
        return GroupRun(self.test, self.measure, dict(zip(names, sides, strict=True)), remedies)


def run_groups(
    tests: Sequence[GroupTest], members: Mapping[str, Member], measure: Measure, deadline_s: float
) -> list[GroupRun]:
    """Run these groups at the same time; no host is in two of them."""
    allow_files(sum(len(test.members) for test in tests))
    exchanges = [_GroupExchange(test, members, measure, deadline_s) for test in tests]
    run_together(exchanges)
    return [exchange.run() for exchange in exchanges]


def allow_files(hosts: int) -> None:
    """Let this process open the pipes to so many hosts at once. Raises `ConfigurationError`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES + FILES_PER_HOST * hosts
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise ConfigurationError(
                f"{hosts} hosts at once need {wanted} open files, {hard} are allowed.",
                "",
                f"Raise the limit (ulimit -Hn {wanted}, as root), or test fewer hosts: --limit.",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def members_of(hosts: Sequence[InventoryHost], stack: str | None = None) -> dict[str, Member]:
    """Where each host has NCCL, by declaration. Raises `ConfigurationError`."""
    from gpufleet.components import resolver  # noqa: PLC0415 (as in judging.py)

    found: dict[str, Member] = {}
    for host in hosts:
        place = host.variables.get("gpu_nccl_dir")
        if place is not None and not (isinstance(place, str) and place.startswith("/")):
            raise ConfigurationError(
                f"Expected an absolute path, got {place!r}.",
                f"{host.name}: gpu_nccl_dir",
                "Name the directory on the host that has lib64/libnccl.so.2.",
            )
        if place and not stack:
            found[host.name] = Member(host, place, False, declared_gpus(host))
            continue
        rows = [
            row
            for row in resolver.resolve_declaration(host.declaration, None, host.name)["stacks"]
            # NCCL comes as a wheel of its own where CUDA does.
            if stack in {None, row["name"]} and row["cuda_source"] == "pip"
        ]
        if not rows:
            named = f"the stack {stack} has" if stack else "no stack of this host has"
            raise ConfigurationError(
                f"{named} NCCL as a wheel of its own.",
                host.name,
                "Declare a stack with `cuda: pip`, or gpu_nccl_dir: a directory on the host with"
                " lib64/libnccl.so.2 and lib64/libcudart.so.12.",
            )
        found[host.name] = Member(host, rows[0]["venv"], True, declared_gpus(host))
    return found
