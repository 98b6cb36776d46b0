"""Detect changes: pure functions from the results of some nights to the CHANGES document.

A night that could not judge a check (host unreachable, check inconclusive) does not count: checks
are compared with their last judged night, and only PASS is a recovery. A check that flaps is
reported once, and again when it settles. A measured throughput is compared with the host's own
past, by median and median deviation, and reported in the second low night in a row.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

from gpufleet.documents.nightly import Changes, Silence, Standing
from gpufleet.documents.verdict import LETTERS, Silenced, Verdict
from gpufleet.errors import Defect, bounded
from gpufleet.judge import judge

from . import baselines, outliers, silenced_changes
from .change import WEIGHTS, Change, comparable, count_nights, limited
from .flapping import (
    BAD,
    JUDGED,
    is_flapping,
    judged,
    newly_unknown,
    strikes,
    transition,
    unjudged_nights,
)
from .outliers import Outliers
from .port_errors import error_changes
from .retention import read_time
from .strips import strips
from .versions import card_hosts, version_changes

T = TypeVar("T")

SCHEMA = 1
REACHABLE = "host.reachable"

# A verdict as a letter; a host or check that did not exist in a night has `NOT_THERE`.
NOT_THERE = "."
_VERDICTS = {letter: verdict.value for verdict, letter in LETTERS.items()}
UNJUDGED = {Verdict.INCONCLUSIVE.value}


@dataclass(frozen=True)
class CheckResult:
    """A check's result in one night."""

    letter: str
    cause: str = ""
    remedy: str = ""
    # The check whose finding explains it.
    explained_by: str = ""
    # Inconclusive only because processes hold the GPU: it was busy, which is not a change.
    held: bool = False


@dataclass
class Window:
    """The results of some nights, oldest first; the last one is tonight.

    `hosts`: each host's letters. `checks`: by host and check, each night's result (None: no
    result), of the checks that were unhealthy in any of the nights. `texts`: by host and measure,
    the last recorded text and tonight's. `cards`: all former cards of hosts whose cards differ
    tonight. `speeds`: by host and measure, each night's number. `counters`: error counters of
    ports, in the same form, of the last of these nights. `outliers`: the comparison with siblings
    tonight and in the night before.
    """

    nights: list[str]
    hosts: dict[str, str]
    checks: dict[tuple[str, str], list[CheckResult | None]] = field(default_factory=dict)
    texts: dict[tuple[str, str], tuple[str | None, str]] = field(default_factory=dict)
    speeds: dict[tuple[str, str], list[float | None]] = field(default_factory=dict)
    cards: dict[str, set[str]] = field(default_factory=dict)
    counters: dict[tuple[str, str], list[float | None]] = field(default_factory=dict)
    silences: dict[tuple[str, str], Silence] = field(default_factory=dict)
    outliers: Outliers = field(default_factory=Outliers)

    @cached_property
    def silenced(self) -> dict[tuple[str, str], Silenced]:
        """By host and check, the silence that covers tonight's result."""
        return silenced_changes.tonight(self)

    @property
    def own_past(self) -> dict[tuple[str, str], list[float | None]]:
        """The speeds of cards that are not compared with siblings."""
        compared = {
            (host, f"gpu.{card}.{measure}")
            for host, card, measure in self.outliers.tonight.compared
        }
        return {key: line for key, line in self.speeds.items() if key not in compared}


def document(window: Window) -> Changes:
    """Return the CHANGES document of the window's last night."""
    first = len(window.nights) < 2
    # Failures come first: programs get a part of a long list.
    standing = sorted(
        _standing(window), key=lambda it: (it["verdict"] in UNJUDGED, it["host"], it["check"])
    )
    changes = (
        []
        if first
        else sorted(
            _changes(window, standing),
            key=lambda it: (WEIGHTS.index(it.weight), it.host, it.check or ""),
        )
    )
    found: Changes = {
        "schema": SCHEMA,
        "since": None if first else window.nights[-2],
        "night": window.nights[-1],
        "changes": [change.entry() for change in changes],
        "standing": standing,
        "hosts": _counts(window, -1),
        "hosts_before": None if first else _counts(window, -2),
    }
    for row in (*found["changes"], *found["standing"]):
        row["remedy"] = limited(row["remedy"], row["host"])
    if window.outliers.tonight.spreads:
        found["strips"] = strips(window.outliers.tonight)
    return found


def _counts(window: Window, night: int) -> dict[str, int]:
    letters = [line[night] for line in window.hosts.values()]
    return {verdict.value: letters.count(letter) for verdict, letter in LETTERS.items()}


