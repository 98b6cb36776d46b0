"""Silences: what they cover, what sounds all the same, and when they end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.cli.main import main
from gpufleet.fleet.session import HostRun, Session
from gpufleet.report import directory as report
from gpufleet.report import junit, summary
from gpufleet.watch import drain, drift, message_forms, metrics, notifications, silences
from gpufleet.watch.history import History, HistoryError
from gpufleet.watch.retention import read_time
from gpufleet.watch.run import NightlyRun
from tests.support.machine import deadline
from tests.support.nightly_sessions import at, host, measured, session
from tests.support.receivers import Listener
from tests.support.silences import CAUSE, FAILS, OTHER, TWO, silence

ROOT = Path(__file__).parents[2]
SPEED = "gpu.GPU-a.toolkit.12.3.tflops"


SILENCED = {"until": "2026-11-20", "who": "ann", "why": "card ordered"}


# -- what is covered -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("set_for", "found", "covered"),
    [
        (f"FAIL: {CAUSE}", f"FAIL: {CAUSE}", True),
        ("FAIL: GPU 3 is at 91 degrees", "FAIL: GPU 3 is at 88 degrees", True),
        ("FAIL: GPU 3 is at 91 degrees", "FAIL: GPU 4 is at 91 degrees", False),
        # One more card is another cause; a part of what was found is none.
        (f"FAIL: {CAUSE}", f"FAIL: {TWO}", False),
        ("FAIL: GPU 3 is broken", "FAIL: GPU 3 is broken. GPU 4 is broken", False),
        ("FAIL: GPU 3 is broken. GPU 4 is broken", "FAIL: GPU 4 is broken", True),
        ("FAIL: a. b. ... and 5 more", "FAIL: a. b. ... and 6 more", False),
        # A measured figure of another one is no count of parts.
        ("FAIL: slow, 31.5 of 60 TFLOP/s", "FAIL: slow, 32.5 of 60 TFLOP/s", True),
        ("FAIL: slowed in 3 of 12 samples", "FAIL: slowed in 4 of 15 samples", True),
        # A worse verdict sounds, a milder one does not.
        ("INCONCLUSIVE: it is busy", "FAIL: it is busy", False),
        ("FAIL: it is busy", "INCONCLUSIVE: it is busy", True),
        ("SLOW: a card", "FAIL: a card", False),
        ("FAIL: broken", "PASS: ", False),
        ("FAIL: \udcff.conf", "FAIL: \\udcff.conf", True),
    ],
)
def test_a_silence_covers_the_cause_that_stood_and_no_other(
    set_for: str, found: str, covered: bool
) -> None:
    verdict, _, cause = found.partition(": ")
    assert silences.matches(silence("x", set_for), verdict, cause) is covered


@pytest.mark.parametrize(
    ("night", "holds"),
    [
        ("2026-11-19T03:00:00Z", True),
        ("2026-11-20T23:59:59Z", True),
        ("2026-11-21T00:00:00Z", False),
    ],
)
def test_a_silence_holds_to_the_end_of_its_day(night: str, holds: bool) -> None:
    assert silences.in_force(silence(), night) is holds
    assert (silences.end_of(SILENCED) > read_time(night).timestamp()) is holds


def explained(run: HostRun, check: str, by: str) -> HostRun:
    """The host, with a check that another one explains."""
    for each in run.result["checks"]:
        if each["id"] == check:
            each["explained_by"] = by
    return run


def judged(**verdicts: str) -> Session:
    """A session of two hosts, of which the silence of gpu01 is applied."""
    given = {"gpu__count": f"FAIL: {CAUSE}", "gpu__smi": "FAIL: 7 of 8 GPUs answer", **verdicts}
    run = explained(host("gpu01", **given), "gpu.smi", "gpu.count")
    key = "gpu01", "gpu.count"
    return silences.applied(session(1, run, host("gpu02", gpu__count="PASS")), {key: silence()})


def test_a_session_keeps_its_verdicts_and_names_the_silence_of_cause_and_consequence() -> None:
    found = judged(host__disk="PASS")
    assert silences.silenced_checks(found.document) == {
        ("gpu01", "gpu.count"): SILENCED,
        ("gpu01", "gpu.smi"): SILENCED,
    }
    assert [each.result["verdict"] for each in found.hosts] == ["FAIL", "PASS"]
    assert silences.exit_status(found.document) == 0


@pytest.mark.parametrize(
    ("verdict", "status"), [("FAIL: full", 1), ("INCONCLUSIVE: unread", 3), ("NOT-DECLARED: x", 0)]
)
def test_the_status_of_the_nightly_run_is_that_of_what_sounds(verdict: str, status: int) -> None:
    assert silences.exit_status(judged(host__disk=verdict).document) == status


def test_another_cause_in_the_session_is_not_silenced() -> None:
    found = judged(gpu__count=f"FAIL: {TWO}")
    assert silences.silenced_checks(found.document) == {}
    assert silences.exit_status(found.document) == 1


def test_a_consequence_with_a_worse_verdict_is_not_silenced() -> None:
    rows = {
        "gpu.count": ("INCONCLUSIVE", "unread", ""),
        "gpu.smi": ("FAIL", "broken", "gpu.count"),
        "gpu.mig": ("INCONCLUSIVE", "unread", "gpu.count"),
        "gpu.ecc": ("PASS", "", "gpu.count"),
    }
    known = {("gpu01", "gpu.count"): silence("gpu.count", "INCONCLUSIVE: unread")}
    assert set(silences.of_host(known, "gpu01", rows, at(1))) == {"gpu.count", "gpu.mig"}


# -- nights ----------------------------------------------------------------------------------------


def nights(path: Path, *outputs: str, silent: Any = None, check: str = "gpu.count") -> History:
    """A history of a check's nights on gpu01, with a silence."""
    history = History(path)
    for night, output in enumerate(outputs):
        history.record(session(night, host("gpu01", **{check.replace(".", "__"): output})))
    silences.store(history, silent or silence(check))
    return history


