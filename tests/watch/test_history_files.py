"""The history's file: reading leaves no trace; other releases' files, damaged ones, and writers
that are killed or have no space."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.watch import database
from gpufleet.watch.drift import CheckResult
from gpufleet.watch.history import History, HistoryError
from tests.support.machine import deadline
from tests.support.nightly_sessions import files, host, session

ROOT = Path(__file__).parents[2]


# -- reading leaves no trace -----------------------------------------------------------------------


def read_all(path: Path) -> None:
    """Everything that only reads."""
    with History(path) as history:
        history.nights()
        history.past()
        if history.nights():
            history.changes()
        history.flags("gpu01")
        history.names("hosts")


def test_reading_changes_no_file_and_makes_none(path: Path) -> None:
    read_all(path)
    assert not path.parent.exists()
    with History(path) as history:
        history.record(session(0, host("gpu01", x="PASS")))
    before = files(path.parent)
    assert list(before) == [path.name]
    read_all(path)
    assert files(path.parent) == before


def test_an_ordinary_account_can_read_where_it_may_not_write(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    # Where pytest keeps its directories nobody else may enter.
    place = Path("/var/tmp") / f"gpufleet-history-{os.getpid()}"
    try:
        with History(place / path.name) as history:
            history.record(session(0, host("gpu01", x="PASS")))
        child = os.fork()
        if not child:
            os.setuid(65534)
            with History(place / path.name) as history:
                os._exit(0 if history.past()["hosts"]["gpu01"]["verdicts"] == "P" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        shutil.rmtree(place)


def test_a_reader_beside_a_writer_sees_the_nights_that_are_whole(path: Path) -> None:
    with History(path) as writer:
        writer.record(session(0, host("gpu01", x="PASS")))
        with database.transaction(writer._writer), History(path) as reader:
            writer._writer.execute("INSERT INTO nights VALUES (7, 'x', 'y', 'nightly')")
            assert len(reader.nights()) == 1
    with History(path) as history:
        assert len(history.nights()) == 2


def test_what_is_written_meanwhile_is_reported_instead_of_printed_torn(path: Path) -> None:
    with History(path) as history:
        history.record(session(0, host("gpu01", x="PASS")))
    with pytest.raises(HistoryError, match="while it was read"), History(path) as reader:
        reader.nights()
        with History(path) as writer:
            writer.record(session(1, host("gpu01", x="PASS")))


# -- another release's file, and none --------------------------------------------------------------


def test_what_a_former_release_recorded_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.db"
    with monkeypatch.context() as former:
        former.setattr(database, "MIGRATIONS", database.MIGRATIONS[:1])
        database.open_for_writing(path).executescript("""
            INSERT INTO nights VALUES (1, '2026-11-20T03:00:00Z', '', 'nightly');
            INSERT INTO hosts VALUES (1, 'gpu01'); INSERT INTO checks VALUES (1, 'gpu.smi');
            INSERT INTO looks VALUES (1, 1, 0); INSERT INTO verdicts VALUES (1, 1, 1, 0, NULL, NULL)
            """)
    with History(path) as history:
        found = history.check_results(history.nights(), host="gpu01")
        assert found == {("gpu01", "gpu.smi"): [CheckResult("F")]}


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch, path: Path) -> Path:
    """A history as this release writes it, seen by one whose schema is a step further."""
    with History(path) as history:
        history.record(session(0, host("gpu01", x="FAIL: broken")))
    monkeypatch.setattr(
        database,
        "MIGRATIONS",
        (*database.MIGRATIONS, ("ALTER TABLE nights ADD COLUMN place TEXT DEFAULT 'here'",)),
    )
    return path


def schema(path: Path) -> tuple[int, set[str]]:
    """Its number, and the columns of a night."""
    base = sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)
    return (
        base.execute("PRAGMA user_version").fetchone()[0],
        {row[1] for row in base.execute("PRAGMA table_info(nights)")},
    )


def test_an_older_file_is_brought_up_to_date_with_all_that_is_in_it(later: Path) -> None:
    was, _ = schema(later)
    with History(later) as history:
        history.record(session(1, host("gpu01", x="PASS")))
        assert [it["kind"] for it in history.changes()["changes"]] == ["recovery"]
    now, columns = schema(later)
    assert now == was + 1 and "place" in columns


def test_an_older_file_is_read_without_being_changed(later: Path) -> None:
    before = files(later.parent)
    with History(later) as history:
        assert history.rows("SELECT place FROM nights") == [("here",)]
        assert history.past()["hosts"]["gpu01"]["verdicts"] == "F"
    assert files(later.parent) == before


def test_a_step_that_fails_has_not_happened(monkeypatch: pytest.MonkeyPatch, later: Path) -> None:
    monkeypatch.setattr(
        database,
        "MIGRATIONS",
        (*database.MIGRATIONS[:-1], (*database.MIGRATIONS[-1], "NO SUCH STATEMENT")),
    )
    before = schema(later)
    with pytest.raises(HistoryError), History(later) as history:
        history.record(session(1, host("gpu01", x="PASS")))
    assert schema(later) == before


@pytest.mark.parametrize("use", [read_all, lambda path: History(path).flag("a", "b", "c")])
def test_a_newer_file_is_refused_and_left_as_it_is(path: Path, use: Any) -> None:
    with History(path) as history:
        history.record(session(0, host("gpu01", x="PASS")))
    base = sqlite3.connect(path)
    base.execute("PRAGMA user_version = 99")
    base.close()
    before = files(path.parent)
    with pytest.raises(HistoryError, match="wrote the history: it has schema 99") as refused:
        use(path)
    assert refused.value.where == str(path) and refused.value.remedy
    assert files(path.parent) == before


@pytest.mark.parametrize("use", [read_all, lambda path: History(path).flag("a", "b", "c")])
@pytest.mark.parametrize("made", ["somebody's", "text"])
def test_what_is_no_history_is_refused_and_left_as_it_is(path: Path, made: str, use: Any) -> None:
    path.parent.mkdir()
    if made == "text":
        path.write_text("This is a text and no database at all.\n" * 200)
    else:
        base = sqlite3.connect(path)
        base.execute("CREATE TABLE recipes (name TEXT)")
        base.close()
    before = files(path.parent)
    with pytest.raises(HistoryError, match="not a history"):
        use(path)
    assert files(path.parent) == before


def test_a_damaged_file_is_printed_to_be(path: Path) -> None:
    with History(path) as history:
        history.record(session(0, *(host(f"gpu{n}", x="FAIL: x") for n in range(500))))
    os.truncate(path, path.stat().st_size // 3 * 2)
    with pytest.raises(HistoryError, match="damaged") as refused:
        read_all(path)
    assert "backup" in refused.value.remedy


# -- killed, and out of space ----------------------------------------------------------------------

# A night of 200 hosts, by a process that keeps so little in memory that much of it is in the log
# before it is committed.
NIGHT_OF_200 = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from gpufleet.watch.history import History, HistoryError
from gpufleet.watch.retention import RecordedTime, read_time
from tests.support.nightly_sessions import host, session

def hosts(cause):
    return [host(f"gpu{n}", **{f"check{c}": f"FAIL: {cause} {n} {c}" for c in range(30)})
            for n in range(200)]

"""
KILLED = (
    NIGHT_OF_200
    + """
import sqlite3
real = sqlite3.connect

def connect(*words, **more):
    base = real(*words, **more)
    base.execute("PRAGMA cache_size = 10")
    left = [int(sys.argv[3])]
    def heard(statement):
        if statement.startswith(sys.argv[2]):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
    base.set_trace_callback(heard)
    return base

sqlite3.connect = connect
with History(Path(sys.argv[1])) as history:
    history.record(session(1, *hosts("second")))
"""
)


