"""The nightly verification's documents: changes, past, heartbeat."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from .commission import HostState
from .types import Text, Time
from .verdict import Silenced

Weight = Literal["bad", "good", "note"]


class ChangeEntry(TypedDict):
    """One thing that differs from the runs before."""

    kind: Annotated[
        Text,
        "`failure`, `recovery`, `other-cause`, `version`, `driver`, `kernel`, `gpu`, `throughput`,"
        " `outlier`, `errors`, `port`, `appeared`, `vanished`, `flapping` or `unsilenced`",
    ]
    host: Annotated[Text, "`fleet.group`: the group of cards; `fleet`: all hosts"]
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
    known_as: NotRequired[Annotated[str, "of an outlier or a slow card: what a silence compares"]]
    silenced: NotRequired[Annotated[Silenced, "nobody is notified of it"]]


class SlowCard(TypedDict):
    """A GPU that is slower than its siblings or than it was."""

    gpu: Annotated[Text, "its UUID, or its index; `all`: each card of the host"]
    nights: Annotated[int, "for how many measured nights in a row"]


class Standing(TypedDict):
    """Something that is not healthy in this run, changed or not."""

    host: Text
    check: Text
    verdict: Annotated[
        Text, "`SLOW`: a GPU slower than its own past; `OUTLIER`: worse than its siblings"
    ]
    cause: str
    remedy: str
    strikes: Annotated[int, "for how many runs in a row it has been so"]
    explained_by: NotRequired[
        Annotated[Text, "the check of the same host whose finding explains this one"]
    ]
    known_as: NotRequired[Annotated[str, "of an outlier or a slow card: what a silence compares"]]
    silenced: NotRequired[Silenced]
    slow_card: NotRequired[SlowCard]


class StripOutlier(TypedDict):
    """A card that is beyond a bound; `all`: all cards of the host; empty: the host itself."""

    host: Text
    card: Text
    offset: Annotated[float, "where it is tonight, as `least`"]
    fails: Annotated[bool, "false: a note"]


class Strip(TypedDict):
    """How the cards of one group are distributed in one measure."""

    group: Annotated[Text, "model, SKU and driver"]
    measure: Text
    kind: Annotated[Text, "the kind of values, such as throughput"]
    centre: Annotated[float, "the median"]
    cards: int
    least: Annotated[
        float, "the least card's distance from the centre, as a share; of temperatures in °C"
    ]
    most: Annotated[float, "that of the card with the most"]
    counts: Annotated[list[int], "the cards in each of equal steps from the least to the most"]
    outliers: list[StripOutlier]
    more_outliers: Annotated[int, "how many are not listed"]


class Changes(TypedDict):
    """The differences of one nightly run from the runs before."""

    schema: Annotated[int, "1"]
    since: Annotated[Time | None, "the run before; null for the first"]
    night: Annotated[Time, "when this run started"]
    changes: list[ChangeEntry]
    standing: list[Standing]
    hosts: Annotated[dict[str, int], "how many hosts have each verdict"]
    hosts_before: Annotated[dict[str, int] | None, "the same for the run before"]
    strips: NotRequired[
        Annotated[list[Strip], "of groups with enough cards to be compared; outliers first"]
    ]


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
    states: NotRequired[
        Annotated[list[HostState], "with `--host` alone: its recorded states, oldest first"]
    ]


class Past(TypedDict):
    """Nightly runs side by side, oldest first."""

    schema: Annotated[int, "1"]
    nights: Annotated[list[Time], "when each run started"]
    hosts: dict[str, PastHost]


class Heartbeat(TypedDict):
    """The last run of the nightly: `heartbeat.json` in its state directory."""

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
    silenced: NotRequired[Annotated[int, "how many checks that do not pass are silenced"]]


class SilencedCause(TypedDict):
    """A finding that a silence covers."""

    verdict: Annotated[
        Text, "of the check; `SLOW`: a GPU slower than its own past; `OUTLIER`: than its siblings"
    ]
    cause: str


class Silence(TypedDict):
    """A known fault of which nobody is notified: what `silence --list --json` prints of each."""

    host: Text
    check: Text
    causes: Annotated[
        list[SilencedCause], "what was found when it was set; nothing else is silenced"
    ]
    until: Annotated[Text, "the last day on which it holds, in UTC: 2026-12-01"]
    who: Annotated[Text, "who set it"]
    why: Text
    since: Annotated[Time, "when it was set"]


class ListedSilence(Silence):
    """A silence, and what it does in the newest nightly run."""

    state: Annotated[
        Text,
        "`holds`; `expired`; `sounds`: another cause or a worse verdict is found; `passes`: nothing"
        " is found, or not in the newest run",
    ]


class SilenceList(TypedDict):
    """The document that `silence --list --json` prints."""

    schema: Annotated[int, "1"]
    silences: list[ListedSilence]


class Failure(TypedDict):
    """A time in which a host or a card failed; it ends by three healthy nights in a row."""

    first: Annotated[Time, "the first night that was lost"]
    last: Annotated[Time, "the last one"]
    nights: Annotated[int, "how many were lost"]
    over: Annotated[bool, "whether it ended: what was done counts as a repair"]
    checks: Annotated[list[Text], "the most frequent first"]
    cause: Annotated[str, "the last one"]
    done: Annotated[list[str], "what the history knows, each with its day"]


class Offender(TypedDict):
    """A host or a card that lost nights."""

    kind: Literal["host", "gpu"]
    name: Annotated[Text, "the host's present name, or the card's UUID"]
    place: Annotated[Text, "where it was last: the host, and of a card its PCI address"]
    before: Annotated[list[Text], "its earlier places or names, the oldest first"]
    nights_lost: int
    nights: Annotated[int, "in which it was judged"]
    failures: list[Failure]
    replace: Annotated[bool, "a card that failed again after two repairs"]


class Offenders(TypedDict):
    """The document that `history --offenders --json` prints: the most nights lost first."""

    schema: Annotated[int, "1"]
    nights: Annotated[list[Time], "when each run started"]
    offenders: list[Offender]