def reported(history: History) -> list[tuple[str, bool]]:
    """The kinds of the newest night's changes, and whether each is silenced."""
    return [(it["kind"], "silenced" in it) for it in history.changes()["changes"]]


@pytest.mark.parametrize(
    ("outputs", "changes"),
    [
        (["PASS", FAILS], [("failure", True)]),
        (["PASS", OTHER], [("failure", False)]),
        ([FAILS, FAILS], []),
        ([FAILS, OTHER], [("other-cause", False)]),
        (["FAIL: a cable", FAILS], [("other-cause", True)]),
        ([OTHER, FAILS], [("other-cause", True)]),
        ([FAILS, "PASS"], [("recovery", False)]),
        # A check that flaps is not reported for each cause, a new one is all the same, once.
        (["PASS", FAILS] * 4 + ["PASS", OTHER], [("other-cause", False)]),
        (["PASS", FAILS] * 2 + ["PASS", OTHER, "PASS", OTHER], []),
        (["PASS", FAILS, "PASS", FAILS], [("failure", True)]),
        (["PASS", FAILS, "PASS", FAILS, "PASS"], [("flapping", True)]),
        (["PASS", OTHER, "PASS", OTHER, "PASS"], [("flapping", False)]),
        ([FAILS, "PASS", FAILS, "PASS", FAILS], [("flapping", True)]),
    ],
)
def test_what_is_silenced_is_marked_and_what_is_new_is_not(
    path: Path, outputs: list[str], changes: list[tuple[str, bool]]
) -> None:
    with nights(path, *outputs) as history:
        assert reported(history) == changes


def test_a_second_failure_of_another_check_sounds(path: Path) -> None:
    with nights(path, "PASS") as history:
        history.record(session(1, host("gpu01", gpu__count=FAILS, host__disk="FAIL: full")))
        found = {it["check"]: "silenced" in it for it in history.changes()["changes"]}
    assert found == {"gpu.count": True, "host.disk": False}


