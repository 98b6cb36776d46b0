"""The six verdicts, their order, the exit status that follows, and the documents that carry them.

Documents: what `verify --json` prints (`Verdicts`), a bundle of `verify --save`, and the result
that a host leaves that verifies itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal, NotRequired, TypedDict

from .plan import Plan, ProblemEntry
from .sections.cuda import ContentsRead
from .snapshot import Snapshot
from .types import Text, Time


class Verdict(StrEnum):
    """Worst first. Only PASS is healthy; NOT-DECLARED quotes the declaration that excuses it."""

    FAIL = "FAIL"
    HUNG = "HUNG"
    UNREACHABLE = "UNREACHABLE"
    INCONCLUSIVE = "INCONCLUSIVE"
    PASS = "PASS"
    NOT_DECLARED = "NOT-DECLARED"


# A check with one of these needs nothing.
HEALTHY_VERDICTS = frozenset({Verdict.PASS, Verdict.NOT_DECLARED})
# Exit statuses.
HEALTHY, FAILED, NOT_JUDGED, USAGE = 0, 1, 3, 4

SYMBOLS = {
    Verdict.PASS: "✓",
    Verdict.FAIL: "✗",
    Verdict.HUNG: "∞",
    Verdict.UNREACHABLE: "⊘",
    Verdict.INCONCLUSIVE: "?",
    Verdict.NOT_DECLARED: "–",
}

# The verdicts in histories and in pages with thousands of them.
LETTERS = {
    Verdict.PASS: "P",
    Verdict.FAIL: "F",
    Verdict.HUNG: "H",
    Verdict.UNREACHABLE: "U",
    Verdict.INCONCLUSIVE: "?",
    Verdict.NOT_DECLARED: "-",
}

_ORDER = list(Verdict)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict that speaks for all of them; nothing judged at all is INCONCLUSIVE."""
    return min(verdicts, key=_ORDER.index, default=Verdict.INCONCLUSIVE)


def exit_status(verdicts: Iterable[Verdict]) -> int:
    """From the hosts' verdicts: 0 all healthy, 1 something failed, 3 something was not judged."""
    found = set(verdicts)
    if found & {Verdict.FAIL, Verdict.HUNG, Verdict.UNREACHABLE}:
        return FAILED
    return HEALTHY if found == {Verdict.PASS} else NOT_JUDGED


class Repair(TypedDict):
    """One part of a remedy, as data."""

    by: Annotated[
        Literal["provision", "command", "person"],
        "`provision` repairs the component, step by step; `command` is to be run as printed;"
        " `person`: `act` says what a person has to do",
    ]
    command: NotRequired[Annotated[str, "to be run on the control machine; not of `person`"]]
    component: NotRequired[
        Annotated[
            Text,
            "of `provision`: `toolkit`, `cudnn`, `stack`, `environment`, `linker`, `default_link`,"
            " `driver`, `driver_library` or `containers`; absent: what the plan's changes say. The"
            " first one of a check is the most likely one",
        ]
    ]
    name: NotRequired[Annotated[Text, "the component's id, such as 11.8, 11.8-8 or a stack's name"]]
    act: NotRequired[Annotated[str, "of `person`"]]


class Silenced(TypedDict):
    """The silence that covers a finding: nobody is notified of it, and its verdict stays."""

    until: Annotated[Text, "the last day on which it holds, in UTC: 2026-12-01"]
    who: Annotated[Text, "who set it"]
    why: Text


def silence_text(silenced: Silenced) -> str:
    """A silence as people read it, after the word `silenced`."""
    return f"until {silenced['until']} by {silenced['who']}: {silenced['why']}"


class CheckResult(TypedDict):
    """The result of one check."""

    id: Annotated[Text, "such as cudnn.links"]
    verdict: Annotated[
        Text, "`PASS`, `FAIL`, `HUNG`, `UNREACHABLE`, `INCONCLUSIVE` or `NOT-DECLARED`"
    ]
    statement: Annotated[str, "what holds where it passes"]
    cause: str
    remedy: str
    repairs: NotRequired[
        Annotated[list[Repair], "the parts of `remedy`, in order; absent where there is no remedy"]
    ]
    evidence: Annotated[str, "what shows it"]
    explained_by: NotRequired[
        Annotated[
            Text,
            "the check whose finding explains this one; reports show this one under it. Verdict and"
            " exit status count both",
        ]
    ]
    held: NotRequired[
        Annotated[bool, "true: INCONCLUSIVE only because processes hold the GPU; else absent"]
    ]
    silenced: NotRequired[
        Annotated[Silenced, "of a check that does not pass, or that such a check explains"]
    ]


def consequences(checks: Iterable[CheckResult]) -> dict[str, list[CheckResult]]:
    """The checks of one host that a finding explains, by the explaining check."""
    known = {check["id"]: check for check in checks}
    found: dict[str, list[CheckResult]] = {}
    for check in known.values():
        # A cause that the document lacks hides nothing.
        if (cause := check.get("explained_by")) and cause in known:
            found.setdefault(cause, []).append(check)
    return found


class HostResult(TypedDict):
    """The results of all checks on one host."""

    verdict: Annotated[
        Text,
        "the worst of its checks: FAIL, HUNG, UNREACHABLE, INCONCLUSIVE, PASS; NOT-DECLARED alone"
        " makes no host healthy",
    ]
    checks: Annotated[list[CheckResult], "an unreachable host has one check, `host.reachable`"]


class Verdicts(TypedDict):
    """The document of `verify --json` and `provision --json`, and a report's `report.json`."""

    schema: Annotated[int, "1"]
    started: Time
    finished: Time
    hosts: dict[str, HostResult]
    summary: Annotated[dict[str, int], "how many checks have each verdict"]
    provisioned: NotRequired[
        Annotated[dict[str, list[str]], "by host on which Ansible ran: why (`provision` only)"]
    ]


class HostProblem(ProblemEntry):
    """Why a host's declaration is refused."""

    host: Text


class Refusal(TypedDict):
    """The document of a command whose declarations are refused."""

    schema: Annotated[int, "1"]
    problems: list[HostProblem]


class Bundle(TypedDict):
    """One host of `verify --save DIR`: DIR/bundles/HOST.json, which can be sent.

    Names of hosts and users, addresses, keys, passwords, tokens, UUIDs and serial numbers are
    replaced, the same name by the same stand-in in all documents of the run.
    """

    schema: Annotated[int, "1"]
    host: Text
    note: NotRequired[str]
    same_verdicts: NotRequired[
        Annotated[bool, "the checks find the same in it as in the real documents"]
    ]
    plan: Plan
    snapshot: Annotated[Snapshot | None, "null: the probe gave none"]
    result: HostResult


class CollectedResult(TypedDict):
    """The result of a host that verifies itself: /var/lib/gpufleet-pull/HOST.json.

    `verify --pulled` judges its snapshot by the inventory's plan of today; `verify --snapshot FILE`
    by the plan in it.
    """

    schema: Annotated[int, "1"]
    host: Text
    looked: Annotated[Time, "when the host was probed"]
    plan: Plan
    snapshot: Annotated[Snapshot | None, "null: the probe gave none"]
    result: HostResult
    scrub: NotRequired[
        Annotated[list[ContentsRead], "how far contents were read; the next run goes on there"]
    ]