def _standing(window: Window) -> Iterator[Standing]:
    """Everything that is not healthy tonight, new or not."""
    for (host, check), line in window.checks.items():
        now = line[-1]
        # That a job held a GPU is no fault of it.
        unjudged = now and _VERDICTS[now.letter] in UNJUDGED and not now.held
        if now and (now.letter in BAD or unjudged):
            letters = reachability(window.hosts[host]) if check == REACHABLE else _letters(line)
            row: Standing = {
                "host": host,
                "check": check,
                "verdict": _VERDICTS[now.letter],
                "cause": now.cause,
                "remedy": now.remedy,
                "strikes": strikes(letters) if now.letter in BAD else unjudged_nights(letters),
            }
            if now.explained_by:
                row["explained_by"] = now.explained_by
            if silenced := window.silenced.get((host, check)):
                row["silenced"] = silenced
            yield row
    yield from silenced_changes.of_standing(
        window, outliers.standing(window.outliers.tonight, len(window.nights))
    )
    for speeds in _by_host(window.own_past).values():
        # Where it fails, that is among the host's changes.
        yield from bounded(
            "compared the throughput of this host",
            partial(silenced_changes.of_standing, window, baselines.standing(speeds)),
            lambda defect: [],
        )


def _by_host(values: Mapping[tuple[str, str], T]) -> dict[str, dict[tuple[str, str], T]]:
    found: dict[str, dict[tuple[str, str], T]] = defaultdict(dict)
    for key, value in values.items():
        found[key[0]][key] = value
    return found


def _changes(window: Window, standing: Sequence[Standing]) -> Iterator[Change]:
    """The changes of each host; a host on which comparing fails has that as its only one."""
    lines, texts, speeds = (
        _by_host(window.checks),
        _by_host(window.texts),
        _by_host(window.own_past),
    )
    counters = _by_host(window.counters)
    most = max(map(len, window.counters.values()), default=0)
    started = [read_time(night).timestamp() for night in window.nights[-most:]] if most else []
    now, before = (_explains(window, night) for night in (-1, -2))
    places = card_hosts(window.texts)

    # By host and group.
    outlying: dict[str, list[Change]] = defaultdict(list)
    for change in outliers.changes(window.outliers):
        outlying[change.host].append(change)

    def changes_of(name: str) -> list[Change]:
        found = outlying.get(name, []) + (found_on(name) if name in window.hosts else [])
        return silenced_changes.marked(window, name, standing, found)

    def found_on(host: str) -> list[Change]:
        return [
            *_host_changes(
                host,
                window.hosts[host],
                {check: line for (_, check), line in lines.get(host, {}).items()},
                now,
                before,
            ),
            *version_changes(texts.get(host, {}), places, window.cards.get(host, ())),
            *baselines.throughput_changes(speeds.get(host, {})),
            *error_changes(counters.get(host, {}), started),
        ]

    silent = {name for name, _ in window.silences}
    for name in dict.fromkeys((*window.hosts, *outlying, *silent)):
        yield from bounded(
            "compared this host with the nights before",
            partial(changes_of, name),
            partial(_defect_changes, name, outlying.get(name, [])),
        )


def _defect_changes(host: str, outlying: Sequence[Change], defect: Defect) -> list[Change]:
    known = judge.defective(defect, host)["checks"][0]
    return [
        *outlying,
        Change(
            "failure",
            host,
            None,
            None,
            Verdict.INCONCLUSIVE.value,
            f"{known['cause']}.",
            known["remedy"],
            "note",
        ),
    ]


def _host_changes(
    host: str,
    letters: str,
    lines: Mapping[str, Sequence[CheckResult | None]],
    now: Mapping[tuple[str, str], list[str]],
    before: Mapping[tuple[str, str], list[str]],
) -> list[Change]:
    found = list(host_changes(host, letters, lines.get(REACHABLE, [None])[-1]))
    unjudged: dict[str, CheckResult] = {}
    for check, line in lines.items():
        if check != REACHABLE:
            for change in check_changes(host, check, line):
                explains = (before if change.weight == "good" else now).get((host, check), ())
                found.append(replace(change, explains=tuple(explains)))
            if line[-1] and newly_unknown(map(_unknown, line)):
                unjudged[check] = line[-1]
    # Those that a check explains are named with it, where that one is reported tonight.
    reported = {change.check for change in found} | unjudged.keys()
    own = {
        check: result for check, result in unjudged.items() if result.explained_by not in reported
    }
    if own:
        found.append(
            replace(
                unjudged_change(host, own),
                explains=tuple(
                    dict.fromkeys(each for check in own for each in now.get((host, check), ()))
                ),
            )
        )
    return found


