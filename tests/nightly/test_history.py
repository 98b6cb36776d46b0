"""The history file: what is recorded is there, whole, and reading leaves no trace."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gpufleet.checks import judge
from gpufleet.nightly import database
from gpufleet.nightly.drift import CheckResult
from gpufleet.nightly.history import History, HistoryError
from gpufleet.nightly.retention import RecordedTime, read_time
from gpufleet.verification.session import HostRun, Session
from tests.support.healthy_host import data, document, with_cards
from tests.support.nightly_sessions import at, files, host, measured, session

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a history may be."""
    return tmp_path / "state" / "history.sqlite"


def test_a_night_is_told_again_as_it_was(path: Path) -> None:
    with History(path) as history:
        night = history.record(session(0, host("gpu01", a="PASS", b="FAIL: broken"), host("gpu02")))
        history.record(session(1, host("gpu01", a="PASS", b="PASS")))
    with History(path) as history:
        assert [(it.id, it.started, it.kind, it.hosts) for it in history.nights()] == [
            (night, at(0), "nightly", 2), (night + 1, at(1), "nightly", 1)]
        latest = history.latest()
        assert latest and latest.started == at(1)
        assert history.latest("rollout") is None
        assert {name: it["verdicts"] for name, it in history.past()["hosts"].items()} == {
            "gpu01": "FP", "gpu02": "U."}
        line = history.check_results(history.nights(), host="gpu01", check="b")["gpu01", "b"]
        assert [(it.letter, it.cause, it.remedy) for it in line if it] == [
            ("F", "broken", "fix it"), ("P", "", "")]


def test_numbers_are_told_by_night_and_those_that_were_not_measured_as_null(path: Path) -> None:
    with History(path) as history:
        for night, values in enumerate([{"a__tflops": 12.5, "b_c": 40.0}, {}, {"a__tflops": 12.0}]):
            history.record(session(night, host("gpu01", x="PASS")), measure=measured(**values))
        past = history.past()["hosts"]["gpu01"]["measures"]
        assert past == {"a.tflops": [12.5, None, 12.0]}
        assert history.past(2, named="*")["hosts"]["gpu01"]["measures"] == {
            "a.tflops": [None, 12.0]}


def test_only_nightly_runs_are_compared_and_charted(path: Path) -> None:
    with History(path) as history:
        history.record(session(0, host("gpu01", x="PASS")))
        history.record(session(1, host("gpu01", x="FAIL: tried")), kind="verify")
        history.record(session(2, host("gpu01", x="PASS")))
        assert history.changes()["since"] == at(0)
        assert history.changes()["changes"] == []
        assert history.past()["hosts"]["gpu01"]["verdicts"] == "PP"
        assert [night.kind for night in history.nights()] == ["nightly", "verify", "nightly"]


def test_the_changes_of_an_earlier_night_can_be_asked_for(path: Path) -> None:
    with History(path) as history:
        ids = [history.record(session(night, host("gpu01", x=said)))
               for night, said in enumerate(["PASS", "FAIL: broken", "PASS"])]
        assert [history.changes(night)["changes"][0]["kind"] for night in ids[1:]] == [
            "failure", "recovery"]
        with pytest.raises(HistoryError, match="There is no nightly run"):
            history.changes(99)


def test_a_text_is_compared_with_what_was_known_last(path: Path) -> None:
    with History(path) as history:
        for night, driver in enumerate(["535", None, "550"]):
            values = {"driver__version": driver} if driver else {}
            history.record(session(night, host("gpu01", x="PASS")), measure=measured(**values))
        change, = history.changes()["changes"]
    assert (change["kind"], change["before"], change["after"]) == ("driver", "535", "550")


def test_each_text_is_kept_once(path: Path) -> None:
    with History(path) as history:
        for night in range(5):
            history.record(session(night, *(host(f"gpu{n}", x="FAIL: it is broken")
                                            for n in range(20))))
    base = sqlite3.connect(path)
    assert base.execute("SELECT count(*) FROM texts WHERE text = 'it is broken'").fetchone() == (1,)


def test_a_cause_that_is_no_unicode_is_recorded_all_the_same(path: Path) -> None:
    with History(path) as history:
        history.record(session(0, host("gpu01", x="PASS")))
        history.record(session(1, host("gpu01", x="FAIL: /etc/\udcff.conf 日本 \0 'x'")))
        change, = history.changes()["changes"]
    assert change["after"] == "FAIL: /etc/\\udcff.conf 日本 \0 'x'"


def test_flags_live_on_without_nights(path: Path) -> None:
    with History(path) as history:
        assert history.flags("gpu01") == {}
        history.flag("gpu01", "drained", "by us")
        history.flag("gpu01", "drained", "by us, again")
    with History(path) as history:
        assert history.flags("gpu01") == {"drained": "by us, again"}
        history.flag("gpu01", "drained", None)
        assert history.flags("gpu01") == {}


