"""Read the numbers and texts of some nights from the history, a column for each night."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import translate
from itertools import chain
from typing import TYPE_CHECKING

from . import series

if TYPE_CHECKING:
    from .history import History, RecordedRun


def numbers(
    history: History,
    nights: Sequence[RecordedRun],
    named: str,
    hosts: Collection[str] | None = None,
) -> dict[tuple[str, str], list[float | None]]:
    """By host and measure (`named`: a pattern), the number in each of these runs.

    `hosts`: those whose numbers are read; of all without it.
    """
    host_names, devices = (
        dict(history.rows(f"SELECT id, name FROM {table}")) for table in ("hosts", "devices")
    )
    ids = _ids(host_names, hosts)
    matches = re.compile(translate(named)).match
    found: dict[tuple[str, str], list[float | None]] = {}
    for measure, name in _measures(history, named).items():
        for card, line in series.lines(_columns(history, nights, measure, ids)):
            device = devices[series.device_of(card)]
            full = f"{device}.{name}" if device else name
            if matches(full):
                found[host_names[series.host_of(card)], full] = list(line)
    return found


def changed(
    history: History,
    nights: Sequence[RecordedRun],
    is_meant: Callable[[str], bool],
    hosts: Collection[str] | None = None,
) -> set[str]:
    """The hosts with a number that is not the same in all of these runs, of all hosts or some.

    `is_meant`: whether a measure counts, by its name without device.
    """
    names = dict(history.rows("SELECT id, name FROM hosts"))
    ids = _ids(names, hosts)
    return {
        names[series.host_of(card)]
        for measure, name in history.rows("SELECT id, name FROM measures")
        if is_meant(name)
        for card in series.changed(_columns(history, nights, measure, ids))
    }


def _ids(names: Mapping[int, str], hosts: Collection[str] | None) -> set[int] | None:
    return None if hosts is None else {key for key, name in names.items() if name in hosts}


def _columns(
    history: History,
    nights: Sequence[RecordedRun],
    measure: int,
    hosts: Collection[int] | None = None,
) -> list[series.Column]:
    """The numbers of a measure in each of these runs, of all hosts or some."""
    some = "" if hosts is None else " AND block IN (SELECT value FROM json_each(?))"
    blocks = [] if hosts is None else [json.dumps(sorted(set(map(series.block_of, hosts))))]
    values: dict[int, list[bytes]] = defaultdict(list)
    for night, value in history.rows(
        "SELECT night, numbers FROM series"
        f" WHERE night IN (SELECT value FROM json_each(?)) AND measure = ?{some}"
        " ORDER BY night, block",
        json.dumps([night.id for night in nights]),
        measure,
        *blocks,
    ):
        values[night].append(value)
    return [series.column(values[night.id], hosts) for night in nights]


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
    """The names, without device, of the measures that a pattern may match by its end, by id."""
    end = re.split(r"[][*?]", named)[-1]
    return {
        number: name
        for number, name in history.rows("SELECT id, name FROM measures")
        if name.endswith(end) or end.endswith(name)
    }