def test_the_end_of_a_silence_is_reported_once(path: Path) -> None:
    # Night 0 is of 1 November.
    with nights(path, FAILS, FAILS, silent=silence(until="2026-11-02")) as history:
        assert reported(history) == []
        for night in (2, 3):
            history.record(session(night, host("gpu01", gpu__count=FAILS)))
            changes = history.changes()
            found = changes["changes"]
            assert "silenced" not in changes["standing"][0]
            if night == 2:
                (change,) = found
                assert (change["kind"], change["weight"], change["strikes"]) == (
                    "unsilenced",
                    "bad",
                    3,
                )
                assert change["text"] == (
                    "gpu.count is still bad, for 3 nights in a row, and its silence ended on"
                    f" 2026-11-02: {CAUSE}."
                )
                assert notifications.has_content(changes)
            else:
                assert found == []


def test_a_card_that_is_slow_is_silenced_by_its_own_cause(path: Path) -> None:
    speeds = [50.0] * 8 + [40.0, 40.0]
    with History(path) as history:
        for night, speed in enumerate(speeds):
            values = {
                f"gpu.GPU-{card}.toolkit.12.3.tflops": number
                for card, number in (("a", speed), ("b", 50.0 if night < 9 else 40.0))
            }
            history.record(
                session(night, host("gpu01", x="PASS")),
                measure=lambda *_, values=values: values,
            )
        (change,) = history.changes()["changes"]
        causes = silences.found_causes(history.changes(), {}, "gpu01", "gpu.throughput")
        assert [row["verdict"] for row in causes] == ["SLOW"]
        assert change["known_as"] == causes[0]["cause"]
        silences.store(history, silence("gpu.throughput", f"SLOW: {causes[0]['cause']}"))
        (change,) = history.changes()["changes"]
        assert change["silenced"] == SILENCED
        # The next night the other card is slow as well.
        history.record(
            session(10, host("gpu01", x="PASS")),
            measure=measured(
                **{f"gpu__GPU-{card}__toolkit__12__3__tflops": 40.0 for card in ("a", "b")}
            ),
        )
        changes = history.changes()
    rows = {row["cause"].split()[0]: "silenced" in row for row in changes["standing"]}
    assert rows == {"GPU-a": True, "GPU-b": False}
    assert ["silenced" in it for it in changes["changes"]] == [False]


def test_a_damaged_silence_silences_nothing(path: Path) -> None:
    with nights(path, "PASS", FAILS) as history:
        for name, value in (("gpu.count", "{"), ("gpu.smi", "[1]"), ("gpu.mig", '{"host": 3}')):
            history.flag("gpu01", f"{silences.FLAG}{name}", value)
        assert silences.read(history) == {}
        assert reported(history) == [("failure", False)]


def test_a_silence_survives_the_nights_and_goes_long_after_its_end(path: Path) -> None:
    with nights(path, *[FAILS] * 3, silent=silence(until="2026-11-02")) as history:
        history.prune(keep_days=5)
        assert len(silences.read(history)) == 1
        for night in range(3, 12):
            history.record(session(night, host("gpu01", gpu__count=FAILS)))
        history.prune(keep_days=5)
        assert silences.read(history) == {}


# -- what follows from it --------------------------------------------------------------------------


def test_a_night_with_nothing_but_silenced_changes_needs_no_notification(path: Path) -> None:
    with nights(path, "PASS", FAILS) as history:
        changes = history.changes()
        assert not notifications.has_content(changes)
        history.record(session(2, host("gpu01", gpu__count=FAILS, host__disk="FAIL: full")))
        message = notifications.nightly_message(history.changes(), "link")
    assert notifications.has_content(history.changes())
    assert message.subject == "gpufleet: gpu01 fails host.disk; 0 of 1 healthy"
    assert [line.text for line in message.sections[message_forms.NOW]] == ["host.disk fails: full."]
    [silenced] = message.sections[message_forms.SILENCED]
    assert silenced.text.startswith("gpu.count is silenced until ")
    # Programs get all of it.
    rows = {row["check"]: row.get("silenced") for row in message.document["standing"]}
    assert rows == {"gpu.count": SILENCED, "host.disk": None}


