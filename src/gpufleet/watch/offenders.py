"""Hosts and cards that fail again and again, by the nights that they lost.

A host loses a night in which it fails, hangs or is unreachable. A card loses one in which its host
does, and the cause of a check names the card, or the card is gone and no other one is in its place.
A card is known by its UUID wherever it is; a host that appears with most of the cards of one that
is gone is that host with a new name.

A failure ends by `SETTLED` healthy nights in a row; that it ended counts as a repair. What was done
is what the history knows: versions, cards and places that changed while it failed, and silences.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from gpufleet.documents.nightly import Failure, Offender, Offenders, Silence
from gpufleet.documents.verdict import silence_text

from . import offence_records, silences, versions
from .drift import NOT_THERE
from .flapping import BAD, SETTLED
from .history import CARDS, History
from .offence_records import Finding, Records, Texts

SCHEMA = 1
# A card that fails again after so many repairs is for replacement.
MOST_REPAIRS = 2
# The most checks, and acts, that are shown of one failure.
MOST_CHECKS, MOST_DONE = 5, 8
LOST, GOOD, UNKNOWN = "x", "o", " "

_UUID = re.compile(r"GPU-[0-9a-fA-F-]+")
_ADDRESS = re.compile(r"\b(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?\b")
_NUMBER = re.compile(r"\bGPU (\d+)\b")
# Two cards in one cause: which of them is at fault is unknown.
_PAIR = re.compile(r"\bGPU \d+ (?:to|and) GPU \d+\b")
# The checks that number GPUs by their PCI addresses; frameworks may have another order.
_BY_ADDRESS = ("gpu.", "toolkit.", "burn-in.")


class Act(NamedTuple):
    """Something that was done: at which number of the nights, on which day, and what."""

    at: float
    day: str
    text: str


@dataclass
class Subject:
    """A host or a card: its states by night, and where it was."""

    kind: str
    name: str
    states: list[str]
    # By number of the night: the host, and of a card its address.
    places: dict[int, tuple[str, str]] = field(default_factory=dict)
    findings: dict[int, list[Finding]] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """How many nights it lost."""
        return self.states.count(LOST)

    @property
    def hosts(self) -> list[str]:
        """The hosts of the subject, each once, the latest last."""
        found = [host for _, (host, _) in sorted(self.places.items())]
        return list(dict.fromkeys(reversed(found)))[::-1]


def document(history: History, last: int | None = None) -> Offenders:
    """The OFFENDERS document of the last nightly runs, or of all."""
    records = offence_records.read(history, last)
    subjects = ranked(records)
    texts = offence_records.texts_of(
        history, (host for subject in subjects for host in subject.hosts), last
    )
    return {
        "schema": SCHEMA,
        "nights": records.nights,
        "offenders": [entry(subject, records, texts) for subject in subjects],
    }


def ranked(records: Records) -> list[Subject]:
    """Each host and card that lost a night, the most nights first."""
    found = [*_hosts(records), *_cards(records)]
    return sorted(
        (subject for subject in found if subject.lost),
        key=lambda it: (-it.lost, it.kind != "gpu", it.name),
    )


def entry(subject: Subject, records: Records, texts: Mapping[str, Texts]) -> Offender:
    """The row of the document. `texts`: what changed, by host, of the hosts where it was."""
    spells = failures(subject.states)
    done = _done(subject, records, texts)
    last = max(subject.places)
    places = [subject.places[night] for night in sorted(subject.places)]
    before = list(dict.fromkeys(" ".join(filter(None, place)) for place in places))
    now = " ".join(filter(None, subject.places[last]))
    return {
        "kind": "gpu" if subject.kind == "gpu" else "host",
        "name": subject.name,
        "place": now,
        "before": [place for place in before if place != now],
        "nights_lost": subject.lost,
        "nights": sum(state != UNKNOWN for state in subject.states),
        "failures": [_failure(subject, records.nights, spell, done) for spell in spells],
        "replace": subject.kind == "gpu" and len(spells) > MOST_REPAIRS,
    }


def failures(states: Sequence[str]) -> list[tuple[int, int]]:
    """The first and the last lost night of each failure; shorter recoveries are parts of it."""
    found: list[tuple[int, int]] = []
    good = SETTLED
    for night, state in enumerate(states):
        if state == LOST:
            if good >= SETTLED:
                found.append((night, night))
            found[-1] = found[-1][0], night
            good = 0
        elif state == GOOD:
            good += 1
    return found


def _failure(
    subject: Subject,
    nights: Sequence[str],
    spell: tuple[int, int],
    done: Sequence[Act],
) -> Failure:
    first, last = spell
    lost = [night for night in range(first, last + 1) if subject.states[night] == LOST]
    checks = Counter(finding.check for night in lost for finding in subject.findings.get(night, ()))
    healthy = [night for night in range(last + 1, len(nights)) if subject.states[night] == GOOD]
    end = healthy[0] if healthy else len(nights)
    within = [f"{act.day}: {act.text}" for act in done if first < act.at <= end]
    more = len(within) - MOST_DONE
    return {
        "first": nights[first],
        "last": nights[last],
        "nights": len(lost),
        "over": len(healthy) >= SETTLED,
        "checks": [check for check, _ in checks.most_common(MOST_CHECKS)],
        "cause": next(
            (
                finding.cause
                for night in reversed(lost)
                for finding in subject.findings.get(night, ())
            ),
            "",
        ),
        "done": within[:MOST_DONE] + ([f"... and {more} more"] if more > 0 else []),
    }


# -- hosts -----------------------------------------------------------------------------------------


def successors(records: Records) -> dict[str, str]:
    """The new name of each host whose name is gone, by the cards of both."""
    seen = {
        host: [night for night, letter in enumerate(letters) if letter != NOT_THERE]
        for host, letters in records.letters.items()
    }
    end = len(records.nights) - 1
    gone = {host: nights[-1] for host, nights in seen.items() if nights and nights[-1] < end}
    found: dict[str, str] = {}
    for host, nights in sorted(seen.items(), key=lambda it: (it[1][:1], it[0])):
        own = _first_cards(records, host, nights)
        candidates = {
            other: len(own & cards)
            for other, last in gone.items()
            if nights and last < nights[0] and other not in found and other != host
            for cards in [_first_cards(records, other, reversed(seen[other]))]
            if 2 * len(own & cards) > max(len(own), len(cards))
        }
        if candidates:
            found[max(candidates, key=lambda other: (candidates[other], gone[other]))] = host
    return found


def _first_cards(records: Records, host: str, nights: Iterable[int]) -> set[str]:
    """The cards of a host in the first of these nights that read them."""
    text = next((text for night in nights if (text := records.cards[night].get(host))), "")
    return set(versions.cards(text))


def _latest_name(host: str, successor: Mapping[str, str]) -> str:
    while host in successor:
        host = successor[host]
    return host


def _hosts(records: Records) -> Iterator[Subject]:
    names: dict[str, list[str]] = defaultdict(list)
    successor = successors(records)
    for host in records.letters:
        names[_latest_name(host, successor)].append(host)
    for name, known in names.items():
        subject = Subject("host", name, [UNKNOWN] * len(records.nights))
        for host in known:
            for night, letter in enumerate(records.letters[host]):
                if letter == NOT_THERE:
                    continue
                subject.places[night] = host, ""
                subject.states[night] = _state(letter)
                if letter in BAD:
                    subject.findings[night] = records.findings.get((night, host), [])
        yield subject


def _state(letter: str) -> str:
    return LOST if letter in BAD else GOOD if letter in "P-" else UNKNOWN


# -- cards -----------------------------------------------------------------------------------------


# A host has the same text in most nights.
@lru_cache(maxsize=4096)
def listed(text: str) -> tuple[tuple[str, str], ...]:
    """Address and UUID of each card of the measure `gpus`, in the order of their numbers."""
    rows = (row.split(" ", 2) for row in text.split("; "))
    return tuple((row[0], row[1]) for row in rows if len(row) == 3)


def named_cards(findings: Iterable[Finding], text: str) -> dict[str, list[Finding]]:
    """The findings whose cause names a card, by UUID, on a host with these cards."""
    cards = listed(text)
    by_address = {_plain(address): uuid for address, uuid in cards}
    found: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        for part in finding.cause.split(". "):
            if _PAIR.search(part):
                continue
            named = set(_UUID.findall(part))
            named |= {by_address.get(_plain(each), "") for each in _ADDRESS.findall(part)}
            if finding.check.startswith(_BY_ADDRESS):
                numbers = [int(each) for each in _NUMBER.findall(part) if len(each) < 4]
                named |= {cards[number][1] for number in numbers if number < len(cards)}
            for uuid in named - {"", "-"}:
                if finding not in found[uuid]:
                    found[uuid].append(finding)
    return found


def _plain(address: str) -> tuple[int, str]:
    """A PCI address as nvidia-smi and the kernel write it, without its function."""
    domain, _, rest = address.rpartition(":")
    domain, _, bus = domain.rpartition(":")
    return int(domain or "0", 16), f"{bus}:{rest.partition('.')[0]}".lower()


def _cards(records: Records) -> Iterator[Subject]:
    """Each card that a cause names or that was missing in some night."""
    subjects: dict[str, Subject] = {}
    last: dict[str, str] = {}
    for night, texts in enumerate(records.cards):
        for host, letters in records.letters.items():
            text = texts.get(host)
            bad = letters[night] in BAD
            if bad:
                findings = records.findings.get((night, host), [])
                gone = _missing(last.get(host, ""), text, texts) if text else {}
                lost = named_cards(findings, text or last.get(host, ""))
                for uuid in gone:
                    lost.setdefault(uuid, []).extend(
                        each for each in findings if each.check.startswith("gpu.")
                    )
                for uuid, why in lost.items():
                    if uuid not in (text or "") and _is_elsewhere(uuid, host, texts):
                        # It moved, and its former host still declares it.
                        continue
                    subject = subjects.setdefault(
                        uuid, Subject("gpu", uuid, [UNKNOWN] * len(records.nights))
                    )
                    subject.states[night] = LOST
                    subject.findings[night] = why
                    subject.places[night] = host, gone.get(uuid, "")
            if text:
                # A card that is missing is remembered in its place, until another one is there.
                kept = _missing(last.get(host, ""), text, texts) if bad else {}
                last[host] = "; ".join(
                    [text, *(f"{address} {uuid} ?" for uuid, address in kept.items())]
                )
    _fill(records, subjects)
    yield from subjects.values()


def _is_elsewhere(uuid: str, host: str, tonight: Mapping[str, str]) -> bool:
    return any(uuid in text for other, text in tonight.items() if other != host)


def _missing(before: str, now: str, tonight: Mapping[str, str]) -> dict[str, str]:
    """The addresses of a host's former cards whose slots are empty now, by UUID."""
    addresses = {address for address, _ in listed(now)}
    cards = {uuid for _, uuid in listed(now)}
    gone = {
        uuid: address
        for address, uuid in listed(before)
        if uuid != "-" and uuid not in cards and address not in addresses
    }
    if not gone:
        return {}
    elsewhere = {uuid for text in tonight.values() for uuid in gone if uuid in text}
    return {uuid: address for uuid, address in gone.items() if uuid not in elsewhere}


