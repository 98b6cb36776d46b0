"""The history: what each night said of each host and check, and what it measured.

    with History(path) as history:
        night = history.record(session)
        history.changes(night)      what is different from the night before
        history.past()              the last thirty nights, for charts

Reading leaves the file as it is; the first call that writes opens it anew for that.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gpufleet.model.verdict import Verdict

from . import database, drift, versions
from .database import HistoryError
from .drift import LETTERS, NOT_THERE, Said

if TYPE_CHECKING:
    from gpufleet.verification.session import HostRun, Session

__all__ = ["History", "HistoryError", "Night", "parts"]

SCHEMA = 1
NIGHTLY = "nightly"
# How many nights are looked back for what is usual, and for what came and went.
WINDOW = 30
SPEEDS, CARDS = "*.tflops", "gpus"

# As they stand in the file: never reordered. Those below 4 are neither healthy nor excused.
CODES = (Verdict.FAIL, Verdict.HUNG, Verdict.UNREACHABLE, Verdict.INCONCLUSIVE, Verdict.PASS,
         Verdict.NOT_DECLARED)
_CODE = {verdict.value: code for code, verdict in enumerate(CODES)}
_LETTER = [LETTERS[verdict] for verdict in CODES]

Measure = Callable[[Mapping[str, Any] | None, Mapping[str, Any]], Mapping[str, float | str]]


@dataclass(frozen=True)
class Night:
    """One recorded run; times as the documents write them. `kind`: nightly, verify or rollout."""

    id: int
    started: str
    finished: str
    kind: str
    hosts: int


class History:
    """An SQLite file of nights; a context manager. Raises `HistoryError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: sqlite3.Connection | None = None
        self._writes = False
        self._seen: tuple[int, int] | None = None

    def __enter__(self) -> History:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        torn = self._seen and not self._writes and self._seen != self._stamp()
        self._close()
        if torn and not error:
            raise HistoryError("It was written to while it was read.", str(self.path),
                               "Ask again.")

    # -- writing -----------------------------------------------------------------------------------

    def record(self, session: Session, *, kind: str = NIGHTLY,
               measure: Measure | None = None) -> int:
        """Everything that a verification said and measured, in one transaction; the night's id."""
        from .measures import measures  # noqa: PLC0415 (who only reads is quicker without)

        ask = measure or measures
        measured = {host.name: ask(host.snapshot, host.plan) for host in session.hosts}
        with database.plainly(self.path):
            return self._record(self._writer, session, kind, measured)

    def _record(self, base: sqlite3.Connection, session: Session, kind: str,
                measured: Mapping[str, Mapping[str, float | str]]) -> int:
        with database.transaction(base):
            row = base.execute("INSERT INTO nights (started, finished, kind) VALUES (?, ?, ?)",
                               (session.started, session.finished, kind))
            night = int(row.lastrowid or 0)
            hosts = _ids(base, "hosts", (host.name for host in session.hosts))
            checks = _ids(base, "checks", (check["id"] for _, check in _checks(session.hosts)))
            rows = [(name, measure, value) for name, values in measured.items()
                    for measure, value in values.items()]
            split = {measure: parts(measure) for _, measure, _ in rows}
            names = _ids(base, "measures", (name for _, name in split.values()))
            devices = _ids(base, "devices", (device for device, _ in split.values()))
            texts = _ids(base, "texts", (
                *(check[part] for _, check in _checks(session.hosts)
                  for part in ("cause", "remedy") if check[part]),
                *(value for *_, value in rows if isinstance(value, str))))
            base.executemany("INSERT INTO looks VALUES (?, ?, ?)", (
                (night, hosts[host.name], _CODE[host.result["verdict"]])
                for host in session.hosts))
            base.executemany("INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?)", (
                (night, checks[check["id"]], hosts[name], _CODE[check["verdict"]],
                 texts.get(check["cause"]), texts.get(check["remedy"]))
                for name, check in _checks(session.hosts)))
            base.executemany("INSERT INTO numbers VALUES (?, ?, ?, ?, ?)", (
                (night, names[split[measure][1]], hosts[name], devices[split[measure][0]], value)
                for name, measure, value in rows if not isinstance(value, str)))
            base.executemany("INSERT INTO words VALUES (?, ?, ?, ?)", (
                (night, hosts[name], names[split[measure][1]], texts[value])
                for name, measure, value in rows if isinstance(value, str)))
        return night

    def prune(self, keep_days: int) -> int:
        """Forget nights that are older, and texts that only they said; how many nights they were.

        The newest of each kind stays. The file keeps its size: later nights use the space.
        """
        oldest = (datetime.now(UTC) - timedelta(days=keep_days)).strftime("%Y-%m-%dT%H:%M:%SZ")
        with database.plainly(self.path), database.transaction(self._writer):
            base = self._writer
            old = json.dumps(_column(base.execute(
                "SELECT id FROM nights WHERE started < ?"
                " AND id NOT IN (SELECT max(id) FROM nights GROUP BY kind)", (oldest,))))
            if old == "[]":
                return 0
            for table in ("looks", "verdicts", "numbers", "words"):
                base.execute(f"DELETE FROM {table} WHERE {_NIGHTS}", (old,))
            gone = base.execute("DELETE FROM nights WHERE id IN (SELECT value FROM json_each(?))",
                                (old,)).rowcount
            for table, used in _USED.items():
                base.execute(f"DELETE FROM {table} WHERE id NOT IN ({used})")
            return gone

    def flag(self, host: str, name: str, value: str | None) -> None:
        """Keep something about a host that outlives nights; None forgets it."""
        with database.plainly(self.path), database.transaction(self._writer):
            self._writer.execute("DELETE FROM flags WHERE (host, name) = (?, ?)", (host, name))
            if value is not None:
                self._writer.execute("INSERT INTO flags VALUES (?, ?, ?)", (host, name, value))

    # -- reading -----------------------------------------------------------------------------------

    def flags(self, host: str) -> dict[str, str]:
        """What is kept about a host."""
        return dict(self._rows("SELECT name, value FROM flags WHERE host = ?", host))

    def nights(self, last: int | None = None, kind: str | None = None) -> list[Night]:
        """The recorded runs, or the last of them, oldest first."""
        rows = self._rows(
            "SELECT id, started, finished, kind, (SELECT count(*) FROM looks WHERE night = id)"
            " FROM nights WHERE kind = coalesce(?, kind) ORDER BY started DESC, id DESC LIMIT ?",
            kind, -1 if last is None else last)
        return [Night(*row) for row in reversed(rows)]

    def latest(self, kind: str = NIGHTLY) -> Night | None:
        """The newest run of a kind."""
        return next(iter(self.nights(1, kind)), None)

    def past(self, last: int = WINDOW, *, named: str = SPEEDS) -> dict[str, Any]:
        """The PAST document of the last nightly runs; `named`: which measures (`*`: any)."""
        nights = self.nights(last, NIGHTLY)
        hosts: dict[str, dict[str, Any]] = {
            name: {"verdicts": letters, "measures": {}}
            for name, letters in self.letters(nights).items()}
        for (host, name), line in self.numbers(nights, named).items():
            hosts[host]["measures"][name] = line
        return {"schema": SCHEMA, "nights": [night.started for night in nights], "hosts": hosts}

    def changes(self, night: int | None = None) -> dict[str, Any]:
        """The CHANGES document of a night, the newest if none is named."""
        nights = self.nights(kind=NIGHTLY)
        if night is not None:
            nights = nights[:next((number for number, it in enumerate(nights, 1) if it.id == night),
                                  0)]
        if not nights:
            raise HistoryError("No such night was recorded." if night else
                               "No night was recorded yet.", str(self.path))
        return drift.document(self.window(nights[-WINDOW:]))

    def window(self, nights: list[Night]) -> drift.Window:
        """These nights, as far as `drift` asks."""
        texts = self._texts(nights)
        return drift.Window(
            [night.started for night in nights], self.letters(nights), self._wrong(nights),
            texts, self.numbers(nights, SPEEDS),
            {host: self._cards(nights[:-1], host) for host, name in texts if name == CARDS})

    def lines(self, nights: list[Night], *, host: str | None = None, check: str | None = None
              ) -> dict[tuple[str, str], list[Said | None]]:
        """By host and check, what each of these nights said: of one host, of one check, or both."""
        # In the order of the key, as far as it is known: the planner does not know what is few.
        tables = "hosts h CROSS JOIN verdicts v" if host else "verdicts v CROSS JOIN hosts h"
        rows = self._rows(
            "SELECT h.name, c.name, v.night, v.verdict, t.text, u.text"
            f" FROM json_each(?) n CROSS JOIN checks c CROSS JOIN {tables}"
            " LEFT JOIN texts t ON t.id = v.cause LEFT JOIN texts u ON u.id = v.remedy"
            ' WHERE (v.night, v."check", v.host) = (n.value, c.id, h.id)'
            f" AND {'h.name = ?' if host else 'coalesce(?, 1)'}"
            f" AND {'c.name = ?' if check else 'coalesce(?, 1)'}",
            _list(nights), host, check)
        return _lines(rows, nights)

    def numbers(self, nights: list[Night], named: str, host: str | None = None
                ) -> dict[tuple[str, str], list[float | None]]:
        """By host and measure (`*`: any), the number of each of these nights."""
        place = {night.id: number for number, night in enumerate(nights)}
        names = self._measures(named)
        hosts, devices = (dict(self._rows(f"SELECT id, name FROM {table}"))
                          for table in ("hosts", "devices"))
        one = " AND host = (SELECT id FROM hosts WHERE name = ?)" if host else ""
        found: dict[tuple[int, ...], list[float | None]] = defaultdict(
            lambda: [None] * len(nights))
        for number, measure, device, night, value in self._each(
                "SELECT host, measure, device, night, value FROM numbers"
                f" WHERE {_NIGHTS} AND measure IN (SELECT value FROM json_each(?)){one}",
                _list(nights), json.dumps(list(names)), *([host] if host else [])):
            found[number, measure, device][place[night]] = value
        full = {key: _full(devices[key[2]], names[key[1]]) for key in found}
        return {(hosts[key[0]], full[key]): line for key, line in found.items()
                if fnmatchcase(full[key], named)}

    def _measures(self, named: str) -> dict[int, str]:
        """The measures, without their devices, that a form may mean: by how it ends."""
        end = re.split(r"[][*?]", named)[-1]
        return {number: name for number, name in self._rows("SELECT id, name FROM measures")
                if name.endswith(end) or end.endswith(name)}

    def names(self, table: str) -> list[str]:
        """The names of all `hosts`, `checks` or `measures` that any night knew."""
        return [name for name, in self._rows(f"SELECT name FROM {table} ORDER BY name")]

    def letters(self, nights: list[Night]) -> dict[str, str]:
        """Each host's verdicts, a letter per night."""
        place = {night.id: number for number, night in enumerate(nights)}
        found: dict[str, list[str]] = defaultdict(lambda: [NOT_THERE] * len(nights))
        for name, night, code in self._rows(
                "SELECT h.name, l.night, l.verdict FROM looks l JOIN hosts h ON h.id = l.host"
                f" WHERE {_NIGHTS}", _list(nights)):
            found[name][place[night]] = _LETTER[code]
        return {name: "".join(found[name]) for name in sorted(found)}

    def _wrong(self, nights: list[Night]) -> dict[tuple[str, str], list[Said | None]]:
        """The checks that were not healthy in any of these nights, with all that was said."""
        rows = self._rows(
            'WITH odd AS (SELECT DISTINCT "check", host FROM verdicts INDEXED BY wrong'
            f" WHERE {_NIGHTS} AND verdict < 4)"
            " SELECT h.name, c.name, v.night, v.verdict, t.text, u.text"
            " FROM odd CROSS JOIN json_each(?) n CROSS JOIN verdicts v"
            ' ON (v.night, v."check", v.host) = (n.value, odd."check", odd.host)'
            ' JOIN hosts h ON h.id = v.host JOIN checks c ON c.id = v."check"'
            " LEFT JOIN texts t ON t.id = v.cause LEFT JOIN texts u ON u.id = v.remedy",
            _list(nights), _list(nights))
        return _lines(rows, nights)

    def _texts(self, nights: list[Night]) -> dict[tuple[str, str], tuple[str | None, str]]:
        """By host and measure, what was known last and tonight's text, where they are not one."""
        found: dict[tuple[str, str], tuple[str | None, str]] = {}
        last = nights[-2].id if nights[1:] else None
        for host, measure, host_name, name, text in self._rows(
                "SELECT w.host, w.measure, h.name, m.name, t.text FROM words w"
                " JOIN hosts h ON h.id = w.host JOIN measures m ON m.id = w.measure"
                " JOIN texts t ON t.id = w.text WHERE w.night = ? AND w.text IS NOT"
                " (SELECT text FROM words WHERE (night, host, measure) = (?, w.host, w.measure))",
                nights[-1].id, last):
            known = dict(self._rows(
                "SELECT w.night, t.text FROM words w JOIN texts t ON t.id = w.text"
                f" WHERE {_NIGHTS} AND host = ? AND measure = ?", _list(nights[:-1]), host,
                measure))
            before = next((known[night.id] for night in reversed(nights[:-1])
                           if night.id in known), None)
            found[host_name, name] = before, text
        return found

    def _cards(self, nights: list[Night], host: str) -> set[str]:
        """The cards that a host had in any of these nights."""
        return {card for text, in self._rows(
            f"SELECT DISTINCT t.text FROM words w JOIN texts t ON t.id = w.text WHERE {_NIGHTS}"
            " AND host = (SELECT id FROM hosts WHERE name = ?)"
            " AND measure = (SELECT id FROM measures WHERE name = ?)",
            _list(nights), host, CARDS) for card in versions.cards(text)}

    # -- the file ----------------------------------------------------------------------------------

    def _rows(self, question: str, *values: Any) -> list[Any]:
        return list(self._each(question, *values))

    def _each(self, question: str, *values: Any) -> Iterator[Any]:
        with database.plainly(self.path):
            if not self._open:
                # Where SQLite takes no lock.
                alone = self.path.exists() and not database.log(self.path).exists()
                self._seen = self._stamp() if alone else None
                self._open = database.reading(self.path)
            yield from self._open.execute(question, values)

    @property
    def _writer(self) -> sqlite3.Connection:
        if not self._open or not self._writes:
            self._close()
            self._open, self._writes = database.writing(self.path), True
        return self._open

    def _stamp(self) -> tuple[int, int]:
        """By which the file is told to be the same."""
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size

    def _close(self) -> None:
        if self._open:
            self._open.close()
        self._open, self._writes = None, False


# A condition on a table's nights, given as a list in JSON.
_NIGHTS = "night IN (SELECT value FROM json_each(?))"
# By which tables of texts are still needed.
_USED = {
    "hosts": "SELECT host FROM looks",
    "checks": 'SELECT "check" FROM verdicts',
    "measures": "SELECT measure FROM numbers UNION SELECT measure FROM words",
    "devices": "SELECT device FROM numbers",
    "texts": "SELECT text FROM words UNION SELECT cause FROM verdicts WHERE cause IS NOT NULL"
             " UNION SELECT remedy FROM verdicts WHERE remedy IS NOT NULL",
}


def _ids(base: sqlite3.Connection, table: str, texts: Iterable[str]) -> dict[str, int]:
    """The ids of texts, of which each is kept once."""
    column = "text" if table == "texts" else "name"
    # What came from a host need not be Unicode.
    wanted = {text: (text.encode("utf-8", "backslashreplace").decode(),) for text in set(texts)}
    base.executemany(f"INSERT OR IGNORE INTO {table} ({column}) VALUES (?)",
                     sorted(wanted.values()))
    asked = f"SELECT id FROM {table} WHERE {column} = ?"
    return {text: base.execute(asked, clean).fetchone()[0] for text, clean in wanted.items()}


def parts(measure: str) -> tuple[str, str]:
    """Device (`gpu.GPU-<uuid>`, or none) and rest of a measure's name; UUIDs have no point."""
    found = re.fullmatch(r"(gpu\.[^.]+)\.(.+)", measure)
    return (found[1], found[2]) if found else ("", measure)


def _full(device: str, measure: str) -> str:
    return f"{device}.{measure}" if device else measure


def _checks(hosts: Iterable[HostRun]) -> Iterator[tuple[str, dict[str, str]]]:
    return ((host.name, check) for host in hosts for check in host.result["checks"])


def _lines(rows: Iterable[tuple[Any, ...]], nights: list[Night]
           ) -> dict[tuple[str, str], list[Said | None]]:
    place = {night.id: number for number, night in enumerate(nights)}
    found: dict[tuple[str, str], list[Said | None]] = defaultdict(lambda: [None] * len(nights))
    said: dict[tuple[Any, ...], Said] = {}
    for host, check, night, *it in rows:
        words = tuple(it)
        if words not in said:
            said[words] = Said(_LETTER[words[0]], words[1] or "", words[2] or "")
        found[host, check][place[night]] = said[words]
    return found


def _list(nights: list[Night]) -> str:
    return json.dumps([night.id for night in nights])


def _column(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    return [row[0] for row in rows]
