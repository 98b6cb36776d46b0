"""What is different tonight: pure functions from what some nights said to the CHANGES document.

A night that could not judge (host unreachable, check inconclusive) neither counts nor forgives:
checks are compared with their last judged night, and only PASS is a recovery. What comes and goes
is told once, as flapping, and again when it settles. A measured speed is compared with the host's
own past, by median and median deviation, and told in the second night in a row that it is low.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from gpufleet.model.verdict import Verdict

from . import speeds
from .change import WEIGHTS, Change, nights_of
from .versions import of_texts

SCHEMA = 1
REACHABLE = "host.reachable"

# A night's verdict as a letter; a host or check that was not there that night has none.
LETTERS = {
    Verdict.PASS: "P", Verdict.FAIL: "F", Verdict.HUNG: "H", Verdict.UNREACHABLE: "U",
    Verdict.INCONCLUSIVE: "?", Verdict.NOT_DECLARED: "-",
}
NOT_THERE = "."
BAD, JUDGED = "FHU", "PFH-"
# What somebody's work holds is busy, and nothing is different.
HELD = "; held by "
_WORDS = {letter: verdict.value for verdict, letter in LETTERS.items()}

# Of the last so many judged nights, how often it changed; so many the same, and it has settled.
FLAP_NIGHTS, FLAP_TURNS, SETTLED = 10, 4, 3


@dataclass(frozen=True)
class Said:
    """What a night said of a check."""

    letter: str
    cause: str = ""
    remedy: str = ""


@dataclass
class Window:
    """Some nights, oldest first, the last one tonight; what is not there has no entry.

    `hosts`: each host's letters. `checks`: by host and check, what each night said, of those that
    were not healthy in any of them; None where the night said nothing. `texts`: by host and
    measure, what was known last and tonight's. `cards`: of hosts whose cards are others tonight,
    all that they had before. `speeds`: by host and measure, each night's number.
    """

    nights: list[str]
    hosts: dict[str, str]
    checks: dict[tuple[str, str], list[Said | None]] = field(default_factory=dict)
    texts: dict[tuple[str, str], tuple[str | None, str]] = field(default_factory=dict)
    speeds: dict[tuple[str, str], list[float | None]] = field(default_factory=dict)
    cards: dict[str, set[str]] = field(default_factory=dict)


def document(window: Window) -> dict[str, Any]:
    """The CHANGES document of the window's last night."""
    first = len(window.nights) < 2
    changes = [] if first else sorted(
        _changes(window), key=lambda it: (WEIGHTS.index(it.weight), it.host, it.check or ""))
    return {
        "schema": SCHEMA,
        "since": None if first else window.nights[-2],
        "night": window.nights[-1],
        "changes": [asdict(change) for change in changes],
        "standing": sorted(_standing(window), key=lambda it: (it["host"], it["check"])),
        "hosts": _counts(window, -1),
        "hosts_before": None if first else _counts(window, -2),
    }


def _counts(window: Window, night: int) -> dict[str, int]:
    letters = [line[night] for line in window.hosts.values()]
    return {verdict.value: letters.count(letter) for verdict, letter in LETTERS.items()}


def _standing(window: Window) -> Iterator[dict[str, Any]]:
    """All that is bad tonight, new or not."""
    for (host, check), line in window.checks.items():
        now = line[-1]
        if now and now.letter in BAD:
            letters = reach(window.hosts[host]) if check == REACHABLE else _letters(line)
            yield {"host": host, "check": check, "verdict": _WORDS[now.letter], "cause": now.cause,
                   "remedy": now.remedy, "strikes": strikes(letters)}
    yield from speeds.standing(window.speeds)


def _changes(window: Window) -> Iterator[Change]:
    for host, letters in window.hosts.items():
        reached = window.checks.get((host, REACHABLE), [None])[-1]
        yield from of_host(host, letters, reached)
    unjudged: dict[str, dict[str, Said]] = defaultdict(dict)
    for (host, check), line in window.checks.items():
        if check != REACHABLE:
            yield from of_check(host, check, line)
            if line[-1] and newly_unjudged(line) and HELD not in line[-1].cause:
                unjudged[host][check] = line[-1]
    for host, checks in unjudged.items():
        yield of_unjudged(host, checks)
    yield from of_texts(window.texts, window.cards)
    yield from speeds.of_speeds(window.speeds)


# -- in a row, and to and fro ----------------------------------------------------------------------


def judged(letters: str) -> list[bool]:
    """Of the nights that judged it: whether each was bad. An unreachable host is."""
    return [letter in BAD for letter in letters if letter in JUDGED + BAD]


def strikes(letters: str) -> int:
    """How many judged nights in a row were bad, the last one included."""
    count = 0
    for bad in reversed(judged(letters)):
        if not bad:
            break
        count += 1
    return count


def flaps(nights: Sequence[bool]) -> bool:
    """Whether it comes and goes, rather than having come or gone."""
    recent = nights[-FLAP_NIGHTS:]
    turns = sum(one != other for one, other in pairwise(recent))
    return turns >= FLAP_TURNS and len(set(recent[-SETTLED:])) > 1


def course(nights: Sequence[bool]) -> str | None:
    """What the last of these nights brings: failure, recovery, flapping, or nothing new."""
    before, now = nights[:-1], nights[-1]
    if flaps(nights):
        return None if flaps(before) else "flapping"
    if flaps(before) or now != (before[-1] if before else False):
        return "failure" if now else "recovery"
    return None


