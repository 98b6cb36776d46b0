"""A probe lies within its run by the control machine's clock; else the host's clock is wrong."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.cli.main import main
from gpufleet.documents import clock
from gpufleet.documents.text import brief
from gpufleet.fleet import collected
from gpufleet.fleet.inventory import Connection, InventoryHost
from gpufleet.judge import judge
from tests.support.commission_site import Site
from tests.support.healthy_host import data, document
from tests.support.recorded_hosts import RecordedHosts

DAY = 86400
BEGIN = datetime(2026, 11, 20, 12, tzinfo=UTC)
# How far clocks are ahead that are right, and those that are wrong.
RIGHT = (-280, -60, -1, 0, 1, 120, 280)
WRONG = {
    -25 * 365 * DAY: "9125 days behind",
    -3 * DAY: "3 days behind",
    -2 * 3600: "2 h behind",
    -400: "6.7 min behind",
    420: "7 min ahead of",
    5 * 3600: "5 h ahead of",
    12 * 365 * DAY: "4380 days ahead of",
}


@pytest.mark.parametrize("run_s", [0, 5, 300, 3600])
@pytest.mark.parametrize("ahead_s", [*RIGHT, *WRONG])
def test_a_clock_is_off_by_what_the_run_does_not_explain(run_s: int, ahead_s: int) -> None:
    """However long a slow probe takes, and wherever in the run it was."""
    ahead, ran = timedelta(seconds=ahead_s), timedelta(seconds=run_s)
    off = clock.offset([BEGIN + ahead, BEGIN + ran + ahead], BEGIN, BEGIN + ran)
    assert off == (ahead if ahead_s in WRONG else timedelta(0))
    late = clock.offset([BEGIN + ran + ahead], BEGIN, BEGIN + ran)
    assert ahead_s in WRONG or not late


@pytest.mark.parametrize("step_s", [-7200, -400, 0, 400, 7200])
def test_a_step_of_this_machines_clock_blames_no_host(step_s: int) -> None:
    """The host is right by the clock before the step, or by the one after it."""
    now, ran = datetime.now(UTC), timedelta(seconds=60)
    begin = clock.Moment()
    sent = clock.Moment(now - ran - timedelta(seconds=step_s), begin.uptime_s - 60)
    earliest, latest = sent.until_now()
    assert earliest <= now - ran + timedelta(seconds=1)
    assert not clock.offset([now - ran, now], earliest, latest)
    assert not clock.offset([sent.clock, sent.clock + ran], earliest, latest)


def verified(place: Path, hosts: RecordedHosts, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    main(["verify", "-i", str(hosts.inventory), "--json", "--report", str(place)])
    return json.loads(capsys.readouterr().out)["hosts"]


def probe_check(result: Any) -> dict[str, Any]:
    return next(check for check in result["checks"] if check["id"] == "host.probe")


def test_a_live_probe_tells_a_wrong_clock_and_writes_no_time_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offsets = [*RIGHT[::3], *WRONG]
    hosts = RecordedHosts(tmp_path / "hosts", [f"gpu{at:02}" for at in range(len(offsets))], 1)
    for name, ahead_s in zip(hosts.names, offsets, strict=True):
        hosts.change(name, lambda found, ahead_s=ahead_s: found.update(clock_is_ahead_s=ahead_s))
    before = datetime.now(UTC) - timedelta(seconds=1)
    found = verified(tmp_path / "report", hosts, capsys)
    kept = {
        path.stem: json.loads(path.read_text())
        for path in (tmp_path / "report").rglob("snapshots/*.json")
    }
    assert kept.keys() == set(hosts.names)
    for name, ahead_s in zip(hosts.names, offsets, strict=True):
        check = probe_check(found[name])
        assert before <= clock.read(kept[name]["finished"]) or ahead_s in RIGHT
        assert clock.read(kept[name]["finished"]) <= datetime.now(UTC) + clock.TOLERANCE
        if ahead_s in RIGHT:
            assert (found[name]["verdict"], check["verdict"]) == ("PASS", "PASS")
            assert "clock_offset_s" not in kept[name]
        else:
            assert check["verdict"] == found[name]["verdict"] == "INCONCLUSIVE"
            unit, side = WRONG[ahead_s].split(" ", 2)[1:]
            assert re.search(rf"clock is [\d.]+ {unit} {side}", check["cause"])
            assert "timedatectl" in check["remedy"]
            assert abs(kept[name]["clock_offset_s"] - ahead_s) < 120
            wrong = [each for each in found[name]["checks"] if each["verdict"] == "INCONCLUSIVE"]
            assert [each["id"] for each in wrong if "explained_by" not in each] == ["host.probe"]


@pytest.mark.parametrize(
    "times",
    [
        {"started": None},
        {"finished": None},
        {"started": "yesterday"},
        {"finished": "2026-11-20 12:00:00"},
        {"started": "2026-13-40T99:00:00Z"},
    ],
)
def test_a_snapshot_without_times_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], times: dict[str, str | None]
) -> None:
    hosts = RecordedHosts(tmp_path / "hosts", ["gpu01"], 1)

    def change(found: Any) -> None:
        found["keeps_its_times"] = True
        found.update({key: value for key, value in times.items() if value})
        for key, value in times.items():
            if value is None:
                del found[key]

    hosts.change("gpu01", change)
    found = verified(tmp_path / "report", hosts, capsys)["gpu01"]
    assert found["verdict"] == "INCONCLUSIVE"
    assert "snapshot.started and snapshot.finished should be times" in probe_check(found)["cause"]


@pytest.mark.parametrize("claimed", [3600.0, -1e300, 1e-9, 0.0, 86400])
def test_what_a_host_says_of_its_own_clock_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], claimed: float
) -> None:
    hosts = RecordedHosts(tmp_path / "hosts", ["gpu01"], 1)
    hosts.change("gpu01", lambda found: found.update(clock_offset_s=claimed))
    assert verified(tmp_path / "report", hosts, capsys)["gpu01"]["verdict"] == "PASS"


@pytest.mark.parametrize("off_s", [-1e300, -3600.0, -400.0, 400.0, 9e5])
def test_a_saved_snapshot_keeps_what_its_run_found(off_s: float) -> None:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    snapshot["started"] = snapshot["finished"] = "2001-01-01T00:00:00Z"
    assert judge.judge(plan, snapshot)["verdict"] == "PASS"
    snapshot["clock_offset_s"] = off_s
    result = judge.judge(plan, snapshot)
    side = "behind" if off_s < 0 else "ahead of"
    assert side in probe_check(result)["cause"]


def test_the_times_of_a_wrong_clock_tell_nothing_of_what_was_read() -> None:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    state = {
        **{"component": "toolkit-11.8", "installed": "2026-01-01T00:00:00Z", "files": 1},
        **{"bytes": 1, "first": 1, "begun": 1, "read": 978307200, "cursor": "", "complete": True},
        **{"slow": [], "bad": []},
    }
    data(snapshot, "receipts")["scrub"] = {
        **{"days": 7, "seconds": 60, "at": 978307200, "error": None, "components": [state]},
    }
    snapshot["clock_offset_s"] = -3600.0
    result = judge.judge(plan, snapshot)
    contents = next(check for check in result["checks"] if check["id"] == "install.contents")
    assert contents["verdict"] == "INCONCLUSIVE"
    assert contents["explained_by"] == "host.probe"
    assert "2001" not in json.dumps(contents)


@pytest.mark.parametrize("ahead_s", [s for s in WRONG if s > 0])
@pytest.mark.parametrize("sent", ["snapshot", "reason"])
def test_a_result_of_pull_mode_from_the_future_is_a_wrong_clock(
    tmp_path: Path, ahead_s: int, sent: str
) -> None:
    plan, snapshot = document("plan.json"), document("snapshot.json")
    then = f"{datetime.now(UTC) + timedelta(seconds=ahead_s):{clock.FORM}}"
    found = {
        **{"schema": 1, "host": "gpu01", "looked": then, "plan": plan},
        "snapshot": {**snapshot, "host": "gpu01", "finished": then} if sent == "snapshot" else None,
        "result": judge.unreachable("hung", "look"),
    }
    (tmp_path / "gpu01.json").write_text(json.dumps(found))
    host = InventoryHost("gpu01", {"gpu_expect": {"count": 1}}, Connection("gpu01"))
    [run] = collected.judge_results(tmp_path, [host], timedelta(hours=26)).hosts
    check = probe_check(run.result)
    assert check["verdict"] == run.result["verdict"] == "INCONCLUSIVE", brief(run.result)
    unit, side = WRONG[ahead_s].split(" ", 2)[1:]
    assert re.search(rf"The host's clock is [\d.]+ {unit} {side} the control", check["cause"])
    assert run.snapshot is None


def test_a_host_whose_clock_is_wrong_is_not_certified(tmp_path: Path) -> None:
    site = Site(tmp_path, ["gpu01"])
    site.hosts.change("gpu01", lambda found: found.update(clock_is_ahead_s=-25 * 365 * DAY))
    assert site.run() == 3
    assert not list(site.state.glob("certificates/*.json"))
    year = str((datetime.now(UTC) - timedelta(days=25 * 365)).year)
    assert not any(f'"{year}-'.encode() in content for content in site.files().values())
