"""The effect of silences on a night's changes: marks, and reports of what sounds again. Pure.

A change that is marked is in the document and in no notification. What a silence no longer covers
is reported once: when it is over, and when another cause is found where nothing else reports it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpufleet.documents.nightly import Silence, Standing
from gpufleet.documents.verdict import HEALTHY_VERDICTS, LETTERS, Silenced, Verdict

from . import outliers, silences
from .change import OUTLIER, SLOW, Change, count_nights
from .silences import OF_VERDICT, standing_cause

if TYPE_CHECKING:
    from .drift import CheckResult, Window

_VERDICTS = {letter: verdict for verdict, letter in LETTERS.items()}


def tonight(window: Window) -> dict[tuple[str, str], Silenced]:
    """By host and check, the silence that covers tonight's result."""
    rows: dict[str, dict[str, silences.Row]] = defaultdict(dict)
    hosts = {host for host, _ in window.silences}
    for (host, check), line in window.checks.items():
        if host in hosts and (now := line[-1]):
            rows[host][check] = _VERDICTS[now.letter].value, now.cause, now.explained_by
    return {
        (host, check): silenced
        for host, found in rows.items()
        for check, silenced in silences.of_host(
            window.silences, host, found, window.nights[-1]
        ).items()
    }


def of_standing(window: Window, rows: Iterable[Standing]) -> list[Standing]:
    """Rows of the document's `standing` that are no check's verdict, marked where silenced."""

    def marked(row: Standing) -> Standing:
        key, cause = (row["host"], row["check"]), standing_cause(row)
        night = window.nights[-1]
        silenced = silences.covering(window.silences, key, row["verdict"], cause, night)
        return {**row, "silenced": silenced} if silenced else row

    return [marked(row) for row in rows]


def marked(
    window: Window, host: str, standing: Sequence[Standing], changes: list[Change]
) -> list[Change]:
    """A host's changes, marked where a silence covers them, and what one no longer covers."""
    own = [silence for (name, _), silence in window.silences.items() if name == host]
    if not own:
        return changes
    found = [replace(change, silenced=_of_change(window, change)) for change in changes]
    for silence in own:
        key = host, silence["check"]
        # The check of outliers has a row for each card, and each card has changes of its own.
        reported = {
            change.known_as
            for change in changes
            if change.check == silence["check"] and _is_bad(change)
        }
        rows = [
            row
            for row in standing
            if (row["host"], row["check"]) == key and row["verdict"] != Verdict.INCONCLUSIVE
        ]
        found += _sounding_again(
            window, silence, [row for row in rows if row.get("known_as", "") not in reported]
        )
    return found


def _of_change(window: Window, change: Change) -> Silenced | None:
    if change.weight == "good" or not change.check:
        return None
    key, night = (change.host, change.check), window.nights[-1]
    if change.kind not in OF_VERDICT:
        verdict, cause = silences.verdict_of(change.kind), change.known_as or change.text
        return silences.covering(window.silences, key, verdict, cause, night)
    results = [result for result in window.checks.get(key, ()) if result]
    if results and _VERDICTS[results[-1].letter] in HEALTHY_VERDICTS:
        # It flaps, and passes tonight: what is reported of it is its last failure.
        last = next(filter(_failed, reversed(results)), None)
        verdict, cause = (_VERDICTS[last.letter].value, last.cause) if last else ("", "")
        return silences.covering(window.silences, key, verdict, cause, night)
    return window.silenced.get(key)


def _sounding_again(window: Window, silence: Silence, rows: list[Standing]) -> Iterator[Change]:
    """Yield a change for each of the `rows`, what is bad of its check tonight, that sounds again.

    No other change of tonight reports the check.
    """
    night = window.nights[-1]
    line = window.checks.get((silence["host"], silence["check"]), [])
    known = [silences.parts(result.cause) for result in line[:-1] if result and _failed(result)]
    for row in rows:
        text = row["cause"]
        if "silenced" not in row and _is_over(window, silence, row):
            kind = "unsilenced"
            what = (
                f"is still bad, for {count_nights(row['strikes'])} in a row, and its silence ended"
                f" on {silences.last_day(silence)}"
            )
        elif "silenced" in row or row["verdict"] == SLOW or not silences.in_force(silence, night):
            continue
        elif row["verdict"] == OUTLIER and (new := _new_parts(window, silence, row)):
            kind, what, text = "other-cause", "has another cause than the silenced one", new
        # A flapping check is not reported for another cause, but its silence is for one cause only.
        elif row["verdict"] != OUTLIER and silences.parts(row["cause"]) not in known:
            kind, what = "other-cause", "fails for another cause than the silenced one"
        else:
            continue
        yield Change(
            kind,
            row["host"],
            row["check"],
            None,
            f"{row['verdict']}: {row['cause']}",
            f"{row['check']} {what}: {text.removesuffix('.')}.",
            row["remedy"],
            "bad",
            row["strikes"],
            row.get("explained_by", ""),
        )


def _is_over(window: Window, silence: Silence, row: Standing) -> bool:
    """Return whether the silence covered a fault when it was last bad, and is over tonight."""
    if silences.in_force(silence, window.nights[-1]):
        return False
    line = window.checks.get((row["host"], row["check"]))
    if line is None:
        night = _last_measured(window, row)
        return silences.in_force(silence, night) and silences.matches(
            silence, row["verdict"], standing_cause(row)
        )
    failed = [number for number, result in enumerate(line[:-1]) if result and _failed(result)]
    if not failed:
        return False
    last = line[failed[-1]]
    return (
        last is not None
        and silences.in_force(silence, window.nights[failed[-1]])
        and silences.matches(silence, _VERDICTS[last.letter].value, last.cause)
    )


def _last_measured(window: Window, row: Standing) -> str:
    """The last night before tonight in which what the row names was measured."""
    if row["verdict"] == OUTLIER:
        before = outliers.causes_before(window.outliers, row["host"])
        if silences.parts(standing_cause(row)) & _parts_of(before):
            return window.nights[-2]
    device = "gpu."
    if row["verdict"] == SLOW:
        device = f"gpu.{card['gpu']}." if (card := row.get("slow_card")) else "cpu."
    measured = {
        number
        for (host, name), line in window.speeds.items()
        if host == row["host"] and name.startswith(device)
        for number, speed in enumerate(line[:-1])
        if speed is not None
    }
    return window.nights[max(measured, default=len(window.nights) - 2)]


def _new_parts(window: Window, silence: Silence, row: Standing) -> str:
    """The parts of an outlier that no silence covers, and that the night before did not have."""
    causes = [known["cause"] for known in silence["causes"]]
    causes += outliers.causes_before(window.outliers, silence["host"])
    known = _parts_of(causes)
    sentences = standing_cause(row).split(silences.BETWEEN)
    return silences.BETWEEN.join(each for each in sentences if not silences.parts(each) <= known)


def _parts_of(causes: Iterable[str]) -> frozenset[tuple[str, ...]]:
    return frozenset[tuple[str, ...]]().union(*map(silences.parts, causes))


def _is_bad(change: Change) -> bool:
    return change.weight == "bad"


def _failed(result: CheckResult) -> bool:
    return _VERDICTS[result.letter] not in {*HEALTHY_VERDICTS, Verdict.INCONCLUSIVE}