def test_old_nights_and_what_only_they_said_are_forgotten_the_newest_stays(path: Path) -> None:
    with History(path) as history:
        history.record(session(0, host("gone", x="FAIL: long ago")), measure=measured(a__tflops=1))
        history.record(session(1, host("gpu01", x="PASS")))
        recent = history.record(session(2, host("gpu01", x="FAIL: now")))
        assert history.prune(keep_days=10_000) == 0
        assert history.prune(keep_days=0) == 2
        assert [night.id for night in history.nights()] == [recent]
        assert history.names("hosts") == ["gpu01"]
        assert history.names("measures") == []
    base = sqlite3.connect(path)
    assert base.execute("SELECT text FROM texts ORDER BY text").fetchall() == [
        ("fix it",), ("now",)]


def recorded(base: History, *starts: str) -> None:
    """Nightly runs at these times."""
    for start in starts:
        base.record(replace(session(0, host("gpu01", x="PASS")), started=start, finished=start))


DAILY = [f"2026-10-{day:02}T03:00:00Z" for day in range(1, 31)]


def test_a_clock_that_jumps_ahead_deletes_no_run(path: Path) -> None:
    with History(path) as history:
        recorded(history, *DAILY, "2038-01-19T03:00:00Z")
        assert history.prune(keep_days=40) == 0
        assert "clock jumped" in history.recorded_time().jump()
        # Nor do the next nights, as long as the clock is wrong.
        recorded(history, "2038-01-20T03:00:00Z", "2038-01-21T03:00:00Z")
        assert history.prune(keep_days=40) == 0
        assert not history.recorded_time().jump()
        # Time goes on, a day for each night.
        assert history.prune(keep_days=36) == 2
        assert history.nights()[0].started == "2026-10-03T03:00:00Z"


def test_a_clock_that_is_set_back_deletes_no_run(path: Path) -> None:
    with History(path) as history:
        recorded(history, *DAILY, "2038-01-19T03:00:00Z", "2026-10-31T03:00:00Z")
        assert history.prune(keep_days=40) == 0
        recorded(history, "1970-01-01T00:00:00Z")
        assert history.prune(keep_days=50) == 0


def test_reports_age_by_the_recorded_runs_and_those_before_them_by_the_calendar() -> None:
    time = RecordedTime([*DAILY, "2038-01-19T03:00:00Z"])
    assert time.age(read_time("2026-10-30T03:00:00Z")).days == 7
    assert time.age(read_time("2026-10-23T03:00:00Z")).days == 14
    assert time.age(read_time("2020-10-01T03:00:00Z")).days == 365 * 6 + 1 + 29 + 7
    assert time.age(read_time("2039-01-01T00:00:00Z")).days == 0
    assert RecordedTime([]).age(read_time("2020-10-01T03:00:00Z")).days == 0
    assert not RecordedTime(["no time", *DAILY[1:]]).jump()


def test_a_card_that_was_there_before_is_known_for_all_of_the_window(path: Path) -> None:
    both, one = "1 GPU-a L4; 2 GPU-b L4", "1 GPU-a L4"
    with History(path) as history:
        for number, text in enumerate((both, one, one, both)):
            history.record(Session([HostRun("gpu01", {}, {}, judge.judge({}, document(
                "snapshot.json")))], started=at(number), finished=at(number)),
                measure=lambda *_, text=text: {"gpus": text})
        change, = (it for it in history.changes()["changes"] if it["kind"] == "gpu")
        assert change["text"] == "GPU-b (L4) is back at 2."


def test_two_nights_of_real_documents(path: Path) -> None:
    """Snapshots as the probe makes them, judged as ever: exactly what is different is told."""
    def look(night: int, change: Any) -> Session:
        plan, snapshot = document("plan.json"), document("snapshot.json")
        with_cards(plan, snapshot)
        for number, card in enumerate(data(snapshot, "smi")["devices"]):
            card.update(index=number, uuid=f"GPU-{number}", name="NVIDIA L4")
        change(snapshot)
        return Session([HostRun("gpu01", snapshot, plan, judge.judge(plan, snapshot))],
                       started=at(night), finished=at(night))

    def changed(snapshot: Any) -> None:
        data(snapshot, "cudnn")["trees"][0]["headers"][0]["version"] = "8.9.7"
        data(snapshot, "stacks")["stacks"][0]["python"] = "3.11.9"
        data(snapshot, "smi")["devices"][1]["uuid"] = "GPU-9"

    with History(path) as history:
        history.record(look(0, lambda snapshot: None))
        history.record(look(1, changed))
        changes = history.changes()["changes"]
        assert [(it["kind"], it["check"], it["before"]) for it in changes] == [
            ("failure", "cudnn.present", "PASS"), ("gpu", None, "GPU-1"),
            ("version", None, "3.11.2")]
        assert "8.9.7" in changes[0]["text"] and changes[0]["remedy"]
        history.record(look(2, lambda snapshot: None))
        assert [it["kind"] for it in history.changes()["changes"]] == [
            "recovery", "gpu", "version"]


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


def test_what_is_written_meanwhile_is_said_instead_of_told_torn(path: Path) -> None:
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
    monkeypatch.setattr(database, "MIGRATIONS", (
        *database.MIGRATIONS, ("ALTER TABLE nights ADD COLUMN place TEXT DEFAULT 'here'",)))
    return path