def test_a_silenced_change_is_in_no_line_of_a_notification(path: Path) -> None:
    with nights(path, "PASS") as history:
        history.record(session(1, host("gpu01", gpu__count=FAILS, host__disk="FAIL: full")))
        message = notifications.nightly_message(history.changes(), "")
        text = message_forms.as_text(message)
    assert "host.disk fails" in text and "PCI bus" not in text


def test_a_silenced_check_drains_no_host_until_its_silence_ends(path: Path) -> None:
    with nights(path, *[FAILS] * 4) as history:
        window = history.window(history.nights())
        assert drain.worst_first(window, 2) == []
        silences.store(history, silence(until="2026-11-03"))
        window = history.window(history.nights())
        assert drain.worst_first(window, 2) == [("gpu01", 4, ["gpu.count"])]
        silences.store(history, silence())
        history.record(session(4, host("gpu01", gpu__count=OTHER)))
        window = history.window(history.nights())
        assert drain.worst_first(window, 2) == [("gpu01", 5, ["gpu.count"])]


def test_metrics_name_when_a_silence_ends_and_keep_the_verdict() -> None:
    end = silences.end_of(SILENCED)
    found = metrics.text(
        metrics.Run(
            0,
            0,
            0,
            hosts=judged().document["hosts"],
            silenced={("gpu01", "gpu.count"): end},
        )
    )
    values = {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in found.splitlines())
        if "gpu01" in name
    }
    check, host_end = (
        f"gpufleet_{what}_silenced_until_timestamp_seconds" for what in ("check", "host")
    )
    assert values == {
        'gpufleet_host_healthy{host="gpu01"}': 0,
        'gpufleet_check_failed{check="gpu.count",host="gpu01"}': 1,
        'gpufleet_check_failed{check="gpu.smi",host="gpu01"}': 1,
        'gpufleet_check_explained{by="gpu.count",check="gpu.smi",host="gpu01"}': 1,
        f'{check}{{check="gpu.count",host="gpu01"}}': end,
        f'{host_end}{{host="gpu01"}}': end,
    }
    sounding = metrics.text(
        metrics.Run(0, 0, 0, hosts=judged(host__disk="FAIL: full").document["hosts"])
    )
    assert "gpufleet_host_silenced_until_timestamp_seconds{" not in sounding


def test_reports_show_the_silence_last_and_apart(tmp_path: Path) -> None:
    found = judged(host__disk="INCONCLUSIVE: unread")
    issues = summary.issues(found)
    assert [(issue.cause, issue.silenced) for issue in issues] == [
        ("unread", ""),
        (CAUSE, "until 2026-11-20 by ann: card ordered"),
    ]
    page = report.render_page(found)
    assert "Silenced until 2026-11-20 by ann: card ordered" in page
    assert summary.headline(found) == "1 of 2 hosts healthy; 1 failed."
    junit.write(tmp_path / "junit.xml", found)
    text = (tmp_path / "junit.xml").read_text()
    assert 'failures="3"' in text
    assert "silenced: until 2026-11-20 by ann: card ordered" in text


def test_hosts_with_and_without_a_silence_are_two_issues() -> None:
    both = session(1, host("gpu01", gpu__count=FAILS), host("gpu02", gpu__count=FAILS))
    found = silences.applied(both, {("gpu01", "gpu.count"): silence()})
    assert [(issue.hosts, bool(issue.silenced)) for issue in summary.issues(found)] == [
        (("gpu02",), False),
        (("gpu01",), True),
    ]


def test_a_bundle_to_send_names_nobody(tmp_path: Path) -> None:
    found = silences.applied(
        session(1, host("gpu01")),
        {("gpu01", "host.reachable"): silence("host.reachable", "UNREACHABLE: No route")},
    )
    assert silences.silenced_checks(found.document)
    report.write_bundles(tmp_path / "saved", found)
    texts = [each.read_text() for each in (tmp_path / "saved").rglob("*") if each.is_file()]
    assert texts and not any("card ordered" in text for text in texts)


