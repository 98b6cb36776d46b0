"""Read the numbers and texts of some nights from the history, a column for each night."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from itertools import chain
from typing import TYPE_CHECKING

from . import series

if TYPE_CHECKING:
    from .history import History, RecordedRun


def numbers(
    history: History, nights: Sequence[RecordedRun], named: str, host: str | None
) -> dict[tuple[str, str], list[float | None]]:
    """By host and measure (`named`: a pattern), the number in each of these runs."""
    hosts, devices = (
        dict(history.rows(f"SELECT id, name FROM {table}")) for table in ("hosts", "devices")
    )
    only = next((number for number, name in hosts.items() if name == host), None)
    if host and only is None:
        return {}
    matches = re.compile(translate(named)).match
    found: dict[tuple[str, str], list[float | None]] = {}
    for measure, name in _measures(history, named).items():
        for card, line in series.lines(_columns(history, nights, measure, only)):
            device = devices[series.device_of(card)]
            full = f"{device}.{name}" if device else name
            if matches(full):
                found[hosts[series.host_of(card)], full] = list(line)
    return found


def changed(
    history: History, nights: Sequence[RecordedRun], is_meant: Callable[[str], bool]
) -> set[str]:
    """The hosts with a number that is not the same in all of these runs.

    `is_meant`: whether a measure counts, by its name without device.
    """
    hosts = dict(history.rows("SELECT id, name FROM hosts"))
    return {
        hosts[series.host_of(card)]
        for measure, name in history.rows("SELECT id, name FROM measures")
        if is_meant(name)
        for card in series.changed(_columns(history, nights, measure))
    }


def _columns(
    history: History, nights: Sequence[RecordedRun], measure: int, host: int | None = None
) -> list[series.Column]:
    """The numbers of a measure in each of these runs, of all hosts or one."""
    known: dict[int, bytes] = dict(
        history.rows(
            "SELECT night, numbers FROM series"
            " WHERE night IN (SELECT value FROM json_each(?)) AND measure = ?",
            json.dumps([night.id for night in nights]),
            measure,
        )
    )
    return [series.unpacked(known.get(night.id), host) for night in nights]


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