def _fill(records: Records, subjects: Mapping[str, Subject]) -> None:
    """Where each card was in every night, and the nights in which it was well."""
    known: dict[str, list[tuple[str, str]]] = {}
    for night, texts in enumerate(records.cards):
        for host, text in texts.items():
            if text not in known:
                known[text] = [
                    (uuid, address) for address, uuid in listed(text) if uuid in subjects
                ]
            for uuid, address in known[text]:
                subject = subjects[uuid]
                subject.places[night] = host, address
                if subject.states[night] == UNKNOWN and _judged(records, night, host):
                    subject.states[night] = GOOD


def _judged(records: Records, night: int, host: str) -> bool:
    """Return whether the checks of the host's cards were judged: others' failures do not count."""
    return records.letters[host][night] in "P-FH"


# -- what was done ---------------------------------------------------------------------------------


def _done(subject: Subject, records: Records, texts: Mapping[str, Texts]) -> list[Act]:
    """Changes at the subject's places, in order of time."""
    found = [*_changed(subject, records, texts), *_moves(subject, records.nights)]
    checks = {finding.check for each in subject.findings.values() for finding in each}
    for (host, check), silence in records.silences.items():
        if host in subject.hosts and check in checks:
            since = silence["since"]
            # Between two nights.
            at = sum(started <= since for started in records.nights) - 0.5
            shown: Silence = {**silence, "until": silences.last_day(silence)}
            text = f"{check} was silenced {silence_text(shown)}"
            found.append(Act(at, since[:10], text))
    return sorted(dict.fromkeys(found))


