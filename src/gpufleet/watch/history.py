"""The history of nightly runs: every check's result on every host, and the measured values.

    with History(path) as history:
        night = history.record(session)
        history.changes(night)      what differs from the night before
        history.past()              the last thirty nights, for charts

Reads and writes one SQLite file. Reading does not change the file; the first call that writes
reopens it for writing.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from gpufleet.components.base.contents import scrub_of, sound_states
from gpufleet.documents.clock import utc_now
from gpufleet.documents.nightly import Changes, Past, PastHost
from gpufleet.documents.plan import Plan
from gpufleet.documents.sections.cuda import ContentsRead
from gpufleet.documents.snapshot import Snapshot
from gpufleet.documents.verdict import LETTERS, Verdict
from gpufleet.yardstick.values import WINDOW as COMPARED

from . import columns, database, drift, fabric_history, outliers, silences, versions
from .database import HistoryError
from .drift import NOT_THERE, CheckResult
from .recording import CODES, SCRUB, split_measure, write_run
from .retention import RecordedTime, latest_time, read_time

if TYPE_CHECKING:
    from gpufleet.fleet.session import Session

__all__ = ["History", "HistoryError", "RecordedRun", "split_measure"]

SCHEMA = 1
NIGHTLY = "nightly"
# How many nights a baseline and the detection of flapping look back.
WINDOW = 30
SPEEDS, CARDS = "*.tflops", "gpus"
# Error counters are compared with the last night that read them, of so many.
COUNTERS, RECENT = "*.reading", 7

# The name under which the budget of false alarms is recorded.
ALERTS_PER_MONTH = "alerts_per_month"
_LETTER = {code: LETTERS[verdict] for code, verdict in enumerate(CODES)}
# The letter of a code that no release has written.
_UNKNOWN = LETTERS[Verdict.INCONCLUSIVE]

T = TypeVar("T")
Measure = Callable[[Snapshot | None, Plan], Mapping[str, float | str]]


@dataclass(frozen=True)
class RecordedRun:
    """A recorded run; times as in the documents. `kind`: nightly, verify or rollout."""

    id: int
    started: str
    finished: str
    kind: str
    hosts: int


class History:
    """The history in an SQLite file; a context manager. Its methods raise `HistoryError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: sqlite3.Connection | None = None
        self._writes = False
        self._opened_as: tuple[int, int] | None = None

    def __enter__(self) -> History:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        torn = self._opened_as and not self._writes and self._opened_as != self._stamp()
        self._close()
        if torn and not error:
            raise HistoryError(
                "The history was written to while it was read.", str(self.path), "Try again."
            )

    # -- writing -----------------------------------------------------------------------------------

    def record(
        self,
        session: Session,
        *,
        kind: str = NIGHTLY,
        values: Mapping[str, Mapping[str, float | str]] | None = None,
        measure: Measure | None = None,
    ) -> int:
        """Record a session's results and measured values in one transaction; return the run's id.

        `values` are those of `measures.measured()` if the caller has them already; `measure`
        replaces `measures()`.
        """
        from .measures import measured  # noqa: PLC0415 (reading is faster without it)

        if measure:
            values = {host.name: measure(host.snapshot, host.plan) for host in session.hosts}
        elif values is None:
            found = measured(session)
            session, values = found.session, found.values
        # A night without an answer leaves what earlier ones have read.
        contents = {
            host.name: sound_states(scrub["components"])
            for host in session.hosts
            if (scrub := scrub_of(host.snapshot))
        }
        with database.sqlite_errors(self.path):
            return write_run(self._writer, session, kind, values, contents)

    def prune(self, keep_days: int) -> int:
        """Delete runs older than `keep_days`, and texts that only they use; return how many runs.

        The newest run of each kind stays. The file keeps its size: later runs use the space.
        A silence that ended so long ago is deleted as well.
        """
        recorded, limit = self.recorded_time(), timedelta(days=keep_days)

        def expired(time: str) -> bool:
            return recorded.age(read_time(time)) > limit

        silences.end_expired(self, expired)
        nights = [run.id for run in self.nights() if expired(run.started)]
        tests = [test.id for test in fabric_history.recorded_tests(self) if expired(test.started)]
        with self.transaction() as base:
            old = json.dumps(
                _column(
                    base.execute(
                        "SELECT id FROM nights WHERE id IN (SELECT value FROM json_each(?))"
                        " AND id NOT IN (SELECT max(id) FROM nights GROUP BY kind)",
                        (json.dumps(nights),),
                    )
                )
            )
            removed_tests = fabric_history.remove(base, tests)
            if old == "[]" and not removed_tests:
                return 0
            for table in ("looks", "verdicts", "series", "words"):
                base.execute(f"DELETE FROM {table} WHERE {_NIGHTS}", (old,))
            deleted = base.execute(
                "DELETE FROM nights WHERE id IN (SELECT value FROM json_each(?))", (old,)
            ).rowcount
            for table, used in _USED.items():
                base.execute(f"DELETE FROM {table} WHERE id NOT IN ({used})")
            return deleted

    def flag(self, host: str, name: str, value: str | None) -> None:
        """Store a named value of a host independently of the runs; None deletes it."""
        with self.transaction() as base:
            base.execute("DELETE FROM flags WHERE (host, name) = (?, ?)", (host, name))
            if value is not None:
                base.execute("INSERT INTO flags VALUES (?, ?, ?)", (host, name, value))

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write everything of a block or nothing."""
        with database.sqlite_errors(self.path), database.transaction(self._writer):
            yield self._writer

    # -- reading -----------------------------------------------------------------------------------

    def flags(self, host: str) -> dict[str, str]:
        """Return the stored values of a host."""
        return dict(self.rows("SELECT name, value FROM flags WHERE host = ?", host))

    def flags_named(self, pattern: str) -> list[tuple[str, str, str]]:
        """Return each (host, name, value) whose name matches a GLOB pattern."""
        return self.rows("SELECT host, name, value FROM flags WHERE name GLOB ?", pattern)

    def contents_read(self) -> dict[str, list[ContentsRead]]:
        """Return by host how far the contents of each component were read."""
        found = {}
        for host, _, value in self.flags_named(SCRUB):
            # A state that cannot be read counts as none: contents are read from their beginning.
            with suppress(ValueError, TypeError, RecursionError):
                found[host] = sound_states(json.loads(value))
        return found

    def nights(self, last: int | None = None, kind: str | None = None) -> list[RecordedRun]:
        """Return the recorded runs, oldest first; of all kinds or one, all or the last ones.

        A run that is dated in the future was recorded with a wrong clock, and is not counted: until
        then it would be the newest, whatever later runs find.
        """
        return self._nights(f"NOT {_FUTURE}", kind, -1 if last is None else last)

    def future_nights(self) -> list[RecordedRun]:
        """Return the runs that are dated in the future, oldest first."""
        return self._nights(_FUTURE)

    def _nights(self, which: str, kind: str | None = None, most: int = -1) -> list[RecordedRun]:
        rows = self.rows(
            "SELECT id, started, finished, kind, (SELECT count(*) FROM looks WHERE night = id)"
            f" FROM nights WHERE kind = coalesce(?, kind) AND {which}"
            " ORDER BY started DESC, id DESC LIMIT ?",
            kind,
            latest_time(utc_now()),
            most,
        )
        return [RecordedRun(*row) for row in reversed(rows)]

    def recorded_time(self) -> RecordedTime:
        """Return the time that passed by the nightly runs, whatever the clock says."""
        return RecordedTime(night.started for night in self.nights(kind=NIGHTLY))

    def latest(self, kind: str = NIGHTLY) -> RecordedRun | None:
        """Return the newest run of a kind."""
        return next(iter(self.nights(1, kind)), None)

    def past(self, last: int = WINDOW, *, named: str = SPEEDS) -> Past:
        """Return the PAST document of the last nightly runs; `named`: a pattern of measures."""
        nights = self.nights(last, NIGHTLY)
        hosts: dict[str, PastHost] = {
            name: {"verdicts": letters, "measures": {}}
            for name, letters in self.letters(nights).items()
        }
        for (host, name), line in self.numbers(nights, named).items():
            hosts[host]["measures"][name] = line
        return {"schema": SCHEMA, "nights": [night.started for night in nights], "hosts": hosts}

    @property
    def alerts_per_month(self) -> float:
        """The budget of false alarms that the newest nightly run had; 1 where none is recorded."""
        try:
            found = float(self.flags(outliers.FLEET)[ALERTS_PER_MONTH])
        except (KeyError, ValueError):
            return 1.0
        return found if 0 < found < math.inf else 1.0

    def changes(self, night: int | None = None) -> Changes:
        """Return the CHANGES document of a nightly run, by default of the newest."""
        from . import siblings  # noqa: PLC0415 (reading is faster without it)

        nights = self.nights(kind=NIGHTLY)
        if night is not None:
            nights = nights[
                : next((number for number, it in enumerate(nights, 1) if it.id == night), 0)
            ]
        if not nights:
            raise HistoryError(
                f"There is no nightly run {night}." if night else "No nightly run is recorded yet.",
                str(self.path),
            )
        recent = nights[-COMPARED:]
        speeds = self.numbers(recent, SPEEDS)
        window = self.window(nights[-WINDOW:], speeds)
        window.outliers = outliers.compared(
            siblings.compare, self, recent, self.alerts_per_month, {SPEEDS: speeds}
        )
        return drift.document(window)

    def window(
        self,
        nights: list[RecordedRun],
        speeds: Mapping[tuple[str, str], list[float | None]] | None = None,
    ) -> drift.Window:
        """Return what `drift` needs of these runs.

        `speeds`: those of these runs and of some before them, if the caller has read them.
        """
        letters = self.letters(nights)
        texts = self._texts(nights)
        return drift.Window(
            [night.started for night in nights],
            letters,
            self._unhealthy(nights),
            texts,
            {
                key: line[-len(nights) :]
                for key, line in (speeds or self.numbers(nights, SPEEDS)).items()
                if key[0] in letters
            },
            {host: self._cards(nights[:-1], host) for host, name in texts if name == CARDS},
            self.numbers(nights[-RECENT:], COUNTERS),
            silences.read(self),
        )

    def check_results(
        self, nights: list[RecordedRun], *, host: str | None = None, check: str | None = None
    ) -> dict[tuple[str, str], list[CheckResult | None]]:
        """By host and check, the result in each of these runs; of one host, one check, or both."""
        # Join in the order of the key: the planner does not know which tables are small.
        tables = "hosts h CROSS JOIN verdicts v" if host else "verdicts v CROSS JOIN hosts h"
        rows = self.rows(
            f"SELECT h.name, c.name, v.night, v.verdict, t.text, u.text, {_EXPLAINED}, v.held"
            f" FROM json_each(?) n CROSS JOIN checks c CROSS JOIN {tables}"
            " LEFT JOIN texts t ON t.id = v.cause LEFT JOIN texts u ON u.id = v.remedy"
            ' WHERE (v.night, v."check", v.host) = (n.value, c.id, h.id)'
            f" AND {'h.name = ?' if host else 'coalesce(?, 1)'}"
            f" AND {'c.name = ?' if check else 'coalesce(?, 1)'}",
            _list(nights),
            host,
            check,
        )
        return _by_check(rows, nights)

    def numbers(
        self, nights: list[RecordedRun], named: str, hosts: Collection[str] | None = None
    ) -> dict[tuple[str, str], list[float | None]]:
        """By host and measure (a pattern), the number in each of these runs; of some hosts."""
        return columns.numbers(self, nights, named, hosts)

    def texts(
        self, nights: list[RecordedRun], measure: str, host: str | None = None
    ) -> dict[str, list[str | None]]:
        """By host, the text of a measure in each of these runs; of all hosts or one."""
        return columns.texts(self, nights, measure, host)

    def names(self, table: str) -> list[str]:
        """Return the recorded names of a table: `hosts`, `checks` or `measures`."""
        return [name for (name,) in self.rows(f"SELECT name FROM {table} ORDER BY name")]

    def letters(self, nights: list[RecordedRun]) -> dict[str, str]:
        """Return each host's verdicts, a letter for each run."""
        position = {night.id: number for number, night in enumerate(nights)}
        found: dict[str, list[str]] = defaultdict(lambda: [NOT_THERE] * len(nights))
        for name, night, code in self.rows(
            "SELECT h.name, l.night, l.verdict FROM looks l JOIN hosts h ON h.id = l.host"
            f" WHERE {_NIGHTS}",
            _list(nights),
        ):
            found[name][position[night]] = _LETTER.get(code, _UNKNOWN)
        return {name: "".join(found[name]) for name in sorted(found)}

    def _unhealthy(
        self, nights: list[RecordedRun]
    ) -> dict[tuple[str, str], list[CheckResult | None]]:
        """The results of the checks that were unhealthy in at least one of these runs."""
        rows = self.rows(
            'WITH odd AS (SELECT DISTINCT "check", host FROM verdicts INDEXED BY wrong'
            f" WHERE {_NIGHTS} AND verdict < 4)"
            f" SELECT h.name, c.name, v.night, v.verdict, t.text, u.text, {_EXPLAINED}, v.held"
            " FROM odd CROSS JOIN json_each(?) n CROSS JOIN verdicts v"
            ' ON (v.night, v."check", v.host) = (n.value, odd."check", odd.host)'
            ' JOIN hosts h ON h.id = v.host JOIN checks c ON c.id = v."check"'
            " LEFT JOIN texts t ON t.id = v.cause LEFT JOIN texts u ON u.id = v.remedy",
            _list(nights),
            _list(nights),
        )
        return _by_check(rows, nights)

    def _texts(self, nights: list[RecordedRun]) -> dict[tuple[str, str], tuple[str | None, str]]:
        """By host and measure, the last recorded text and tonight's, where they differ."""
        found: dict[tuple[str, str], tuple[str | None, str]] = {}
        last = nights[-2].id if nights[1:] else None
        for host, measure, host_name, name, text in self.rows(
            "SELECT w.host, w.measure, h.name, m.name, t.text FROM words w"
            " JOIN hosts h ON h.id = w.host JOIN measures m ON m.id = w.measure"
            " JOIN texts t ON t.id = w.text WHERE w.night = ? AND w.text IS NOT"
            " (SELECT text FROM words WHERE (night, host, measure) = (?, w.host, w.measure))",
            nights[-1].id,
            last,
        ):
            known = dict(
                self.rows(
                    "SELECT w.night, t.text FROM words w JOIN texts t ON t.id = w.text"
                    f" WHERE {_NIGHTS} AND host = ? AND measure = ?",
                    _list(nights[:-1]),
                    host,
                    measure,
                )
            )
            texts = [known[night.id] for night in nights[:-1] if night.id in known]
            found[host_name, name] = versions.last_known(name, texts), text
        return found

    def _cards(self, nights: list[RecordedRun], host: str) -> set[str]:
        """The cards that a host had in any of these runs."""
        return {
            card
            for (text,) in self.rows(
                f"SELECT DISTINCT t.text FROM words w JOIN texts t ON t.id = w.text WHERE {_NIGHTS}"
                " AND host = (SELECT id FROM hosts WHERE name = ?)"
                " AND measure = (SELECT id FROM measures WHERE name = ?)",
                _list(nights),
                host,
                CARDS,
            )
            for card in versions.cards(text)
        }

    # -- the file ----------------------------------------------------------------------------------

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """Return what a query selects."""
        return self.fetched(list, statement, *values)

    def fetched(self, make: Callable[[Iterable[Any]], T], statement: str, *values: Any) -> T:
        """The value that `make` makes of a query's rows."""
        with database.sqlite_errors(self.path):
            if not self._open:
                # Opened as immutable, without a lock.
                unlocked = self.path.exists() and not database.wal_path(self.path).exists()
                self._opened_as = self._stamp() if unlocked else None
                self._open = database.open_for_reading(self.path)
            return make(self._open.execute(statement, values))

    @property
    def _writer(self) -> sqlite3.Connection:
        if not self._open or not self._writes:
            self._close()
            self._open, self._writes = database.open_for_writing(self.path), True
        return self._open

    def _stamp(self) -> tuple[int, int]:
        """Modification time and size, to detect a write by another process."""
        status = self.path.stat()
        return status.st_mtime_ns, status.st_size

    def _close(self) -> None:
        if self._open:
            self._open.close()
        self._open, self._writes = None, False


# A condition on a table's nights; its parameter is a JSON list of ids.
_NIGHTS = "night IN (SELECT value FROM json_each(?))"
# Its parameter is the latest time that is not in the future. What is no time is before all others.
_FUTURE = "(started > ? AND started GLOB '[0-9]*')"
_EXPLAINED = "(SELECT name FROM checks WHERE id = v.explained)"
# Table of texts -> query for the ids that are still used.
_USED = {
    "hosts": "SELECT host FROM looks UNION SELECT host FROM fabric_members",
    "checks": 'SELECT "check" FROM verdicts',
    "measures": "SELECT measure FROM series UNION SELECT measure FROM words",
    "devices": "SELECT id FROM devices WHERE night >= (SELECT min(id) FROM nights)",
    "texts": "SELECT text FROM words UNION SELECT cause FROM verdicts WHERE cause IS NOT NULL"
    " UNION SELECT remedy FROM verdicts WHERE remedy IS NOT NULL",
}


def _by_check(
    rows: Iterable[tuple[Any, ...]], nights: list[RecordedRun]
) -> dict[tuple[str, str], list[CheckResult | None]]:
    position = {night.id: number for number, night in enumerate(nights)}
    found: dict[tuple[str, str], list[CheckResult | None]] = defaultdict(
        lambda: [None] * len(nights)
    )
    results: dict[tuple[Any, ...], CheckResult] = {}
    for host, check, night, *it in rows:
        values = tuple(it)
        if values not in results:
            code, cause, remedy, explained, held = values
            results[values] = CheckResult(
                _LETTER.get(code, _UNKNOWN), cause or "", remedy or "", explained or "", bool(held)
            )
        found[host, check][position[night]] = results[values]
    return found


def _list(nights: list[RecordedRun]) -> str:
    return json.dumps([night.id for night in nights])


def _column(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    return [row[0] for row in rows]
