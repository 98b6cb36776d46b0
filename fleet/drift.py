"""What is different tonight: pure functions from what some nights said to the CHANGES document.

A night that could not judge (host unreachable, check inconclusive) neither counts nor forgives:
checks are compared with their last judged night, and only PASS is a recovery. What comes and goes
is told once, as flapping, and again when it settles. A measured speed is compared with the host's
own past, by median and median deviation, and told in the second night in a row that it is low.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from verify.verdict import Verdict

SCHEMA = 1
REACHABLE, THROUGHPUT = "host.reachable", "gpu.throughput"

# A night's verdict as a letter; a host or check that was not there that night has none.
LETTERS = {
    Verdict.PASS: "P", Verdict.FAIL: "F", Verdict.HUNG: "H", Verdict.UNREACHABLE: "U",
    Verdict.INCONCLUSIVE: "?", Verdict.NOT_DECLARED: "-",
}
NOT_THERE = "."
BAD, JUDGED = "FHU", "PFH-"
_WORDS = {letter: verdict.value for verdict, letter in LETTERS.items()}

# Of the last so many judged nights, how often it changed; so many the same, and it has settled.
FLAP_NIGHTS, FLAP_TURNS, SETTLED = 10, 4, 3
# A past of fewer nights tells nothing. Low is what lies so many deviations below the median, which
# is taken to spread by this part of it at least: the clocks of two healthy nights do.
LEAST_NIGHTS, DEVIATIONS, LEAST_SPREAD = 7, 3.5, 0.02
# What is above this part of the best of its past cannot be low.
NEVER_LOW = 1 - DEVIATIONS * LEAST_SPREAD
# From the median deviation to the standard deviation of what is spread normally.
MAD_TO_SIGMA = 1.4826
STRIKES = 2

KINDS = {"driver": "driver", "kernel": "kernel", "gpus": "gpu"}
WEIGHTS = ("bad", "good", "note")


@dataclass(frozen=True)
class Said:
    """What a night said of a check."""

    letter: str
    cause: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Change:
    """One thing that is different; `text` is a sentence that does without the host's name."""

    kind: str
    host: str
    check: str | None
    before: str | None
    after: str | None
    text: str
    remedy: str
    weight: str
    strikes: int = 0


@dataclass
class Window:
    """Some nights, oldest first, the last one tonight; what is not there has no entry.

    `hosts`: each host's letters. `checks`: by host and check, what each night said, of those that
    were not healthy in any of them; None where the night said nothing. `texts`: by host and
    measure, what was known last and tonight's. `speeds`: by host and measure, each night's number.
    """

    nights: list[str]
    hosts: dict[str, str]
    checks: dict[tuple[str, str], list[Said | None]] = field(default_factory=dict)
    texts: dict[tuple[str, str], tuple[str | None, str]] = field(default_factory=dict)
    speeds: dict[tuple[str, str], list[float | None]] = field(default_factory=dict)


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


def _changes(window: Window) -> Iterator[Change]:
    for host, letters in window.hosts.items():
        reached = window.checks.get((host, REACHABLE), [None])[-1]
        yield from of_host(host, letters, reached)
    unjudged: dict[str, dict[str, Said]] = defaultdict(dict)
    for (host, check), line in window.checks.items():
        if check != REACHABLE:
            yield from of_check(host, check, line)
            if line[-1] and newly_unjudged(line):
                unjudged[host][check] = line[-1]
    for host, checks in unjudged.items():
        yield of_unjudged(host, checks)
    yield from of_texts(window.texts)
    yield from of_speeds(window.speeds)


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
        after_nights = f" after {_nights(was)}" if was else ", after having come and gone"
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


def _nights(count: int) -> str:
    return "one night" if count == 1 else f"{count} nights"


# -- versions and cards ----------------------------------------------------------------------------


def of_texts(texts: Mapping[tuple[str, str], tuple[str | None, str]]) -> Iterator[Change]:
    """Versions, drivers, kernels and cards that are others than when last seen."""
    places = {card: host for (host, name), (_, after) in texts.items() if name == "gpus"
              for card in cards(after)}
    for (host, name), (before, after) in texts.items():
        if before is None or before == after:
            continue
        if name == "gpus":
            yield from of_cards(host, cards(before), cards(after), places)
            continue
        what = name.partition(".")[0]
        yield Change(KINDS.get(what, "version"), host, None, before, after,
                     f"{_title(name)}: {after}, and was {before}.",
                     f"if nobody meant it: ./gpufleet plan --limit {host}", "note")


def cards(text: str) -> dict[str, tuple[str, str]]:
    """{UUID: (address, model)} of the measure `gpus`."""
    rows = (row.split(" ", 2) for row in text.split("; ") if row != "none")
    return {uuid: (address, model) for address, uuid, model in rows if uuid != "-"}


