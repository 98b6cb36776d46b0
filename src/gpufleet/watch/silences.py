"""Silences: known faults of which nobody is notified until a day. Verdicts stay what they are.

A silence covers what its check found when it was set, and only that: another cause, one more cause
or a worse verdict sounds. What the finding of a silenced check explains is silenced with it. Each
silence is a flag of its host in the history, so setting one is one transaction, and a new history
begins without any.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from gpufleet.documents.nightly import Changes, Silence, SilencedCause, Standing
from gpufleet.documents.validator import faults
from gpufleet.documents.verdict import (
    HEALTHY_VERDICTS,
    CheckResult,
    HostResult,
    Silenced,
    Verdict,
    Verdicts,
    worst,
)
from gpufleet.judge import judge

from . import baselines
from .change import OUTLIER, SLOW, comparable

if TYPE_CHECKING:
    from gpufleet.fleet.session import Session

# By host and check.
Silences = Mapping[tuple[str, str], Silence]
# A check's verdict, its cause, and the check whose finding explains it.
Row = tuple[str, str, str]

# How the name of a silence's flag begins; the check follows.
FLAG = "silence "
# Characters of a date.
_DAY = len("2026-12-15")
# Worst first: a silence covers its verdict and the milder ones.
RANKS = (
    *(each.value for each in Verdict if each not in HEALTHY_VERDICTS),
    SLOW,
    OUTLIER,
)
# Changes that tell a check's verdict; of the others the text is the cause.
OF_VERDICT = {"failure", "other-cause", "flapping"}
# How the judge joins the causes of one check.
BETWEEN = ". "


class FlagStore(Protocol):
    """The part of `History` that silences need."""

    def flag(self, host: str, name: str, value: str | None) -> None:
        """Store a named value of a host; None deletes it."""

    def flags_named(self, pattern: str) -> list[tuple[str, str, str]]:
        """Each (host, name, value) whose name matches a GLOB pattern."""


# -- the file --------------------------------------------------------------------------------------


def read(history: FlagStore) -> dict[tuple[str, str], Silence]:
    """Every recorded silence, over or not. One that is damaged silences nothing."""
    found: dict[tuple[str, str], Silence] = {}
    for host, name, value in history.flags_named(f"{FLAG}*"):
        with suppress(ValueError, TypeError, RecursionError):
            silence = json.loads(value)
            if not faults(Silence, silence, "silence"):
                found[host, name.removeprefix(FLAG)] = _in_present_words(silence)
    return found


def _in_present_words(silence: Silence) -> Silence:
    """The silence; earlier releases stored a slow card's cause with its environment."""
    causes: list[SilencedCause] = [
        {**row, "cause": baselines.known_as(row["cause"])} if row["verdict"] == SLOW else row
        for row in silence["causes"]
    ]
    return {**silence, "causes": causes}


def store(history: FlagStore, silence: Silence) -> None:
    """Record a silence, in place of an earlier one of the same host and check."""
    history.flag(silence["host"], f"{FLAG}{silence['check']}", json.dumps(silence))


def end(history: FlagStore, silence: Silence, now: str) -> None:
    """End a silence. It stays recorded: the next run reports what it covered and still stands."""
    store(history, {**silence, "until": min(_last_moment(silence), now)})


def ended(silence: Silence) -> bool:
    """Return whether a silence was ended before its last day: its end is a time, and no day."""
    return len(silence["until"]) > _DAY


def last_day(silence: Silence) -> str:
    """The day on which it ends, however it ends."""
    return silence["until"][:_DAY]


def _last_moment(silence: Silence) -> str:
    return silence["until"] if ended(silence) else f"{silence['until']}T23:59:59Z"


def end_expired(history: FlagStore, expired: Callable[[str], bool]) -> None:
    """Delete the silences whose last moment is `expired`."""
    for (host, check), silence in read(history).items():
        if expired(_last_moment(silence)):
            history.flag(host, f"{FLAG}{check}", None)


# -- what a silence covers -------------------------------------------------------------------------


def in_force(silence: Silence, night: str) -> bool:
    """Return whether a silence has not expired in a run that started at this time."""
    return night[: len(silence["until"])] <= silence["until"]


def end_of(silenced: Silenced) -> int:
    """When it ends: the end of its last day, in seconds since the epoch."""
    last = datetime.strptime(silenced["until"], "%Y-%m-%d").replace(tzinfo=UTC)
    return int((last + timedelta(days=1)).timestamp())


def matches(silence: Silence, verdict: str, cause: str) -> bool:
    """Return whether a cause was found when the silence was set, or is a part of such a cause."""
    return verdict in RANKS and any(
        known["verdict"] in RANKS
        and RANKS.index(verdict) >= RANKS.index(known["verdict"])
        and parts(cause) <= parts(known["cause"])
        for known in silence["causes"]
    )


