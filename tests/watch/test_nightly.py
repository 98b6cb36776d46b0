"""The nightly as a command: its files, its notifications, and its errors."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpufleet.cli.main import main
from gpufleet.fleet.inventory import InventoryHost
from gpufleet.fleet.options import ProbeOptions
from gpufleet.fleet.probing import probe_config
from gpufleet.fleet.session import Session
from gpufleet.watch import config, state
from gpufleet.watch.config import Settings
from gpufleet.watch.drain import OutOfService
from gpufleet.watch.history import History
from gpufleet.watch.run import configured_hosts, probe, scrub
from tests.support.machine import deadline
from tests.support.receivers import Listener, Post

ROOT = Path(__file__).resolve().parents[2]
Configured = Callable[..., Path]

# A host that lets us in and never answers: its probe lasts until somebody ends it.
HANGING = (
    "gpu_hosts: {hosts: {slow: {ansible_connection: local, ansible_become: false,"
    " ansible_python_interpreter: %s, gpu_expect: {count: 0}}}}"
)


def command(path: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "gpufleet", "nightly", "--config", str(path), *words]


def nightly(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A run in this process, which has read its libraries already."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["nightly", "--config", str(path), *words])
    return subprocess.CompletedProcess([], status, out.getvalue(), err.getvalue())


def heartbeat(path: Path) -> dict[str, Any]:
    return dict(json.loads((path.parent / "state" / "heartbeat.json").read_text()))


def figures(path: Path) -> dict[str, float]:
    """The metrics, by name and labels."""
    lines = (path.parent / "metrics" / "gpufleet.prom").read_text().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


@pytest.fixture
def hook(listener: Listener, tmp_path: Path) -> dict[str, Any]:
    """Settings that notify the listener, and write metrics."""
    (tmp_path / "metrics").mkdir()
    return {
        "webhooks": [{"url": listener.url}],
        "textfile_dir": str(tmp_path / "metrics"),
        "reports_url": "https://gpu.example.org/reports/",
    }


def nights(path: Path) -> int:
    with History(path.parent / "state" / "history.sqlite") as history:
        return len(history.nights())


def test_the_first_run_is_recorded_and_notified_and_an_unchanged_one_is_quiet(
    configured: Configured, hook: dict[str, Any], listener: Listener
) -> None:
    path = configured(**hook, heartbeat_url=f"{listener.url}/alive")
    done = nightly(path)
    assert done.returncode == 1, done.stderr
    # The first run is always notified; then the heartbeat URL is called.
    reported, alive = listener.heard
    assert (reported[0], reported[2]["event"], reported[2]["since"]) == ("POST", "night", None)
    assert reported[2]["hosts"]["UNREACHABLE"] == 1
    assert alive[0] == "GET"
    name = reported[2]["report"].removeprefix("https://gpu.example.org/reports/")
    for file in (name, name.replace("report.html", "junit.xml")):
        assert (path.parent / "reports" / file).exists()
    assert heartbeat(path)["troubles"] == {}
    found = figures(path)
    assert found['gpufleet_host_healthy{host="gone"}'] == 0
    # No state was recorded of it.
    assert found['gpufleet_host_state{host="gone",state="production"}'] == 1
    assert (
        found["gpufleet_last_success_timestamp_seconds"]
        == (found["gpufleet_last_run_timestamp_seconds"])
    )
    assert nightly(path).returncode == 1
    assert [(method, body) for method, _, body in listener.heard[2:]] == [("GET", None)]
    assert nights(path) == 2
    assert "s3cret" not in done.stderr + done.stdout
    assert "s3cret" not in (path.parent / "state" / "delivered.json").read_text()


def test_the_history_keeps_the_budget_of_false_alarms(configured: Configured) -> None:
    """A later query of the history is judged as the nightly run was."""
    path = configured(alerts_per_month=4)
    with History(path.parent / "state" / "history.sqlite") as history:
        assert nightly(path).returncode == 1
        assert history.alerts_per_month == 4


def test_a_failed_notification_is_sent_by_the_next_run(
    configured: Configured, hook: dict[str, Any], listener: Listener
) -> None:
    listener.answers = [404, 404]
    path = configured(**hook)
    done = nightly(path)
    assert done.returncode == heartbeat(path)["status"] == 5
    assert "webhook at 127.0.0.1: it answered 404" in done.stderr
    assert "tell" in heartbeat(path)["troubles"]
    found = figures(path)
    assert found['gpufleet_run_trouble{step="tell"}'] == 1
    assert found["gpufleet_last_success_timestamp_seconds"] == 0
    missed = listener.heard[0][2]["night"]
    listener.heard.clear()
    nightly(path)
    assert [(body["event"], body["night"]) for _, _, body in listener.heard] == [("night", missed)]
    listener.heard.clear()
    nightly(path)
    assert listener.heard == []


def test_a_refused_recipient_does_not_affect_the_others(configured: Configured, post: Post) -> None:
    post.refused.add("alice@example.org")
    path = configured(
        mail={
            "host": "127.0.0.1",
            "port": post.port,
            "tls": "none",
            "from": "gpufleet@example.org",
            "to": ["ops@example.org", "alice@example.org"],
        }
    )
    assert nightly(path).returncode == 5
    assert heartbeat(path)["troubles"] == {
        "tell": "mail by 127.0.0.1: it refused alice@example.org"
    }
    first = "Subject: gpufleet: gone unreachable; first night; 0 of 1 healthy"
    assert post.heard == [first, "Subject: gpufleet: the nightly run failed"]
    nightly(path)
    assert post.heard[2:] == []


def test_a_message_that_is_refused_twice_is_dropped_and_the_current_comes_first(
    configured: Configured, hook: dict[str, Any], listener: Listener
) -> None:
    path = configured(**hook)
    listener.answers = [413, 200]
    nightly(path)
    (path.parent / "hosts.yml").write_text(
        path.parent.joinpath("hosts.yml").read_text().replace("gone:", "other:")
    )
    listener.heard.clear()
    listener.answers = [200, 413]
    nightly(path)
    reported = [body for _, _, body in listener.heard if body["event"] == "night"]
    assert [body["since"] is None for body in reported] == [False, True]
    listener.heard.clear()
    nightly(path)
    assert listener.heard == []


def test_metrics_and_heartbeat_are_written_before_notifications(
    configured: Configured, hook: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configured(**hook)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpufleet.watch.channels.deliver", killed)
    assert nightly(path).returncode == 130
    assert figures(path)['gpufleet_host_healthy{host="gone"}'] == 0
    assert heartbeat(path)["troubles"] == {}


def test_a_webhook_that_speaks_no_http_does_not_prevent_the_metrics(
    configured: Configured, hook: dict[str, Any], post: Post, listener: Listener
) -> None:
    hook["webhooks"].insert(0, {"url": f"http://127.0.0.1:{post.port}/s3cret"})
    path = configured(**hook)
    done = nightly(path)
    assert "not valid HTTP (BadStatusLine)" in done.stderr and "s3cret" not in done.stderr
    assert [body["event"] for _, _, body in listener.heard] == ["night", "failure"]
    assert figures(path)['gpufleet_run_trouble{step="tell"}'] == 1
    assert "tell" in heartbeat(path)["troubles"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"inventory": ["/nowhere"]}, "The inventory does not exist."),
        ({"limit": "nobody"}, "No host matches"),
        ({"fanuot": 3}, "Did you mean 'fanout'?"),
    ],
)
def test_a_run_that_cannot_start_notifies_with_the_settings_that_are_valid(
    configured: Configured,
    hook: dict[str, Any],
    listener: Listener,
    wrong: dict[str, Any],
    words: str,
) -> None:
    done = nightly(configured(**{**hook, **wrong}))
    assert done.returncode == 4
    assert words in done.stderr and "Traceback" not in done.stderr
    [(_, _, body)] = listener.heard
    assert (body["event"], body["judged"]) == ("failure", False)
    assert words in " ".join(body["errors"])


def test_a_run_that_cannot_start_moves_the_last_run_and_not_the_last_success(
    configured: Configured, hook: dict[str, Any]
) -> None:
    nightly(configured(**hook))
    path = configured(**hook, limit="nobody")
    before = figures(path)
    assert nightly(path).returncode == 4
    after = figures(path)
    run, success = (f"gpufleet_last_{what}_timestamp_seconds" for what in ("run", "success"))
    assert after[run] > before[run]
    assert after[success] == before[success]
    assert not [name for name in after if name.startswith(("gpufleet_host_", "gpufleet_hosts"))]


def test_a_history_that_cannot_be_written_is_notified_with_the_verdicts(
    configured: Configured,
    hook: dict[str, Any],
    listener: Listener,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = configured(**hook)

    def refuse(*_: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("gpufleet.watch.history.write_run", refuse)
    done = nightly(path)
    assert done.returncode == 5
    assert "history: " in done.stderr and "Traceback" not in done.stderr
    [(_, _, body)] = listener.heard
    assert (body["event"], body["judged"]) == ("failure", True)
    assert figures(path)['gpufleet_run_trouble{step="history"}'] == 1
    assert (path.parent / "reports" / "latest" / "report.html").exists()


def test_the_unhealthy_hosts_are_named_where_the_history_cannot_name_what_changed(
    configured: Configured, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("gpufleet.watch.history.write_run", refuse)
    nightly(configured(webhooks=[{"url": listener.url, "form": "slack"}]))
    [(_, _, body)] = listener.heard
    assert "1 unreachable. Not healthy: gone." in body["text"]


@pytest.fixture
def hanging(configured: Configured, hook: dict[str, Any], tmp_path: Path) -> Path:
    """A configuration whose look does not end."""
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\ntouch {tmp_path}/looking\nexec sleep 30\n")
    stand_in.chmod(0o755)
    path = configured(**hook)
    nightly(path)
    (tmp_path / "hosts.yml").write_text(HANGING % stand_in)
    return path


def run_in_progress(path: Path) -> subprocess.Popen[str]:
    """A run that is in the middle of its look."""
    running = subprocess.Popen(
        command(path), cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    ends = time.monotonic() + deadline(60)
    while not (path.parent / "looking").exists():
        assert running.poll() is None and time.monotonic() < ends
        time.sleep(0.02)
    return running


def test_a_stopped_run_reports_no_host_as_healthy_and_notifies(
    hanging: Path, listener: Listener
) -> None:
    listener.heard.clear()
    running = run_in_progress(hanging)
    running.send_signal(signal.SIGTERM)
    _, output = running.communicate(timeout=deadline(60))
    assert running.returncode == 5
    assert "The run was stopped before its end (SIGTERM)" in output
    [(_, _, body)] = listener.heard
    assert (body["event"], body["judged"]) == ("failure", False)
    assert nights(hanging) == 1
    assert not [name for name in figures(hanging) if name.startswith("gpufleet_host_healthy")]


def test_one_runs_at_a_time_and_after_a_kill_the_next_does_all_of_it(hanging: Path) -> None:
    running = run_in_progress(hanging)
    other = nightly(hanging)
    assert (other.returncode, "Another nightly run is in progress." in other.stderr) == (4, True)
    before = heartbeat(hanging)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    assert (nights(hanging), heartbeat(hanging)) == (1, before)
    (hanging.parent / "hosts.yml").write_text(
        "gpu_hosts: {hosts: {gone: {ansible_host: 127.0.0.1, ansible_port: 1}}}"
    )
    assert nightly(hanging).returncode == 1
    assert nights(hanging) == 2
    assert heartbeat(hanging)["troubles"] == {}


def test_status_says_when_it_has_not_run(configured: Configured, hook: dict[str, Any]) -> None:
    path = configured(**hook)
    never = nightly(path, "--status")
    assert (never.returncode, "No nightly run is recorded" in never.stderr) == (1, True)
    nightly(path)
    assert nightly(path, "--status").returncode == 0
    last = heartbeat(path)
    (path.parent / "state" / "heartbeat.json").write_text(
        json.dumps({**last, "last_run": last["last_run"] - 29 * 3600})
    )
    late = nightly(path, "--status")
    assert late.returncode == 1
    assert "one is expected every 28 h" in late.stdout


def test_status_fails_while_the_last_run_is_dated_in_the_future(
    configured: Configured, hook: dict[str, Any]
) -> None:
    path = configured(**hook)
    nightly(path)
    file = path.parent / "state" / "heartbeat.json"
    times = {"finished": "2038-01-19T03:14:07Z", "last_run": 2**31, "last_success": 2**31}
    file.write_text(json.dumps({**heartbeat(path), **times}))
    wrong = nightly(path, "--status")
    assert wrong.returncode == 1
    assert "The last run is dated 2038-01-19T03:14:07Z, which is in the future" in wrong.stderr
    assert "h ago" not in wrong.stdout
    # A night that fails does not take the wrong time for its last success: alerts compare with it.
    (path.parent / "state" / "history.sqlite").write_bytes(b"")
    assert nightly(path).returncode == 5
    assert heartbeat(path)["last_success"] == 0
    assert figures(path)["gpufleet_last_success_timestamp_seconds"] == 0


def test_check_reads_everything_and_runs_nothing(
    configured: Configured, hook: dict[str, Any], listener: Listener
) -> None:
    path = configured(**hook)
    done = nightly(path, "--check")
    assert (done.returncode, done.stdout) == (
        0,
        f"{path}: 1 hosts, 1 channels. If every host hangs, a run takes 0.1 h.\n",
    )
    # Thirty-two at the same time, 300 s each.
    (path.parent / "hosts.yml").write_text(
        "gpu_hosts: {hosts: {'gpu[001:600]': {ansible_host: 127.0.0.1}}}"
    )
    assert (
        "600 hosts, 1 channels. If every host hangs, a run takes 1.6 h."
        in nightly(path, "--check").stdout
    )
    assert nightly(configured(**hook, limit="nobody"), "--check").returncode == 4
    assert listener.heard == [] and not (path.parent / "state").exists()


def test_results_that_the_hosts_delivered_are_a_run_too(
    configured: Configured, hook: dict[str, Any], listener: Listener, tmp_path: Path
) -> None:
    path = configured(**hook, pulled=str(tmp_path / "pulled"))
    refusal = nightly(path, "--check").stderr
    assert f"pulled: {tmp_path}/pulled: It does not exist, or cannot be read" in refusal
    assert nightly(path).returncode == 4
    (tmp_path / "pulled").mkdir()
    assert (
        f"The hosts' own results are read from {tmp_path}/pulled."
        in nightly(path, "--check").stdout
    )
    done = nightly(path)
    assert done.returncode == 1, done.stderr
    event = listener.heard[-1][2]
    assert event["hosts"]["UNREACHABLE"] == 1
    assert "has delivered no result" in json.dumps(event["standing"])


def test_under_slurm_the_probe_is_a_job_step(configured: Configured) -> None:
    settings = config.read(configured(launcher="slurm", deep=True))
    (host,) = configured_hosts(settings)
    assert host.connection.launcher[0] == "srun"
    # The minutes of `deep` are added to a host's deadline.
    assert "--time=12" in host.connection.launcher


def test_check_refuses_a_directory_that_it_cannot_write_to(
    configured: Configured, hook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda place, how: place != tmp_path / "metrics")
    done = nightly(configured(**hook), "--check")
    assert done.returncode == 4
    assert f"textfile_dir: {tmp_path}/metrics" in done.stderr


def test_a_test_message_reaches_everyone(
    configured: Configured, hook: dict[str, Any], listener: Listener
) -> None:
    assert nightly(configured(**hook), "--test-message").returncode == 0
    assert [body["event"] for _, _, body in listener.heard] == ["test"]
    listener.answers = [404]
    assert nightly(configured(**hook), "--test-message").returncode == 1


def test_a_test_message_without_channels_is_refused(configured: Configured) -> None:
    done = nightly(configured(), "--test-message")
    assert done.returncode == 4
    assert "No channel is configured" in done.stderr


def test_the_page_alone_is_published(
    configured: Configured, hook: dict[str, Any], tmp_path: Path
) -> None:
    published = tmp_path / "published"
    published.mkdir()
    (published / "2020-01-01T03-00-00Z").mkdir()
    path = configured(**hook, published_dir=str(published))
    assert nightly(path).returncode == 1
    report = next(path.parent.glob("reports/2*Z"))
    assert sorted(str(each.relative_to(published)) for each in published.rglob("*")) == [
        report.name,
        f"{report.name}/report.html",
        "latest",
    ]
    page = published / "latest" / "report.html"
    assert page.read_text() == (report / "report.html").read_text()
    assert page.stat().st_mode & 0o777 == 0o640
    # Snapshots and plans remain with the nightly.
    assert (report / "plans").is_dir()
    refused = nightly(configured(**hook, published_dir=str(path.parent / "reports")), "--check")
    assert refused.returncode == 4 and "must not read" in refused.stderr


def test_old_reports_are_removed_and_nothing_else_is(
    configured: Configured, hook: dict[str, Any]
) -> None:
    path = configured(**hook)
    reports = path.parent / "reports"
    for name in ("2020-01-01T03-00-00Z", "2020-01-01T03-00-00Z-1", "2020-notes"):
        (reports / name).mkdir(parents=True)
    nightly(path)
    assert [each.name for each in reports.glob("2020*")] == ["2020-notes"]


def test_a_probe_is_given_where_the_last_night_stopped_to_read(
    configured: Configured, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = config.read(configured(scrub_days=7))
    hosts = configured_hosts(settings)
    first = {"gone": {"days": 7, "seconds": 60, "components": []}}
    assert scrub(settings, hosts) == first
    state = {
        "component": "toolkit-11.8",
        "installed": "then",
        "files": 1,
        "bytes": 2,
        "first": 3,
        "begun": 4,
        "read": 5,
        "cursor": "a",
        "complete": True,
        "slow": [],
        "bad": [],
    }
    with History(settings.state_dir / "history.sqlite") as history:
        history.flag("gone", "scrub", json.dumps([state]))
    given = scrub(settings, hosts)
    assert given["gone"]["components"] == [state]
    options = ProbeOptions(scrub=given)
    assert probe_config(hosts[0], options)["scrub"] == given["gone"]
    assert "scrub" not in probe_config(hosts[0], ProbeOptions())
    assert probe_config(hosts[0], ProbeOptions(contents=True))["contents"] is True
    # A history that cannot be read is a failed step of its own, and hides no host.
    (settings.state_dir / "history.sqlite").write_text("no history")
    assert scrub(settings, hosts) == first
    assert "read from their beginning" in capsys.readouterr().err
    assert scrub(config.read(configured(scrub_days=0)), hosts) == {}


def test_a_state_directory_that_cannot_be_used_is_notified(
    configured: Configured, hook: dict[str, Any], listener: Listener
) -> None:
    path = configured(**hook)
    (path.parent / "state").write_text("no directory")
    done = nightly(path)
    assert done.returncode == 4
    [(_, _, body)] = listener.heard
    assert body["event"] == "failure"
    assert "state_dir" in " ".join(body["errors"])


def test_a_run_that_hangs_since_the_night_before_is_notified(
    configured: Configured, hook: dict[str, Any], listener: Listener
) -> None:
    path = configured(**hook)
    nightly(path)
    listener.heard.clear()
    with state.exclusive(path.parent / "state"):
        assert nightly(path).returncode == 4
        assert listener.heard == []
        last = heartbeat(path)
        state.write(path.parent / "state" / "heartbeat.json", {**last, "last_run": 1.0})
        assert nightly(path).returncode == 4
    [(_, _, body)] = listener.heard
    assert "Another nightly run is in progress" in " ".join(body["errors"])


def test_a_night_that_is_dated_before_others_says_so_and_drains_nobody(
    configured: Configured, hook: dict[str, Any], listener: Listener, monkeypatch: Any
) -> None:
    """The results of others would be taken for tonight's."""
    path = configured(**hook, drain={"hook": "slurm"})
    monkeypatch.setattr("gpufleet.watch.drain.after_night", lambda *_: OutOfService([], [], []))
    assert nightly(path).returncode == 1
    listener.heard.clear()

    def long_ago(settings: Settings, hosts: list[InventoryHost]) -> Session:
        session = probe(settings, hosts)
        session.started = session.finished = "2001-01-01T00:00:00Z"
        return session

    monkeypatch.setattr("gpufleet.watch.run.probe", long_ago)
    monkeypatch.setattr("gpufleet.watch.drain.after_night", None)
    assert nightly(path).returncode == 5
    assert "before the run at" in heartbeat(path)["troubles"]["clock"]
    assert [body["event"] for _, _, body in listener.heard][-1] == "failure"
