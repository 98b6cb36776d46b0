"""`gpufleet silence`: what it accepts, refuses, lists and ends, and where `verify` shows it."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.cli import options
from gpufleet.cli import silence as silence_cli
from gpufleet.cli.main import main
from gpufleet.watch import silences
from gpufleet.watch.history import History
from tests.support.command_line import PLAN
from tests.support.healthy_host import Document, data
from tests.support.machine import deadline
from tests.support.nightly_sessions import host, session

TODAY = "2026-11-10"
COUNT, FULL = "FAIL: 1 of 8 GPUs are not there", "FAIL: 3 MiB are free"
WHY = ("--until", "2026-12-01", "--why", "card ordered")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two nights: gpu01 fails by two checks and a consequence, gpu02 is healthy, gpu03 is away."""
    monkeypatch.setattr(silence_cli, "utc_now", lambda: f"{TODAY}T12:00:00Z")
    monkeypatch.delenv("SUDO_USER", raising=False)
    found = tmp_path / "history.sqlite"
    with History(found) as history:
        for night in range(2):
            broken = host("gpu01", gpu__count=COUNT, gpu__smi="FAIL: 7", host__disk=FULL, x="PASS")
            broken.result["checks"][1]["explained_by"] = "gpu.count"
            gone = [host("gpu04", x="FAIL: broken")] if not night else []
            history.record(session(night, broken, host("gpu02", x="PASS"), host("gpu03"), *gone))
    return found