def child(program: str, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=deadline(120),
        check=False,
        **more,
    )


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("INSERT INTO nights", 1),
        ("INSERT OR IGNORE INTO texts", 3000),
        ("INSERT INTO verdicts", 1),
        ("INSERT INTO verdicts", 5000),
        ("COMMIT", 2),
    ],
)
def test_a_run_killed_in_the_middle_leaves_history_whole(
    path: Path, where: str, number: int
) -> None:
    with History(path) as history:
        history.record(session(0, host("gpu0", check0="PASS")))
        whole = history.past()
    # The first COMMIT is that of the schema, which is there already.
    killed = child(KILLED, str(path), where, str(number))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with History(path) as history:
        assert history.past() == whole
        assert history.names("hosts") == ["gpu0"]
        history.record(session(2, host("gpu0", check0="FAIL: broken")))
        assert [it["kind"] for it in history.changes()["changes"]] == ["failure"]
        assert history.rows("PRAGMA integrity_check") == [("ok",)]


FULL = (
    NIGHT_OF_200
    + """
path = Path(sys.argv[1])
with History(path) as history:
    history.record(session(0, host("gpu0", check0="PASS")))
try:
    for night in range(1, 100):
        with History(path) as history:
            history.record(session(night, *hosts(f"night {night}")))
except HistoryError as error:
    print(f"{night - 1} {error}")
with History(path) as history:
    history.past()
    print(len(history.nights()) - 1, *history.rows("PRAGMA integrity_check")[0])
"""
)


def test_a_full_disk_is_printed_and_leaves_history_whole(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk; see the test by a limit on the file's size")
    small = tmp_path / "small"
    small.mkdir()
    # In a mount namespace of its own: nobody else sees the small disk, and it goes with it.
    mount = 'mount -t tmpfs -o size=6m small "$1"; shift; exec "$@"'
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-ec",
            mount,
            "sh",
            str(small),
            sys.executable,
            "-c",
            FULL,
            str(small / "history.sqlite"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=deadline(120),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    output, after = done.stdout.splitlines()
    assert "The disk is full" in output and "Free some space" in output
    assert int(output.split()[0]) > 0
    assert after == f"{output.split()[0]} ok"


def test_a_limit_on_the_files_size_is_printed_and_leaves_history_whole(path: Path) -> None:
    path.parent.mkdir()
    limit = 4 << 20
    done = child(
        FULL,
        str(path),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 0, done.stderr
    output, after = done.stdout.splitlines()
    assert "nothing was recorded; what was recorded before is unchanged" in output
    assert after == f"{output.split()[0]} ok"


def test_an_account_that_may_not_write_is_reported(path: Path) -> None:
    with pytest.raises(HistoryError) as refused:
        History(Path("/proc/gpufleet/history.sqlite")).flag("a", "b", "c")
    assert "cannot be created" in str(refused.value)


@pytest.mark.parametrize("full", [True, False])
def test_an_io_error_on_a_full_disk_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    free = SimpleNamespace(f_bavail=0 if full else 1)
    monkeypatch.setattr("gpufleet.watch.database.os.statvfs", lambda _: free)
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_SHMSIZE"
    with pytest.raises(HistoryError) as found, database.sqlite_errors(tmp_path / "history.sqlite"):
        raise error
    assert ("The disk is full" in str(found.value)) == full
    assert (f"df -h {tmp_path} (" in str(found.value)) == full