def parts(cause: str) -> frozenset[tuple[str, ...]]:
    """The causes that a check's cause consists of, without the numbers that no cause depends on."""
    # Text from a host may not be valid Unicode; the history stores it so.
    stored = cause.encode("utf-8", "backslashreplace").decode()
    return frozenset(map(comparable, stored.removesuffix(".").split(BETWEEN)))


def covering(
    silences: Silences, key: tuple[str, str], verdict: str, cause: str, night: str
) -> Silenced | None:
    """The silence that covers what is found of a host's check in a run that started then."""
    silence = silences.get(key)
    if silence and in_force(silence, night) and matches(silence, verdict, cause):
        return {"until": last_day(silence), "who": silence["who"], "why": silence["why"]}
    return None


def of_host(
    silences: Silences, host: str, rows: Mapping[str, Row], night: str
) -> dict[str, Silenced]:
    """By check of a host, the silence that covers it or the check that explains it."""
    direct = {
        check: silenced
        for check, (verdict, cause, _) in rows.items()
        if (silenced := covering(silences, (host, check), verdict, cause, night))
    }
    explained = {
        check: direct[explained_by]
        for check, (verdict, _, explained_by) in rows.items()
        if explained_by in direct
        and verdict in RANKS
        and RANKS.index(verdict) >= RANKS.index(rows[explained_by][0])
    }
    return {**explained, **direct}


def standing_cause(row: Standing) -> str:
    """The cause of a row of `standing` as a silence compares it."""
    return row.get("known_as", row["cause"])


def verdict_of(kind: str) -> str:
    """The verdict that a silence has of a change that tells no check's verdict."""
    return {"throughput": SLOW, "outlier": OUTLIER}.get(kind, Verdict.FAIL.value)


# -- a session -------------------------------------------------------------------------------------


def applied(session: Session, silences: Silences) -> Session:
    """The session with `silenced` in each check that a silence covers; verdicts stay."""
    hosts = {host for host, _ in silences}
    if not hosts:
        return session
    return replace(
        session,
        hosts=[
            host.with_result(_marked(host.name, host.result, silences, session.started))
            if host.name in hosts
            else host
            for host in session.hosts
        ],
    )


def _marked(host: str, result: HostResult, silences: Silences, night: str) -> HostResult:
    rows = {
        check["id"]: (check["verdict"], check["cause"], check.get("explained_by", ""))
        for check in result["checks"]
    }
    silenced = of_host(silences, host, rows, night)

    def mark(check: CheckResult) -> CheckResult:
        return {**check, "silenced": silenced[check["id"]]} if check["id"] in silenced else check

    return {**result, "checks": [mark(check) for check in result["checks"]]}


def silenced_checks(verdicts: Verdicts) -> dict[tuple[str, str], Silenced]:
    """By host and check, the silence of each silenced check."""
    return {
        (host, check["id"]): check["silenced"]
        for host, result in verdicts["hosts"].items()
        for check in result["checks"]
        if "silenced" in check
    }


def sounding_verdict(result: HostResult) -> str:
    """The host's verdict without its silenced checks."""
    if not any("silenced" in check for check in result["checks"]):
        return result["verdict"]
    sounding = [
        Verdict(check["verdict"])
        for check in result["checks"]
        if "silenced" not in check and check["verdict"] not in HEALTHY_VERDICTS
    ]
    return worst(sounding).value if sounding else Verdict.PASS.value


def exit_status(verdicts: Verdicts) -> int:
    """The exit status of the nightly run: that of `verify`, without silenced checks."""
    hosts: dict[str, HostResult] = {
        name: {**result, "verdict": sounding_verdict(result)}
        for name, result in verdicts["hosts"].items()
    }
    return judge.exit_status({**verdicts, "hosts": hosts})


# -- setting one -----------------------------------------------------------------------------------


def found_causes(
    changes: Changes, rows: Mapping[str, Row], host: str, check: str
) -> list[SilencedCause]:
    """The causes of a check in a run: its verdict, and the findings of the history."""
    verdict, cause, _ = rows.get(check, ("", "", ""))
    found: list[SilencedCause] = [{"verdict": verdict, "cause": cause}] if verdict in RANKS else []
    found += [
        {"verdict": row["verdict"], "cause": standing_cause(row)}
        for row in changes["standing"]
        if (row["host"], row["check"]) == (host, check) and row["verdict"] in {SLOW, OUTLIER}
    ]
    found += [
        {"verdict": verdict_of(row["kind"]), "cause": row.get("known_as", row["text"])}
        for row in changes["changes"]
        if (row["host"], row["check"]) == (host, check)
        and row["kind"] not in OF_VERDICT
        and row["kind"] != "unsilenced"
        and row["weight"] != "good"
        # A note is no fault yet, and its fault is not known.
        and (row["kind"] != "outlier" or row["weight"] == "bad")
    ]
    return [row for number, row in enumerate(found) if row not in found[:number]]