def schema(path: Path) -> tuple[int, set[str]]:
    """Its number, and the columns of a night."""
    base = sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)
    return (base.execute("PRAGMA user_version").fetchone()[0],
            {row[1] for row in base.execute("PRAGMA table_info(nights)")})


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
        assert history._rows("SELECT place FROM nights") == [("here",)]
        assert history.past()["hosts"]["gpu01"]["verdicts"] == "F"
    assert files(later.parent) == before


def test_a_step_that_fails_has_not_happened(
    monkeypatch: pytest.MonkeyPatch, later: Path
) -> None:
    monkeypatch.setattr(database, "MIGRATIONS", (
        *database.MIGRATIONS[:-1], (*database.MIGRATIONS[-1], "NO SUCH STATEMENT")))
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


def test_a_damaged_file_is_said_to_be(path: Path) -> None:
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
from gpufleet.nightly.history import History, HistoryError
from gpufleet.nightly.retention import RecordedTime, read_time
from tests.support.nightly_sessions import host, session

def hosts(cause):
    return [host(f"gpu{n}", **{f"check{c}": f"FAIL: {cause} {n} {c}" for c in range(30)})
            for n in range(200)]

"""
KILLED = NIGHT_OF_200 + """
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


def child(program: str, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    return subprocess.run([sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True,
                          text=True, timeout=120, check=False, **more)


@pytest.mark.parametrize(("where", "number"), [
    ("INSERT INTO nights", 1), ("INSERT OR IGNORE INTO texts", 3000), ("INSERT INTO verdicts", 1),
    ("INSERT INTO verdicts", 5000), ("COMMIT", 2)])
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
        assert history._rows("PRAGMA integrity_check") == [("ok",)]


FULL = NIGHT_OF_200 + """
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
    print(len(history.nights()) - 1, *history._rows("PRAGMA integrity_check")[0])
"""


def test_a_full_disk_is_said_and_leaves_history_whole(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk; see the test by a limit on the file's size")
    small = tmp_path / "small"
    small.mkdir()
    # In a mount namespace of its own: nobody else sees the small disk, and it goes with it.
    mount = 'mount -t tmpfs -o size=6m small "$1"; shift; exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", mount, "sh", str(small), sys.executable, "-c", FULL,
         str(small / "history.sqlite")],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said, after = done.stdout.splitlines()
    assert "The disk is full" in said and "Free some space" in said
    assert int(said.split()[0]) > 0
    assert after == f"{said.split()[0]} ok"


def test_a_limit_on_the_files_size_is_said_and_leaves_history_whole(path: Path) -> None:
    path.parent.mkdir()
    limit = 4 << 20
    done = child(FULL, str(path), preexec_fn=lambda: resource.setrlimit(
        resource.RLIMIT_FSIZE, (limit, limit)))
    assert done.returncode == 0, done.stderr
    said, after = done.stdout.splitlines()
    assert "nothing was recorded; what was recorded before is unchanged" in said
    assert after == f"{said.split()[0]} ok"


def test_an_account_that_may_not_write_is_told_so(path: Path) -> None:
    with pytest.raises(HistoryError) as refused:
        History(Path("/proc/gpufleet/history.sqlite")).flag("a", "b", "c")
    assert "cannot be created" in str(refused.value)


def with_contents(night: int, *components: dict[str, Any] | None) -> Session:
    """A night over two hosts, each with what its probe says of one component's contents."""
    found = session(night, host("gpu01", x="PASS"), host("gpu02", x="PASS"))
    for each, component in zip(found.hosts, components, strict=True):
        snapshot = document("snapshot.json")
        data(snapshot, "receipts").pop("scrub", None)
        if component:
            data(snapshot, "receipts")["scrub"] = {
                "days": 14, "seconds": 60, "at": 1_800_000_000, "error": None,
                "components": [component]}
        each.snapshot = cast(Any, snapshot)
    return found


STATE = {"component": "toolkit-11.8", "installed": "then", "files": 1, "bytes": 2, "first": 3,
         "begun": 4, "read": None, "cursor": "a", "complete": True, "slow": [], "bad": []}


def test_how_far_contents_were_read_stays_known_when_a_host_does_not_say_it(path: Path) -> None:
    further = {**STATE, "cursor": "b", "bad": [{"path": "a", "what": "sha256"}]}
    with History(path) as history:
        assert history.contents_read() == {}
        history.record(with_contents(0, STATE, STATE))
        # One host hangs, or is probed without reading contents; the other goes on.
        history.record(with_contents(1, None, further))
        # What is of another release, or nonsense, begins again, and costs nobody else anything.
        history.record(with_contents(2, {"component": "toolkit-11.8"}, None))
        assert history.contents_read() == {"gpu01": [STATE], "gpu02": [further]}
        history.flag("gpu01", "scrub", '[{"component": 5}, 7]')
        assert history.contents_read()["gpu01"] == []
        history.prune(1)
        assert history.contents_read()["gpu02"] == [further]
