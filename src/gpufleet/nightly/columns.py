"""Read the numbers and texts of some nights from the history, a column for each night.

A night's values of a measure are neighbours in the file, by its primary key. A column is read as a
dictionary of SQLite's rows, so that each value costs no line of Python.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from fnmatch import translate
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .history import History, RecordedRun

# The bits of a device's id, where host and device are one number of 64 bits.
_DEVICE_BITS = 32
# A text is more than any number, so that of a damaged file neither texts nor infinities are read.
_FINITE = f"BETWEEN -{sys.float_info.max!r} AND {sys.float_info.max!r}"


def numbers(
    history: History, nights: Sequence[RecordedRun], named: str, host: str | None
) -> dict[tuple[str, str], list[float | None]]:
    """By host and measure (`named`: a pattern), the number in each of these runs."""
    hosts, devices = (
        dict(history.rows(f"SELECT id, name FROM {table}")) for table in ("hosts", "devices")
    )
    one = " AND host = (SELECT id FROM hosts WHERE name = ?)" if host else ""
    column = (
        f"SELECT host << {_DEVICE_BITS} | device, value FROM numbers WHERE night = ?"
        f" AND measure = ? AND value {_FINITE}{one}"
    )
    matches = re.compile(translate(named)).match
    found: dict[tuple[str, str], list[float | None]] = {}
    for measure, name in _measures(history, named).items():
        columns: list[dict[int, float]] = [
            history.fetched(dict, column, night.id, measure, *([host] if host else []))
            for night in nights
        ]
        cards = list(dict.fromkeys(chain.from_iterable(columns)))
        lines = zip(*(map(values.get, cards) for values in columns), strict=True)
        for card, line in zip(cards, lines, strict=True):
            device = devices[card & (1 << _DEVICE_BITS) - 1]
            full = f"{device}.{name}" if device else name
            if matches(full):
                found[hosts[card >> _DEVICE_BITS], full] = list(line)
    return found


def texts(
    history: History, nights: Sequence[RecordedRun], measure: str, host: str | None
) -> dict[str, list[str | None]]:
    """By host, the text of a measure in each of these runs; of all hosts or one."""
    hosts = dict(history.rows("SELECT id, name FROM hosts WHERE name = coalesce(?, name)", host))
    columns = text_columns(history, nights, measure, host)
    return {
        hosts[number]: [each.get(number) for each in columns]
        for number in dict.fromkeys(chain.from_iterable(columns))
    }


def text_columns(
    history: History, nights: Sequence[RecordedRun], measure: str, host: str | None = None
) -> list[dict[int, str]]:
    """For each of these runs, {id of a host: text of the measure}; a text is one object."""
    # By the whole key: else each night's texts of all measures are read.
    column = (
        "SELECT l.host, w.text FROM looks l CROSS JOIN words w"
        " ON (w.night, w.host, w.measure) = (l.night, l.host, ?) WHERE l.night = ?"
        " AND l.host = coalesce((SELECT id FROM hosts WHERE name = ?), l.host)"
    )
    ids = history.rows("SELECT id FROM measures WHERE name = ?", measure)
    columns: list[dict[int, int]] = [
        history.fetched(dict, column, ids[0][0], night.id, host) if ids else {} for night in nights
    ]
    known: dict[int, str] = dict(
        history.rows(
            "SELECT id, text FROM texts WHERE id IN (SELECT value FROM json_each(?))",
            json.dumps(sorted(set(chain.from_iterable(each.values() for each in columns)))),
        )
    )
    return [
        {number: known[text] for number, text in each.items() if text in known} for each in columns
    ]


def _measures(history: History, named: str) -> dict[int, str]:
    """{id: name without device} of the measures that a pattern may match, by its end."""
    end = re.split(r"[][*?]", named)[-1]
    return {
        number: name
        for number, name in history.rows("SELECT id, name FROM measures")
        if name.endswith(end) or end.endswith(name)
    }