def _explains(window: Window, night: int) -> dict[tuple[str, str], list[str]]:
    """By host and check, the checks that its finding explained in a night."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (host, check), line in window.checks.items():
        if (result := line[night]) and result.explained_by:
            found[host, result.explained_by].append(check)
    return found


# -- hosts -----------------------------------------------------------------------------------------


def host_changes(host: str, letters: str, reached: CheckResult | None) -> Iterator[Change]:
    """Yield that a host appeared, vanished, is unreachable, or is reached again."""
    now, last = letters[-1], letters[-2]
    if now == NOT_THERE:
        if last != NOT_THERE:
            yield Change(
                "vanished",
                host,
                None,
                _VERDICTS[last],
                None,
                "The host is no longer in the inventory: it is not probed.",
                "if it was removed by mistake, add it again",
                "note",
            )
        return
    if last == NOT_THERE:
        again = " again" if letters.strip(NOT_THERE)[:-1] else ""
        yield Change(
            "appeared",
            host,
            None,
            None,
            _VERDICTS[now],
            f"The host is in the inventory{again}.",
            "",
            "note",
        )
    kind = transition(judged(reachability(letters)))
    cause, remedy = (reached.cause, reached.remedy) if reached else ("", "")
    yield from _report(
        kind,
        host,
        REACHABLE,
        letters=reachability(letters),
        cause=cause,
        remedy=remedy,
        texts=(
            "The host is unreachable",
            "The host is reachable again",
            "The host is reachable in some nights and not in others",
        ),
    )


def reachability(letters: str) -> str:
    """The letters of the check `host.reachable`, from a host's letters."""
    return re.sub("[^U]", "P", letters.replace(NOT_THERE, ""))


# -- checks ----------------------------------------------------------------------------------------


def check_changes(host: str, check: str, line: Sequence[CheckResult | None]) -> Iterator[Change]:
    """Yield that a check fails, passes again, fails for another cause, or flaps."""
    known = [result for result in line if result and result.letter in JUDGED]
    now = line[-1]
    if not now or not known or now is not known[-1]:
        return
    letters, last = _letters(known), known[-2] if known[1:] else None
    bad = now.letter in BAD
    kind = transition(judged(letters))
    if kind == "recovery" and now.letter == "-" and last and last.letter in BAD:
        yield Change(
            "recovery",
            host,
            check,
            _was(last),
            _VERDICTS[now.letter],
            f"{check} is no longer declared; it had failed.",
            "",
            "note",
        )
        return
    if (
        not kind
        and bad
        and last
        and not is_flapping(judged(letters))
        and comparable(last.cause) != comparable(now.cause)
    ):
        yield Change(
            "other-cause",
            host,
            check,
            _was(last),
            _was(now),
            f"{check} fails for another cause: {_sentence(now.cause)}",
            now.remedy,
            "bad",
            strikes(letters),
            now.explained_by,
        )
    shown = now if bad else last
    for change in _report(
        kind,
        host,
        check,
        letters=letters,
        cause=shown.cause if shown else "",
        remedy=now.remedy,
        texts=(
            f"{check} hangs" if now.letter == "H" else f"{check} fails",
            f"{check} passes again",
            f"{check} fails in some nights and not in others",
        ),
    ):
        yield replace(change, explained_by=shown.explained_by if shown else "")


def _report(
    kind: str | None,
    host: str,
    check: str,
    *,
    letters: str,
    cause: str,
    remedy: str,
    texts: tuple[str, str, str],
) -> Iterator[Change]:
    """Yield a transition; `letters`: of the judged nights, `texts`: failure, recovery, flapping."""
    if not kind:
        return
    bad = letters[-1] in BAD
    before = _VERDICTS[letters[-2]] if letters[1:] else None
    after = _VERDICTS[letters[-1]]
    row, nights = strikes(letters), judged(letters)
    because = f": {_sentence(cause)}" if cause else "."
    if kind == "flapping":
        text = f"{texts[2]}{because}"
        yield Change(kind, host, check, before, after, text, remedy, "bad", row)
    elif bad:
        settled = f" for {row} nights in a row, after flapping" if is_flapping(nights[:-1]) else ""
        yield Change(
            kind,
            host,
            check,
            before,
            f"{after}: {cause}" if cause else after,
            f"{texts[0]}{settled}{because}",
            remedy,
            "bad",
            row,
        )
    else:
        was = strikes(letters[:-1])
        after_nights = f" after {count_nights(was)}" if was else ", after flapping"
        yield Change(
            kind,
            host,
            check,
            f"{before}: {cause}" if was and cause else before,
            after,
            f"{texts[1]}{after_nights}.",
            "",
            "good",
        )


def _unknown(result: CheckResult | None) -> bool | None:
    """True if a night could not judge a check; None where it was not there, or its GPU busy."""
    return None if result is None or result.held else result.letter == "?"


def unjudged_change(host: str, checks: Mapping[str, CheckResult]) -> Change:
    """One change for all checks of a host that could not be judged: most often for one reason."""
    names = sorted(checks)
    first = checks[names[0]]
    more = f" and {len(names) - 1} more" if names[1:] else ""
    return Change(
        "failure",
        host,
        names[0] if not more else None,
        None,
        Verdict.INCONCLUSIVE.value,
        f"{names[0]}{more} could not be judged: {_sentence(first.cause)}",
        first.remedy,
        "note",
    )


def _letters(line: Sequence[CheckResult | None]) -> str:
    return "".join(result.letter for result in line if result)


def _was(result: CheckResult) -> str:
    verdict = _VERDICTS[result.letter]
    return f"{verdict}: {result.cause}" if result.cause else verdict


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
