"""The SQLite file of the history: opened, brought up to date, and its mishaps in plain words.

Whoever reads leaves no trace: no file is made, no schema changed, nothing rolled back. Writing is
one transaction in the write-ahead log, so a killed run or a full disk leaves what was there before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpufleet.errors import ConfigurationError

# "gpuf": by which the file is told from other people's.
APPLICATION = 0x67707566
# How long to wait for another writer.
PATIENCE_S = 30

# What leads from each schema to the next: appended to, never edited. Small whole numbers without
# foreign keys keep five million verdicts at some 15 bytes each; a night is written at the end of
# each table and pruned at its beginning, and the key begins with what is asked for.
MIGRATIONS: Sequence[Sequence[str]] = (
    (
        "CREATE TABLE nights (id INTEGER PRIMARY KEY, started TEXT NOT NULL,"
        " finished TEXT NOT NULL, kind TEXT NOT NULL)",
        # Each text once: names, then causes, remedies and versions. A measure's name stands here
        # without its card: `gpu.GPU-<uuid>` is the device, and there are few others.
        "CREATE TABLE hosts (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
        "CREATE TABLE checks (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
        "CREATE TABLE measures (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
        "CREATE TABLE devices (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
        "CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
        # One row per night and host, per check of it, and per measured value.
        "CREATE TABLE looks (night INTEGER, host INTEGER, verdict INTEGER NOT NULL,"
        " PRIMARY KEY (night, host)) WITHOUT ROWID",
        'CREATE TABLE verdicts (night INTEGER, "check" INTEGER, host INTEGER,'
        ' verdict INTEGER NOT NULL, cause INTEGER, remedy INTEGER,'
        ' PRIMARY KEY (night, "check", host)) WITHOUT ROWID',
        # What neither held nor was excused is rare, and asked for most.
        'CREATE INDEX wrong ON verdicts (night, "check", host) WHERE verdict < 4',
        "CREATE TABLE numbers (night INTEGER, measure INTEGER, host INTEGER, device INTEGER,"
        " value REAL NOT NULL, PRIMARY KEY (night, measure, host, device)) WITHOUT ROWID",
        "CREATE TABLE words (night INTEGER, host INTEGER, measure INTEGER, text INTEGER NOT NULL,"
        " PRIMARY KEY (night, host, measure)) WITHOUT ROWID",
        "CREATE TABLE flags (host TEXT, name TEXT, value TEXT NOT NULL, PRIMARY KEY (host, name))"
        " WITHOUT ROWID",
    ),
)


class HistoryError(ConfigurationError):
    """The history cannot be read or written; what was recorded before is as it was."""


_SAID = {
    "SQLITE_FULL": ("There is no space left for it: nothing of this was recorded, what was there"
                    " before is whole.", "Free some space; prune keeps fewer nights."),
    "SQLITE_BUSY": ("Somebody else is writing to it.", "Ask again when that is done."),
    "SQLITE_NOTADB": ("This is no history.", "Name another file."),
    "SQLITE_CORRUPT": ("The file is damaged.", "Put a backup in its place, or move it away: the"
                       " next night begins a new one."),
    "SQLITE_READONLY": ("This account may not write there.",
                        "Run it as the account of the nightly."),
    "SQLITE_CANTOPEN": ("It cannot be opened.",
                        "See that this account may read the file and enter its directory, and that"
                        " there is space left."),
}


@contextmanager
def plainly(path: Path) -> Iterator[None]:
    """Tell an error of SQLite's as a `HistoryError`: what, where, what to do."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        family = "_".join(name.split("_")[:2])
        told, remedy = _SAID.get(family, (
            "It cannot be used: nothing of this was recorded, what was there before is whole.",
            "See that its disk is sound and has space left."))
        raise HistoryError(f"{told} ({error})", str(path), remedy) from error


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        # A full disk may have rolled it back already.
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def writing(path: Path) -> sqlite3.Connection:
    """Open it for writing, made or brought to this release's schema where it has to be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HistoryError(f"It cannot be made: {error.strerror}.", str(path)) from error
    database = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None)
    try:
        _known(database, path)
        database.execute("PRAGMA journal_mode = WAL")
        # Committed is on the disk, also after the power went.
        database.execute("PRAGMA synchronous = FULL")
        _migrate(database)
    except BaseException:
        database.close()
        raise
    return database


def reading(path: Path) -> sqlite3.Connection:
    """Open it without leaving a trace; where there is none yet, an empty one in memory."""
    empty = sqlite3.connect(":memory:", isolation_level=None)
    if not path.exists():
        _migrate(empty)
        return empty
    # Without a log nobody writes, and SQLite would make one only to read: it is told not to.
    form = "mode=ro" if log(path).exists() else "mode=ro&immutable=1"
    database = sqlite3.connect(f"{path.absolute().as_uri()}?{form}", uri=True, timeout=PATIENCE_S,
                               isolation_level=None)
    try:
        if _known(database, path) == len(MIGRATIONS):
            empty.close()
            return database
        # Of an older release, or empty: brought up to date in a copy.
        database.backup(empty)
        _migrate(empty)
    except BaseException:
        empty.close()
        database.close()
        raise
    database.close()
    return empty


def log(path: Path) -> Path:
    """The write-ahead log, which is there while somebody writes, or after he was killed."""
    return path.with_name(f"{path.name}-wal")


def _known(database: sqlite3.Connection, path: Path) -> int:
    """Its schema, or a `HistoryError` where it is not one of ours."""
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    ours = database.execute("PRAGMA application_id").fetchone()[0] == APPLICATION
    if not ours and database.execute("SELECT 1 FROM sqlite_schema").fetchone():
        raise HistoryError("This is a database, but no history.", str(path), "Name another file.")
    if version > len(MIGRATIONS):
        raise HistoryError(
            f"A newer release wrote it: schema {version}; this one knows {len(MIGRATIONS)}.",
            str(path), "Use that release.")
    return version


def _migrate(database: sqlite3.Connection) -> None:
    """Each step with its number in one transaction: a killed one has not happened."""
    for number, statements in enumerate(MIGRATIONS, 1):
        with transaction(database):
            # Asked for within: another process may have done it meanwhile.
            if database.execute("PRAGMA user_version").fetchone()[0] < number:
                for statement in statements:
                    database.execute(statement)
                database.execute(f"PRAGMA application_id = {APPLICATION}")
                database.execute(f"PRAGMA user_version = {number}")
