"""The SQLite file of the history: open it, migrate its schema, and explain SQLite's errors.

Reading changes nothing: it creates no file, migrates no schema, and rolls nothing back. Writing is
one transaction in the write-ahead log, so a killed run or a full disk leaves the file as it was.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from gpufleet.errors import ConfigurationError

from . import series

# "gpuf": identifies the file as ours.
APPLICATION = 0x67707566
# How each file of SQLite begins.
_HEADER = b"SQLite format 3\0"
# How long to wait for another writer.
BUSY_TIMEOUT_S = 30

Step = str | Callable[[sqlite3.Connection], None]

# The steps from each schema to the next, statements or functions: append, never edit; other
# releases read the file.
# Small integers without foreign keys keep five million verdicts at some 15 bytes each. A night is
# appended to each table and pruned at its beginning; each key begins with what queries select by.
MIGRATIONS: Sequence[Sequence[Step]] = (
    (
        "CREATE TABLE nights (id INTEGER PRIMARY KEY, started TEXT NOT NULL,"
        " finished TEXT NOT NULL, kind TEXT NOT NULL)",
        # Each text once: names, then causes, remedies and versions. A measure's name is stored
        # without its card: `gpu.GPU-<uuid>` is the device, and there are few others.
        "CREATE TABLE hosts (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
        "CREATE TABLE checks (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
        "CREATE TABLE measures (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
        "CREATE TABLE devices (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
        "CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
        # One row per night and host, per check of the host, and per measured value.
        "CREATE TABLE looks (night INTEGER, host INTEGER, verdict INTEGER NOT NULL,"
        " PRIMARY KEY (night, host)) WITHOUT ROWID",
        'CREATE TABLE verdicts (night INTEGER, "check" INTEGER, host INTEGER,'
        " verdict INTEGER NOT NULL, cause INTEGER, remedy INTEGER,"
        ' PRIMARY KEY (night, "check", host)) WITHOUT ROWID',
        # Unhealthy verdicts are rare, and queried most.
        'CREATE INDEX wrong ON verdicts (night, "check", host) WHERE verdict < 4',
        "CREATE TABLE numbers (night INTEGER, measure INTEGER, host INTEGER, device INTEGER,"
        " value REAL NOT NULL, PRIMARY KEY (night, measure, host, device)) WITHOUT ROWID",
        "CREATE TABLE words (night INTEGER, host INTEGER, measure INTEGER, text INTEGER NOT NULL,"
        " PRIMARY KEY (night, host, measure)) WITHOUT ROWID",
        "CREATE TABLE flags (host TEXT, name TEXT, value TEXT NOT NULL, PRIMARY KEY (host, name))"
        " WITHOUT ROWID",
    ),
    # The check whose finding explains this one.
    ("ALTER TABLE verdicts ADD COLUMN explained INTEGER",),
    (
        # Fabric tests, and what their groups reached. A group is named by the ids of its hosts.
        "CREATE TABLE fabric_tests (id INTEGER PRIMARY KEY, started TEXT NOT NULL,"
        " finished TEXT NOT NULL, verdict INTEGER NOT NULL, scope TEXT NOT NULL,"
        " algorithm TEXT NOT NULL, ranks INTEGER NOT NULL, culprits TEXT NOT NULL)",
        "CREATE TABLE fabric_groups (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,"
        " size INTEGER NOT NULL)",
        'CREATE TABLE fabric_members (host INTEGER, "group" INTEGER, PRIMARY KEY (host, "group"))'
        " WITHOUT ROWID",
        "CREATE TABLE fabric_results (test INTEGER, number INTEGER, collective TEXT, bytes INTEGER,"
        ' "group" INTEGER NOT NULL, outcome TEXT NOT NULL, gb_per_s REAL,'
        " PRIMARY KEY (test, number, collective, bytes)) WITHOUT ROWID",
        'CREATE INDEX fabric_results_of_group ON fabric_results ("group", collective, bytes)',
        'CREATE INDEX fabric_members_of_group ON fabric_members ("group")',
    ),
    # Inconclusive only because processes hold the GPU.
    ("ALTER TABLE verdicts ADD COLUMN held INTEGER",),
    (
        # The numbers of a measure in a run are one value for each block of hosts. A device has the
        # last run that it is named in.
        "CREATE TABLE series (night INTEGER, measure INTEGER, block INTEGER,"
        " numbers BLOB NOT NULL, PRIMARY KEY (night, measure, block))",
        series.convert,
        "ALTER TABLE devices ADD COLUMN night INTEGER NOT NULL DEFAULT 0",
        "UPDATE devices SET night = coalesce((SELECT max(id) FROM nights), 0)",
        "DROP TABLE numbers",
    ),
)


class HistoryError(ConfigurationError):
    """The history cannot be read or written; what was recorded before is unchanged."""


# SQLite's error name -> message and remedy.
_MESSAGES = {
    "SQLITE_FULL": (
        "The disk is full: nothing was recorded; what was recorded before is unchanged.",
        "Free some space: df -h {directory} (du -xh {directory} lists what takes it), or set"
        " keep_days to keep fewer nights.",
    ),
    "SQLITE_BUSY": ("Another process is writing to the history.", "Try again when it is done."),
    "SQLITE_NOTADB": ("The file is not a history.", "Name another file."),
    "SQLITE_CORRUPT": (
        "The file is damaged.",
        "Replace it with a backup, or move it away: the next nightly run creates a new one.",
    ),
    "SQLITE_READONLY": (
        "This account may not write to the history.",
        "Run the command as the user of the nightly.",
    ),
    "SQLITE_CANTOPEN": (
        "The history cannot be opened.",
        "Check that this account may read the file and enter its directory, and"
        " that the disk has free space.",
    ),
}


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Raise an error of SQLite as a `HistoryError` with message, path and remedy."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        family = "_".join(name.split("_")[:2])
        if family == "SQLITE_IOERR" and _is_full(path.parent):
            family = "SQLITE_FULL"
        message, remedy = _MESSAGES.get(
            family,
            (
                "The history cannot be used: nothing was recorded; what was recorded before is"
                " unchanged.",
                "Check that its disk works and has free space.",
            ),
        )
        remedy = remedy.format(directory=shlex.quote(str(path.parent)))
        raise HistoryError(f"{message} ({error})", str(path), remedy) from error


def _is_full(directory: Path) -> bool:
    """Return whether no block is left: SQLite reports a full write-ahead log as an I/O error."""
    try:
        return os.statvfs(directory).f_bavail == 0
    except OSError:
        return False


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit everything or nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        # A full disk may have rolled it back already.
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def damage(path: Path) -> str:
    """Why the file cannot be a history, whoever wrote it; empty where it can, or does not exist."""
    if not path.exists():
        return "it is a link that leads nowhere" if path.is_symlink() else ""
    if not path.is_file():
        return "it is not a file"
    # SQLite takes an empty file for a new database: every night in it would be gone without a word.
    with suppress(OSError), path.open("rb") as stream:
        begin = stream.read(len(_HEADER))
        if begin != _HEADER:
            return "it is not a database" if begin else "it is empty"
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S)) as base:
            found = str(base.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        damaged = getattr(error, "sqlite_errorname", "") in {"SQLITE_NOTADB", "SQLITE_CORRUPT"}
        return str(error) if damaged else ""
    return "" if found == "ok" else found


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the history for writing; create it, or migrate it to this release's schema."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HistoryError(
            f"The history cannot be created: {error.strerror}.", str(path)
        ) from error
    database = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        _known(database, path)
        database.execute("PRAGMA journal_mode = WAL")
        # A committed transaction survives a power failure.
        database.execute("PRAGMA synchronous = FULL")
        _migrate(database)
    except BaseException:
        database.close()
        raise
    return database


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open the history without changing it; a missing file is an empty history in memory."""
    empty = sqlite3.connect(":memory:", isolation_level=None)
    if not path.exists():
        _migrate(empty)
        return empty
    # Without a log nobody writes; `immutable` keeps SQLite from creating one.
    mode = "mode=ro" if wal_path(path).exists() else "mode=ro&immutable=1"
    database = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None
    )
    try:
        if _known(database, path) == len(MIGRATIONS):
            empty.close()
            return database
        # Written by an older release, or empty: migrate a copy.
        database.backup(empty)
        _migrate(empty)
    except BaseException:
        empty.close()
        database.close()
        raise
    database.close()
    return empty


