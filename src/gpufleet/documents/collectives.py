"""The messages between `fabric test` and the hosts of a group, and the document that it prints."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from .pairs import Said
from .types import Text, Time

Operation = Literal["all_reduce", "all_gather", "sendrecv"]
# All hosts together, each host alone, each pair of hosts, or all hosts on each of their rails.
Scope = Literal["all", "hosts", "pairs", "rails"]


class CollectiveResult(TypedDict):
    """One collective of one size on one host."""

    operation: Operation
    bytes: Annotated[int, "of a rank's result"]
    seconds: Annotated[float | None, "the median of the repeated runs"]
    repeats: int
    wrong: Annotated[int | None, "how many numbers of this host's results are not the exact ones"]


class SkippedCollective(TypedDict):
    """A size that does not fit into the free memory of some GPU."""

    operation: Operation
    bytes: int


class CollectiveSide(TypedDict):
    """The document that one host of a group prints."""

    state: Annotated[
        Text,
        "`ok`; `failed`: its own fault, see `error`; `lost`: another one was gone; `stopped`: the"
        " session was stopped; `hung`; `absent`: no such interpreter; `silent`: ssh did not get in",
    ]
    stage: Annotated[str, "how far it came"]
    error: str | None
    nccl: Annotated[Text | None, "NCCL's release"]
    library: Annotated[str | None, "the libnccl that was loaded"]
    gpus: Annotated[int | None, "how many GPUs CUDA shows there"]
    results: list[CollectiveResult]
    skipped: list[SkippedCollective]
    seconds: float | None


class CollectiveMessage(TypedDict):
    """A message of a host that runs: its document so far, and its value for all hosts."""

    document: CollectiveSide
    said: Said | None


class GroupResult(TypedDict):
    """One test of a group."""

    number: int
    round: Annotated[int, "tests of one round run at the same time"]
    hosts: list[Text]
    rails: NotRequired[Annotated[list[int], "the rails that it used, where these are tested"]]
    outcome: Annotated[Text, "`passed`, `slow`, `wrong`, `hung`, `not run` or `not judged`"]
    gb_per_s: Annotated[float | None, "bus bandwidth of the judged operation in GB/s"]
    least_gb_per_s: Annotated[float | None, "below this it is slow; null: there is no figure"]


class CollectiveRow(TypedDict):
    """One operation of one size between all hosts."""

    operation: Operation
    bytes: int
    seconds: float
    gb_per_s: Annotated[float, "bus bandwidth in GB/s"]
    wrong: int


class CulpritRow(TypedDict):
    """The member, pair, rail or port that is at fault."""

    kind: Annotated[Text, "`member`, `pair`, `rail` or `port`"]
    hosts: list[Text]
    rails: list[int]
    statement: Annotated[str, "what is at fault, and which tests show it"]


class Excluded(TypedDict):
    """A host that could not take part."""

    host: Text
    cause: str
    remedy: str


class Compared(TypedDict):
    """The standard by which the tests of a fabric test are judged; others are not comparable."""

    scope: Annotated[Scope, "what is tested: all hosts together, each of its parts, or each rail"]
    operation: Operation
    bytes: Annotated[int, "of a rank's result"]
    algorithm: Annotated[Text, "that NCCL was given; empty: its own choice"]


class FabricTest(TypedDict):
    """The document that `fabric test --json` prints."""

    schema: Annotated[int, "1"]
    started: Time
    finished: Time
    verdict: Annotated[Text, "`PASS`, `FAIL` or `INCONCLUSIVE`"]
    hosts: list[Text]
    nccl: Annotated[dict[str, Text], "by host the release that was loaded"]
    ranks: Annotated[int, "GPUs in all"]
    compared: Compared
    ports: NotRequired[
        Annotated[dict[str, list[Text]], "by host the port of each rail, where these are tested"]
    ]
    slow: Annotated[str, "what is called slow, and why"]
    results: Annotated[list[CollectiveRow], "of the whole group"]
    tests: list[GroupResult]
    culprits: list[CulpritRow]
    excluded: list[Excluded]
    unknown: Annotated[list[str], "what the tests do not say"]
