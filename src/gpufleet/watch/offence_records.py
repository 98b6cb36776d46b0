"""The history's records of failed nights: reads them for `offenders`, each table once.

A thousand hosts with eight cards in 400 nights have three million card-nights. Only what was
unhealthy is read of the verdicts, and the text of a host's cards is one object in all of its
nights.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gpufleet.documents.nightly import Silence

from . import columns, silences
from .history import CARDS, NIGHTLY, History

# The code of the first healthy verdict in the file, see `recording.CODES`.
HEALTHY_CODE = 4
# Host -> the texts of one measure that differ from the night before, by the number of the night.
Texts = dict[str, list[tuple[int, str]]]


class Finding(NamedTuple):
    """A check that was unhealthy, and that no other check explains."""

    check: str
    cause: str


@dataclass
class Records:
    """The nightly runs, oldest first, by their numbers from 0."""

    nights: list[str]
    # A letter for each night.
    letters: dict[str, str]
    # By number of the night and host, where the host's verdict is bad.
    findings: dict[tuple[int, str], list[Finding]]
    # For each night, by host, the text of the measure `gpus` where it was read.
    cards: list[dict[str, str]]
    silences: dict[tuple[str, str], Silence] = field(default_factory=dict)


def read(history: History, last: int | None = None) -> Records:
    """Read the last nightly runs, or all."""
    nights = history.nights(last, NIGHTLY)
    number = {night.id: index for index, night in enumerate(nights)}
    ids = json.dumps(list(number))
    findings: dict[tuple[int, str], list[Finding]] = defaultdict(list)
    for night, host, check, cause in history.rows(
        "SELECT v.night, h.name, c.name, t.text FROM json_each(?) n"
        " CROSS JOIN verdicts v INDEXED BY wrong ON v.night = n.value"
        ' JOIN hosts h ON h.id = v.host JOIN checks c ON c.id = v."check"'
        " LEFT JOIN texts t ON t.id = v.cause"
        f" WHERE v.verdict < {HEALTHY_CODE} AND v.explained IS NULL",
        ids,
    ):
        findings[number[night], host].append(Finding(check, cause or ""))
    names = dict(history.rows("SELECT id, name FROM hosts"))
    cards = [
        {names[host]: text for host, text in column.items()}
        for column in columns.text_columns(history, nights, CARDS)
    ]
    return Records(
        [night.started for night in nights],
        history.letters(nights),
        findings,
        cards,
        silences.read(history),
    )


def texts_of(history: History, hosts: Iterable[str], last: int | None = None) -> dict[str, Texts]:
    """By host and measure, the texts that differ from the one before, with the night's number."""
    found: dict[str, Texts] = {host: defaultdict(list) for host in hosts}
    names = dict(history.rows("SELECT id, name FROM hosts"))
    measures = dict(history.rows("SELECT id, name FROM measures"))
    latest: dict[tuple[int, int], str] = {}
    before = None
    for number, night in enumerate(history.nights(last, NIGHTLY)):
        # The database compares with the night before, in the order of the file, and few differ.
        for host, measure, text in history.rows(
            "SELECT w.host, w.measure, t.text FROM words w JOIN texts t ON t.id = w.text"
            " WHERE w.night = ? AND w.text IS NOT"
            " (SELECT text FROM words WHERE (night, host, measure) = (?, w.host, w.measure))",
            night.id,
            before,
        ):
            # The night before may have no text of this host: then the newest known one is compared.
            if names[host] in found and latest.get((host, measure)) != text:
                latest[host, measure] = text
                found[names[host]][measures[measure]].append((number, text))
        before = night.id
    return found