def of_cards(
    host: str, before: Mapping[str, tuple[str, str]], after: Mapping[str, tuple[str, str]],
    places: Mapping[str, str],
) -> Iterator[Change]:
    """Cards by their UUIDs: swapped, moved, gone, new. `places`: on which host each is tonight."""
    now = {address: uuid for uuid, (address, _) in after.items()}
    swapped: set[str] = set()

    def change(uuid: str | None, new: str | None, text: str, remedy: str, weight: str) -> Change:
        return Change("gpu", host, None, uuid, new, text, remedy, weight)

    for uuid, (address, model) in before.items():
        other = now.get(address)
        if uuid in after:
            if after[uuid][0] != address:
                yield change(uuid, uuid, f"{uuid} ({model}) is at {after[uuid][0]} now, and was at"
                             f" {address}.", "", "note")
        elif other and other not in before:
            swapped.add(other)
            gone = f"; {uuid} is in {places[uuid]} now" if uuid in places else ""
            yield change(uuid, other, f"At {address} is another card: {other} ({after[other][1]}),"
                         f" and was {uuid} ({model}){gone}.",
                         "put the new UUID into gpu_expect.uuids, where they are declared", "note")
        elif uuid in places:
            yield change(uuid, None, f"{uuid} ({model}) is in {places[uuid]} now.", "", "note")
        else:
            yield change(uuid, None, f"{uuid} ({model}) at {address} is gone.",
                         "see gpu.count and kernel.log; look whether it sits in its slot and has"
                         " power", "bad")
    for uuid, (address, model) in after.items():
        if uuid not in before and uuid not in swapped:
            yield change(None, uuid, f"{uuid} ({model}) at {address} is new.",
                         "declare it in gpu_expect", "note")


def _title(name: str) -> str:
    plain = {"driver.version": "Driver", "kernel.running": "Running kernel",
             "os.version": "Operating system", "toolkits": "CUDA toolkits", "stacks": "Stacks",
             "containers.engine": "Container engine",
             "containers.toolkit": "NVIDIA's container toolkit"}
    if name in plain:
        return plain[name]
    for start, title in (("toolkit.", "CUDA {}"), ("cudnn.", "cuDNN of {}"), ("stack.", "{}")):
        if name.startswith(start):
            inner, _, what = name.removeprefix(start).rpartition(".")
            return title.format(inner) + ("" if what == "version" else f", its {what.title()}")
    return name


# -- speeds ----------------------------------------------------------------------------------------


def low(value: float, past: Sequence[float]) -> bool:
    """Whether it lies below what its own past makes likely."""
    if len(past) < LEAST_NIGHTS:
        return False
    usual = statistics.median(past)
    if value >= NEVER_LOW * usual:
        return False
    spread = MAD_TO_SIGMA * statistics.median(abs(each - usual) for each in past)
    return value < usual - DEVIATIONS * max(spread, LEAST_SPREAD * usual)


@dataclass(frozen=True)
class Slow:
    """How many measured nights in a row were low, up to tonight and to the night before; usual."""

    row: int
    before: int
    usual: float
    now: float

    @property
    def drop(self) -> float:
        """By which part of the usual it is lower."""
        return 1 - self.now / self.usual


def slowness(speeds: Sequence[float | None]) -> Slow | None:
    """Of one measure, where it may be low or was. A low night is no part of what is usual."""
    known = [value for value in speeds if value is not None]
    if speeds[-1] is None or min(known[-2:]) >= NEVER_LOW * max(known):
        return None
    usual: list[float] = []
    row = before = 0
    for value in known:
        before, is_low = row, low(value, usual)
        row = row + 1 if is_low else 0
        if not is_low:
            usual.append(value)
    # Tonight's is no part of the past that it is compared with.
    past = usual if row else usual[:-1]
    return Slow(row, before, statistics.median(past) if past else speeds[-1], speeds[-1])


def of_speeds(speeds: Mapping[tuple[str, str], Sequence[float | None]]) -> Iterator[Change]:
    """Once for each card (or processor), by its largest loss, in the second low night."""
    found: dict[tuple[str, str], list[tuple[Slow, str]]] = defaultdict(list)
    for (host, name), line in speeds.items():
        device, _, where = name.removesuffix(".tflops").partition(
            ".toolkit." if ".toolkit." in name else ".stack.")
        slow = slowness(line)
        if slow:
            how = f"in CUDA {where}" if ".toolkit." in name else f"in {where}"
            found[host, device.removeprefix("gpu.")].append((slow, how))
    for (host, device), each in found.items():
        worst, how = max(each, key=lambda it: (it[0].row, it[0].drop))
        # Without a UUID a card has its number.
        title = {"cpu": "The processor"}.get(device, device if "-" in device else f"GPU {device}")
        if worst.row == STRIKES:
            yield Change(
                "throughput", host, THROUGHPUT, f"{worst.usual:.4g} TFLOP/s",
                f"{worst.now:.4g} TFLOP/s",
                f"{title} multiplies at {worst.now:.4g} TFLOP/s {how},"
                f" {worst.drop:.0%} below the {worst.usual:.4g} of its own past.",
                "see gpu.throttle, gpu.settings and gpu.pcie; look who else computes on it;"
                " ./gpufleet verify --deep shows temperatures and clocks under load", "bad",
                worst.row)
        elif not worst.row and any(slow.before >= STRIKES for slow, _ in each):
            slow, how = max(each, key=lambda it: it[0].before)
            yield Change(
                "throughput", host, THROUGHPUT, None, f"{slow.now:.4g} TFLOP/s",
                f"{title} multiplies as fast as before again {how}, after"
                f" {_nights(slow.before)}.", "", "good")