# -- hosts -----------------------------------------------------------------------------------------


def of_host(host: str, letters: str, reached: Said | None) -> Iterator[Change]:
    """That it appeared, vanished, was not reached or is reached again: once, not once per check."""
    now, last = letters[-1], letters[-2]
    if now == NOT_THERE:
        if last != NOT_THERE:
            yield Change("vanished", host, None, _WORDS[last], None,
                         "It is in the inventory no longer: nobody looks at it.",
                         "put it back, if nobody meant to take it out", "note")
        return
    if last == NOT_THERE:
        again = " again" if letters.strip(NOT_THERE)[:-1] else ""
        yield Change("appeared", host, None, None, _WORDS[now], f"It is in the inventory{again}.",
                     "", "note")
    kind = course(judged(reach(letters)))
    cause, remedy = (reached.cause, reached.remedy) if reached else ("", "")
    yield from _told(kind, host, REACHABLE, letters=reach(letters), cause=cause, remedy=remedy,
                     words=("It is not reached", "It is reached again",
                            "It is reached in some nights and not in others"))


def reach(letters: str) -> str:
    """Of a host's letters, those of the check `host.reachable`."""
    return re.sub("[^U]", "P", letters.replace(NOT_THERE, ""))


# -- checks ----------------------------------------------------------------------------------------


def of_check(host: str, check: str, line: Sequence[Said | None]) -> Iterator[Change]:
    """A check that fails, holds again, fails for another cause, or does all this in turn."""
    known = [said for said in line if said and said.letter in JUDGED]
    now = line[-1]
    if not now or not known or now is not known[-1]:
        return
    letters, last = _letters(known), known[-2] if known[1:] else None
    bad = now.letter in BAD
    kind = course(judged(letters))
    if kind == "recovery" and now.letter == "-" and last and last.letter in BAD:
        yield Change("recovery", host, check, _was(last), _WORDS[now.letter],
                     f"{check} is declared no longer; it had failed.", "", "note")
        return
    if not kind and bad and last and not flaps(judged(letters)) and (
            likeness(last.cause) != likeness(now.cause)):
        yield Change("other-cause", host, check, _was(last), _was(now),
                     f"{check} fails for another cause: {_sentence(now.cause)}", now.remedy, "bad",
                     strikes(letters))
    cause = now.cause if bad else last.cause if last else ""
    yield from _told(kind, host, check, letters=letters, cause=cause, remedy=now.remedy,
                     words=(f"{check} hangs" if now.letter == "H" else f"{check} fails",
                            f"{check} holds again",
                            f"{check} fails in some nights and not in others"))


def _told(
    kind: str | None, host: str, check: str, *, letters: str, cause: str, remedy: str,
    words: tuple[str, str, str],
) -> Iterator[Change]:
    """A turn in plain words; `letters` are those of the nights that judged it."""
    if not kind:
        return
    bad = letters[-1] in BAD
    before = _WORDS[letters[-2]] if letters[1:] else None
    after = _WORDS[letters[-1]]
    row, nights = strikes(letters), judged(letters)
    because = f": {_sentence(cause)}" if cause else "."
    if kind == "flapping":
        text = f"{words[2]}{because}"
        yield Change(kind, host, check, before, after, text, remedy, "bad", row)
    elif bad:
        settled = f" for {row} nights in a row, after having come and gone" if flaps(
            nights[:-1]) else ""
        yield Change(kind, host, check, before, f"{after}: {cause}" if cause else after,
                     f"{words[0]}{settled}{because}", remedy, "bad", row)
    else:
        was = strikes(letters[:-1])
        after_nights = f" after {nights_of(was)}" if was else ", after having come and gone"
        yield Change(kind, host, check, f"{before}: {cause}" if was and cause else before, after,
                     f"{words[1]}{after_nights}.", "", "good")


def newly_unjudged(line: Sequence[Said | None]) -> bool:
    """Whether it could be judged until tonight, and not only by chance."""
    letters = _letters(line)[-FLAP_NIGHTS:]
    return letters.endswith("?") and "?" not in letters[:-1]


def of_unjudged(host: str, checks: Mapping[str, Said]) -> Change:
    """What could not be judged tonight, once for the host: most often it has one reason."""
    names = sorted(checks)
    first = checks[names[0]]
    more = f" and {len(names) - 1} more" if names[1:] else ""
    return Change("failure", host, names[0] if not more else None, None,
                  Verdict.INCONCLUSIVE.value,
                  f"{names[0]}{more} could not be judged: {_sentence(first.cause)}", first.remedy,
                  "note")


def likeness(cause: str) -> str:
    """A cause without the numbers that are another one each night; those of names stay.

    `GPU 3`, `CUDA 11.8` and `Xid 79` are names, `at 9.13 TFLOP/s` and `pid 4711` are not.
    """
    def number(found: re.Match[str]) -> str:
        word = cause[:found.start()].split()[-1:]
        return found[0] if word and word[0][0].isupper() else "#"

    return re.sub(r"(?<![\w./:-])\d+(\.\d+)?(?![\w/:-]|\.\d)", number, cause)


def _letters(line: Sequence[Said | None]) -> str:
    return "".join(said.letter for said in line if said)


def _was(said: Said) -> str:
    return f"{_WORDS[said.letter]}: {said.cause}" if said.cause else _WORDS[said.letter]


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
