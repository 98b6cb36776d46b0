"""What the nightly verification writes: changes, past, heartbeat."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from .types import Text, Time

Weight = Literal["bad", "good", "note"]


class ChangeEntry(TypedDict):
    """One thing that differs from the runs before."""

    kind: Annotated[
        Text,
        "`failure`, `recovery`, `other-cause`, `version`, `driver`, `kernel`, `gpu`, `throughput`,"
        " `outlier`, `errors`, `appeared`, `vanished` or `flapping`",
    ]
    host: Annotated[Text, "`fleet.group`: the group of cards"]
    check: Annotated[
        Text | None, "null: the host as a whole; `host.reachable`: the host was not reached"
    ]
    before: str | None
    after: str | None
    text: Annotated[str, "a sentence without the host's name"]
    remedy: str
    weight: Annotated[Weight, "in this order"]
    strikes: Annotated[int, "how many judged runs in a row it has been bad"]
    explained_by: NotRequired[
        Annotated[Text, "the check of the same host whose finding explains this one"]
    ]
    explains: NotRequired[Annotated[list[Text], "the checks that its finding explains"]]


class Standing(TypedDict):
    """Something that is bad in this run, changed or not."""

    host: Text
    check: Text
    verdict: Annotated[
        Text, "`SLOW`: a GPU slower than its own past; `OUTLIER`: worse than its siblings"
    ]
    cause: str
    remedy: str
    strikes: int
    explained_by: NotRequired[
        Annotated[Text, "the check of the same host whose finding explains this one"]
    ]


class Changes(TypedDict):
    """What differs in one nightly run from the runs before."""

    schema: Annotated[int, "1"]
    since: Annotated[Time | None, "the run before; null for the first"]
    night: Annotated[Time, "when this run started"]
    changes: list[ChangeEntry]
    standing: list[Standing]
    hosts: Annotated[dict[str, int], "how many hosts have each verdict"]
    hosts_before: Annotated[dict[str, int] | None, "the same for the run before"]


class PastCheck(TypedDict):
    """A check's past on one host, in `history --json`."""

    verdicts: str
    strikes: int
    flapping: bool
    cause: Annotated[str | None, "what was last reported that was not good"]
    remedy: str | None
    explained_by: NotRequired[Annotated[Text, "the check whose finding explained it"]]


class PastHost(TypedDict):
    """A host's past."""

    verdicts: Annotated[
        str,
        "a letter per run: `P` pass, `F` fail, `H` hung, `U` unreachable, `?` inconclusive, `-` not"
        " declared, `.` not there",
    ]
    measures: Annotated[dict[str, list[float | None]], "by name; null: not measured"]
    checks: NotRequired[dict[str, PastCheck]]
    contents_read: NotRequired[
        Annotated[
            dict[str, Time | None],
            "by component, when its contents were last read whole; null: not yet",
        ]
    ]


class Past(TypedDict):
    """Nightly runs side by side, oldest first."""

    schema: Annotated[int, "1"]
    nights: Annotated[list[Time], "when each run started"]
    hosts: dict[str, PastHost]


class Heartbeat(TypedDict):
    """What the nightly last did: `heartbeat.json` in its state directory."""

    schema: Annotated[int, "1"]
    started: Time
    finished: Time
    last_run: Annotated[float, "seconds since the epoch"]
    last_success: Annotated[float, "when a run last did all of its work"]
    status: Annotated[int, "the exit status"]
    troubles: Annotated[dict[str, str], "by step: what failed"]
    hosts: Annotated[
        dict[str, int] | None, "how many hosts have each verdict; null: none was judged"
    ]
    report: Annotated[str | None, "the report's address"]
