"""The additions of `verify --pair A,B` to the plans and snapshots of the hosts that took part."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from gpufleet.frameworks import FRAMEWORKS, UNNAMED, FrameworkId

from .text import is_number
from .types import Text

Kind = Literal["parameter-server", "all-reduce", "nccl"]


def lacking(
    kind: Kind, framework: str, release: str, gpus: tuple[int | None, int | None]
) -> str | None:
    """Why a release has no such run between two hosts with so many GPUs; None where it has."""
    title, run = FRAMEWORKS[framework].title, FRAMEWORKS[framework].distributed
    if kind == "nccl" and not all(gpus):
        return "gpu_expect: not both hosts have GPUs"
    if kind == "parameter-server":
        return None if run.parameter_servers else f"gpu_stacks: {title} has no parameter servers"
    if kind == "all-reduce" and all(gpus) and run.communication == "GLOO":
        return f"gpu_stacks: {title} reduces between GPUs by NCCL, see pair.nccl"
    numbers = tuple(int(part) for part in release.split(".")[:3] if is_number(part))
    if numbers < (run.gpus_from if all(gpus) else run.cpus_from):
        return f"gpu_stacks: {title} {release} has no {run.reduction}"
    return None


class SharedStack(TypedDict):
    """A stack in which two hosts meet."""

    framework: NotRequired[Annotated[FrameworkId, UNNAMED]]
    name: Annotated[Text, "on this host"]
    release: Annotated[Text, "the framework's version"]


_With = TypedDict("_With", {"with": Annotated[Text, "the other host"]})


class PlannedMeeting(_With):
    """Another host that a host meets; an entry of a plan's `pairs`."""

    gpus: Annotated[int | None, "how many GPUs the other host is declared to have"]
    stacks: list[SharedStack]


class Reach(TypedDict):
    """An attempt to connect to the other host."""

    to: Annotated[int, "index in `hosts`"]
    address: Text
    port: int
    error: str | None


class Variable(TypedDict):
    """Where a variable of the graph is."""

    task: Annotated[int, "index in `hosts`"]
    device: Annotated[str | None, "null: the graph does not say"]


class RemoteProduct(TypedDict):
    """A product of the graph."""

    task: Annotated[int, "index in `hosts`"]
    device: Annotated[str | None, "null: the graph does not say"]
    wrong: Annotated[int | None, "wrong rows"]


class Sum(TypedDict):
    """The sum of all products."""

    wrong: Annotated[int | None, "wrong rows"]


class Replica(TypedDict):
    """A replica of an all-reduce on this host."""

    device: str
    wrong: Annotated[int | None, "wrong rows"]


class Side(TypedDict):
    """The output of the workload on one of the two hosts."""

    state: Annotated[
        Text,
        "`ok`; `failed`: its own fault, see `error`; `lost`: the other one was gone; `stopped`: the"
        " session was stopped; `unconnected`: see `reach`; `hung`; `absent`: no such stack there;"
        " `silent`: ssh did not get in",
    ]
    stage: Annotated[str, "how far it came"]
    error: str | None
    killed: NotRequired[Annotated[bool, "`error` is that a process of it was killed by SIGKILL"]]
    version: Annotated[Text | None, "the framework's"]
    device: Text | None
    ports: list[int]
    reach: list[Reach]
    variables: Annotated[list[Variable], "of the graph whose master this side was"]
    products: Annotated[list[RemoteProduct], "of the graph whose master this side was"]
    sum: Annotated[Sum | None, "of the graph whose master this side was"]
    communication: Annotated[str | None, "of the all-reduce"]
    in_sync: Annotated[int | None, "of the all-reduce: replicas in all"]
    replicas: Annotated[list[Replica], "of the all-reduce: this host's own"]
    nccl: Annotated[list[str], "what NCCL printed when it started"]
    seconds: float | None
    remedy: NotRequired[str]


class Said(TypedDict):
    """A value that a side hands to both sides."""

    value: object


class Message(TypedDict):
    """A message of a side that runs: its document so far, and its value for both sides."""

    document: Side
    said: Said | None


class Meeting(TypedDict):
    """One run between two hosts, the same in both hosts' snapshots; one per kind and release."""

    kind: Kind
    framework: NotRequired[Annotated[FrameworkId, UNNAMED]]
    release: Annotated[Text, "the framework's version"]
    hosts: Annotated[list[Text], "both names"]
    stacks: Annotated[list[Text], "the stack on each host"]
    gpus: Annotated[list[int | None], "how many GPUs each host is declared to have"]
    sides: Annotated[list[Side], "in the order of `hosts`"]