def test_a_slow_card_that_is_not_silenced_keeps_the_alert_of_its_host(path: Path) -> None:
    run = NightlyRun.__new__(NightlyRun)
    run.session = judged()
    row: Any = {"host": "gpu01", "verdict": "SLOW", "cause": "x", "remedy": "", "strikes": 2}
    quiet = {**row, "check": "gpu.throughput", "silenced": SILENCED}
    run.changes = {"standing": [quiet]}  # type: ignore[typeddict-item]
    assert set(run._silenced()) == {
        ("gpu01", "gpu.count"),
        ("gpu01", "gpu.smi"),
        ("gpu01", "gpu.throughput"),
    }
    run.changes = {"standing": [quiet, {**row, "check": "gpu.throughput"}]}  # type: ignore[typeddict-item]
    assert ("gpu01", "gpu.throughput") not in run._silenced()


# -- the file --------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from gpufleet.watch import silences
from gpufleet.watch.history import History
from tests.support.silences import silence

with History(Path(sys.argv[1])) as history:
    # Opening the file commits too: its migrations.
    base = history._writer
    def heard(statement):
        if statement.startswith(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
    base.set_trace_callback(heard)
    silences.store(history, silence(until="2026-12-24"))
"""


@pytest.mark.parametrize("where", ["DELETE FROM flags", "INSERT INTO flags", "COMMIT"])
def test_a_kill_while_it_is_set_leaves_the_former_silence(path: Path, where: str) -> None:
    with nights(path, "PASS", FAILS):
        pass
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), where],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=deadline(120),
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with History(path) as history:
        assert silences.read(history) == {("gpu01", "gpu.count"): silence()}
        silences.store(history, silence(until="2026-12-24"))
        assert silences.read(history)["gpu01", "gpu.count"]["until"] == "2026-12-24"


def test_a_silence_waits_for_a_run_that_is_being_recorded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpufleet.watch.database.BUSY_TIMEOUT_S", 0.1)
    with nights(path, FAILS) as first, History(path) as second:
        first._writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(HistoryError, match="Another process is writing"):
            silences.end(second, silence(), at(1))
        first._writer.execute("COMMIT")
        silences.end(second, silence(), at(1))
        assert silences.read(second) == {("gpu01", "gpu.count"): silence(until=at(1))}


# -- a nightly run ---------------------------------------------------------------------------------


def test_a_nightly_run_with_a_silenced_host_is_quiet_and_shows_it(
    configured: Callable[..., Path],
    listener: Listener,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "metrics").mkdir()
    path = configured(webhooks=[{"url": listener.url}], textfile_dir=str(tmp_path / "metrics"))
    command = ["nightly", "--config", str(path)]
    assert main(command) == 1
    database = str(path.parent / "state" / "history.sqlite")
    words = ["silence", "gone", "host.reachable", "--database", database]
    until = f"{datetime.now(UTC) + timedelta(days=30):%Y-%m-%d}"
    assert main([*words, "--until", until, "--why", "it is being moved", "--who", "ann"]) == 0
    listener.heard.clear()
    capsys.readouterr()
    assert main(command) == 0
    assert listener.heard == []
    assert "Silenced: 1 check." in capsys.readouterr().err
    text = (tmp_path / "metrics" / "gpufleet.prom").read_text()
    assert 'gpufleet_host_silenced_until_timestamp_seconds{host="gone"}' in text
    assert 'gpufleet_host_healthy{host="gone"} 0.0' in text
    page = (path.parent / "reports" / "latest" / "report.html").read_text()
    assert f"Silenced until {until} by ann: it is being moved" in page
    assert main([*command, "--status"]) == 0
    assert "silenced: 1 check" in capsys.readouterr().out


def test_a_window_without_silences_is_compared_as_ever() -> None:
    window = drift.Window([at(0), at(1)], {"gpu01": "PP"})
    assert window.silenced == {} and drift.document(window)["changes"] == []