def _changed(subject: Subject, records: Records, texts: Mapping[str, Texts]) -> Iterator[Act]:
    for host in subject.hosts:
        for measure, line in texts.get(host, {}).items():
            known: set[str] = set()
            for (_, before), (night, after) in pairwise(line):
                known |= set(versions.cards(before)) if measure == CARDS else set()
                if subject.places.get(night, (host, ""))[0] != host:
                    continue
                # Only a change of cards needs to know where each card is, which takes long.
                places = _places(records, night) if measure == CARDS else {}
                change_texts = {(host, measure): (before, after)}
                for change in versions.version_changes(change_texts, places, known):
                    of_others = subject.kind == "gpu" and change.kind == "gpu"
                    if not of_others or subject.name in change.text:
                        yield Act(night, records.nights[night][:10], change.text)


def _moves(subject: Subject, nights: Sequence[str]) -> Iterator[Act]:
    """The moves of a card to another host, and the new names of a host."""
    places = sorted(subject.places.items())
    for (_, before), (night, after) in pairwise(places):
        if before[0] == after[0]:
            continue
        if subject.kind == "gpu":
            text = f"{subject.name} moved from {before[0]} to {after[0]}."
        else:
            text = f"{before[0]} is named {after[0]} now: it has the same cards."
        yield Act(night, nights[night][:10], text)


def _places(records: Records, night: int) -> dict[str, str]:
    return {uuid: host for host, text in records.cards[night].items() for _, uuid in listed(text)}