def wal_path(path: Path) -> Path:
    """The write-ahead log; it exists while a process writes, or after the process was killed."""
    return path.with_name(f"{path.name}-wal")


def _known(database: sqlite3.Connection, path: Path) -> int:
    """Return its schema number; raise `HistoryError` if the file is not ours, or too new."""
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    ours = database.execute("PRAGMA application_id").fetchone()[0] == APPLICATION
    if not ours and database.execute("SELECT 1 FROM sqlite_schema").fetchone():
        raise HistoryError(
            "The file is a database, but not a history.", str(path), "Name another file."
        )
    if version > len(MIGRATIONS):
        raise HistoryError(
            f"A newer release wrote the history: it has schema {version}, and this release"
            f" reads up to {len(MIGRATIONS)}.",
            str(path),
            "Use that release.",
        )
    return version


def _migrate(database: sqlite3.Connection) -> None:
    """Run each missing step and set its number in one transaction."""
    for number, statements in enumerate(MIGRATIONS, 1):
        with transaction(database):
            # Read within the transaction: another process may have migrated it meanwhile.
            if database.execute("PRAGMA user_version").fetchone()[0] < number:
                for step in statements:
                    if callable(step):
                        step(database)
                    else:
                        database.execute(step)
                database.execute(f"PRAGMA application_id = {APPLICATION}")
                database.execute(f"PRAGMA user_version = {number}")