def run(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> tuple[int, str, str]:
    """Exit status, standard output and error."""
    status = main(["silence", "--database", str(path), *words])
    output = capsys.readouterr()
    return status, output.out, output.err


def known(path: Path) -> dict[tuple[str, str], Any]:
    with History(path) as history:
        return {**silences.read(history)}


def test_it_is_set_for_what_the_newest_night_found(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    status, out, err = run(capsys, path, "gpu01", "gpu.count", *WHY, "--who", "ann")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "gpu.count of gpu01 is silenced until 2026-12-01, for this and no other cause:",
        f"  {COUNT}",
    ]
    assert known(path) == {
        ("gpu01", "gpu.count"): {
            "host": "gpu01",
            "check": "gpu.count",
            "causes": [{"verdict": "FAIL", "cause": COUNT.removeprefix("FAIL: ")}],
            "until": "2026-12-01",
            "who": "ann",
            "why": "card ordered",
            "since": f"{TODAY}T12:00:00Z",
        }
    }


def test_an_unreachable_host_is_silenced_by_its_one_check(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    assert run(capsys, path, "gpu03", "host.reachable", *WHY)[0] == 0
    assert known(path)["gpu03", "host.reachable"]["causes"] == [
        {"verdict": "UNREACHABLE", "cause": "No route"}
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpu1", "gpu.count", *WHY], "No night knew of the host gpu1. Did you mean gpu01"),
        (
            ["gpu01", "gpu.cuont", *WHY],
            "No night knew of the check gpu.cuont. Did you mean gpu.count",
        ),
        (["gpu01", "x", *WHY], "found nothing wrong by x on gpu01: there is nothing to silence."),
        (["gpu01", "x", *WHY], "Not healthy on gpu01: gpu.count, gpu.smi, host.disk."),
        (["gpu02", "x", *WHY], "All of its checks pass."),
        (["gpu04", "x", *WHY], "gpu04 is not in the newest nightly run"),
        (["gpu01", "gpu.smi", *WHY], "gpu.smi is a consequence of gpu.count. Silence gpu.count"),
        (["gpu01", "gpu.count", "--until", "2026-11-09", "--why", "x"], "in the past"),
        (["gpu01", "gpu.count", "--until", "2062-11-11", "--why", "x"], "more than 366 days away"),
        (
            ["gpu01", "gpu.count", "--until", "Friday", "--why", "x"],
            "'Friday' is no date. Write it",
        ),
        (["gpu01", "gpu.count", "--until", "2026-12-01"], "--why is missing."),
        (["gpu01", "gpu.count", "--why", " "], "--until and --why is missing."),
        (["gpu01", "gpu.count", "--until", "2026-12-01", "--why", "x" * 201], "200 characters"),
        (["gpu01", *WHY], "A host and a check are missing."),
        (["gpu01", "gpu.count", "--end"], "gpu.count of gpu01 is not silenced."),
        (["gpu01", "gpu.count", "--list"], "It lists all silences."),
        (["gpu01", "gpu.count", "--json", *WHY], "Only the list is a document. Add --list."),
        (["--list", "--end"], "not allowed with argument"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_is_recorded(
    capsys: pytest.CaptureFixture[str], path: Path, words: list[str], message: str
) -> None:
    status, out, err = run(capsys, path, *words)
    assert status == 4 and "Traceback" not in err
    assert message in err + out
    assert known(path) == {}


def test_without_a_history_nothing_is_created(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, _, err = run(capsys, tmp_path / "none.sqlite", "gpu01", "gpu.count", *WHY)
    assert status == 4 and "There is no history yet" in err
    assert list(tmp_path.iterdir()) == []


def test_today_is_a_day_that_may_be_named(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    status, _, err = run(capsys, path, "gpu01", "gpu.count", "--until", TODAY, "--why", "x")
    assert (status, err) == (0, "")


def test_a_second_one_replaces_the_first_and_says_so(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    run(capsys, path, "gpu01", "gpu.count", *WHY)
    words = ("gpu01", "gpu.count", "--until", "2026-12-24", "--why", "card delayed\nagain")
    _, out, _ = run(capsys, path, *words)
    assert "It was silenced until 2026-12-01." in out
    ((_, found),) = known(path).items()
    assert (found["until"], found["why"]) == ("2026-12-24", "card delayed again")


def test_who_silences_is_the_account_before_sudo(
    capsys: pytest.CaptureFixture[str], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, path, "gpu01", "host.disk", *WHY)
    own = known(path)["gpu01", "host.disk"]["who"]
    assert own == pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.setenv("SUDO_USER", "ann")
    run(capsys, path, "gpu01", "host.disk", *WHY)
    assert known(path)["gpu01", "host.disk"]["who"] == "ann"


def test_it_is_ended(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    run(capsys, path, "gpu01", "gpu.count", *WHY)
    status, _, err = run(capsys, path, "gpu01", "host.disk", "--end")
    assert status == 4 and "Silenced are: gpu01 gpu.count." in err
    status, out, _ = run(capsys, path, "gpu01", "gpu.count", "--end")
    assert (status, out) == (0, "gpu.count of gpu01 is no longer silenced.\n")
    assert [silences.ended(each) for each in known(path).values()] == [True]
    # Nothing shows it any more, and it cannot be ended twice.
    assert run(capsys, path, "--list")[1] == "No check is silenced.\n"
    assert run(capsys, path, "gpu01", "gpu.count", "--end")[0] == 4
    assert "It was silenced" not in run(capsys, path, "gpu01", "gpu.count", *WHY)[1]


def test_the_list_names_what_each_silence_does(
    capsys: pytest.CaptureFixture[str], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, path, "--list")[1] == "No check is silenced.\n"
    until = {"gpu.count": "2026-12-01", "host.disk": TODAY}
    for check, day in until.items():
        run(capsys, path, "gpu01", check, "--until", day, "--why", "[red]x", "--who", "ann")
    with History(path) as history:
        for check, cause in (("x", "was broken"), ("gpu.smi", "another cause")):
            silences.store(
                history,
                {
                    **silences.read(history)["gpu01", "gpu.count"],
                    "check": check,
                    "causes": [{"verdict": "FAIL", "cause": cause}],
                },
            )
    monkeypatch.setattr(silence_cli, "utc_now", lambda: "2026-11-11T00:00:00Z")
    rows = [re.sub(r"\s+", " ", row).strip() for row in run(capsys, path, "--list")[1].splitlines()]
    assert rows == [
        "host check state silenced",
        "gpu01 gpu.count holds until 2026-12-01 by ann: [red]x",
        "gpu01 gpu.smi sounds until 2026-12-01 by ann: [red]x",
        f"gpu01 host.disk expired until {TODAY} by ann: [red]x",
        "gpu01 x passes until 2026-12-01 by ann: [red]x",
    ]
    listed = json.loads(run(capsys, path, "--list", "--json")[1])
    assert listed["schema"] == 1
    assert {row["check"]: row["state"] for row in listed["silences"]} == {
        "gpu.count": "holds",
        "gpu.smi": "sounds",
        "host.disk": "expired",
        "x": "passes",
    }


# -- other accounts --------------------------------------------------------------------------------


@pytest.fixture
def shared(path: Path) -> Iterator[Path]:
    """The history in a directory that every account may enter, as pytest's are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        copy = Path(folder) / "history.sqlite"
        copy.write_bytes(path.read_bytes())
        copy.chmod(0o644)
        yield copy


def as_nobody(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = (
        "import os, sys, _strptime, importlib.readers; from gpufleet.cli import silence, history; from gpufleet.cli.main import"
        " main; import gpufleet.watch.history; os.setgroups([]); os.setgid(65534);"
        " os.setuid(65534); sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", program, "silence", "--database", str(path), *words],
        capture_output=True,
        text=True,
        timeout=deadline(120),
        check=False,
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another account")
def test_an_account_that_may_only_read_lists_and_is_refused_to_set(shared: Path) -> None:
    assert as_nobody(shared, "--list").stdout == "No check is silenced.\n"
    day = f"{datetime.now(UTC) + timedelta(days=3):%Y-%m-%d}"
    done = as_nobody(shared, "gpu01", "gpu.count", "--until", day, "--why", "x")
    assert done.returncode == 4
    assert "This account may not write to the history" in done.stderr
    assert "as the user of the nightly" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another account")
def test_an_account_that_may_not_enter_the_directory_is_told_so(shared: Path) -> None:
    shared.parent.chmod(0o700)
    done = as_nobody(shared, "--list")
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert "This account may not read the history" in done.stderr


# -- verify ----------------------------------------------------------------------------------------


@pytest.fixture
def unwell(
    tmp_path: Path, snapshot: Document, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, list[str]]:
    """A history in which a host failed, and the command that judges it in the same way."""
    data(snapshot, "cudnn")["trees"][0]["headers"][0]["version"] = "8.9.7"
    file = tmp_path / "snapshot.json"
    file.write_text(json.dumps(snapshot))
    words = ["verify", "--snapshot", str(file), "--plan", str(PLAN)]
    words += ["--report", str(tmp_path / "reports")]
    monkeypatch.setattr(options, "NIGHTLYS", tmp_path / "none.sqlite")
    assert main(words) == 1
    path = tmp_path / "history.sqlite"
    main(["history", "--database", str(path), "--record", str(tmp_path / "reports" / "latest")])
    monkeypatch.setattr(options, "NIGHTLYS", path)
    return path, words


def test_verify_shows_a_silence_and_keeps_its_verdict(
    unwell: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, words = unwell
    document = json.loads((tmp_path / "reports" / "latest" / "report.json").read_text())
    ((name, result),) = document["hosts"].items()
    bad = [check["id"] for check in result["checks"] if check["verdict"] == "FAIL"]
    day = f"{datetime.now(UTC) + timedelta(days=3):%Y-%m-%d}"
    assert run(capsys, path, name, bad[0], "--until", day, "--why", "it is known")[0] == 0
    assert main(words) == 1
    assert re.search(rf"silenced +until {day} by \S+: it is known", capsys.readouterr().out)
    assert main([*words, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["hosts"][name]
    silenced = {
        check["id"]: check["silenced"]["why"] for check in found["checks"] if "silenced" in check
    }
    assert silenced[bad[0]] == "it is known"
    latest = tmp_path / "reports" / "latest"
    assert f"Silenced until {day}" in (latest / "report.html").read_text()
    assert f"silenced: until {day}" in (latest / "junit.xml").read_text()
    assert {key: value for key, value in found.items() if key != "checks"} == {"verdict": "FAIL"}


def test_verify_names_why_it_knows_no_silence(
    unwell: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, words = unwell
    path.write_bytes(b"no database" * 1000)
    assert main(words) == 1
    assert "Silences of the nightly run are not shown" in capsys.readouterr().out
