"""`./gpufleet history`: what a person sees, what a program gets, and how mistakes are told."""

from __future__ import annotations

import importlib
import json
import re
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpufleet.cli import history as history_cli
from gpufleet.cli import options
from gpufleet.cli.main import main
from gpufleet.report import directory as report
from gpufleet.watch import host_states
from gpufleet.watch.history import History
from tests.support.machine import deadline
from tests.support.nightly_sessions import at, files, host, measured, session

ROOT = Path(__file__).parents[2]
SPEED = "gpu.GPU-0.toolkit.12.3.tflops"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Five nights of three hosts: one healthy, one broken, one that comes and goes."""
    found = tmp_path / "history.sqlite"
    with History(found) as history:
        for night in range(5):
            history.record(
                session(
                    night,
                    host("gpu01", a="PASS", b="PASS"),
                    host("gpu02", a="PASS", b="FAIL: it is broken" if night > 2 else "PASS"),
                    host("gpu03", a="FAIL: now and then" if night % 2 else "PASS", b="PASS"),
                ),
                measure=measured(**{SPEED.replace(".", "__"): 50.0 + night}),
            )
    return found


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status, standard output and error."""
    status = main(["history", *words])
    output = capsys.readouterr()
    return status, output.out, output.err


def asked(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> Any:
    """The document."""
    status, out, _ = run(capsys, "--database", str(path), "--json", *words)
    assert status == 0
    return json.loads(out)


def rows(text: str) -> list[str]:
    """The lines of a table, without what only sets it out."""
    return [re.sub(r"\s+", " ", row).strip() for row in text.splitlines()]


def test_all_hosts_the_worst_first(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    status, out, _ = run(capsys, "--database", str(path))
    assert status == 0
    assert rows(out) == [
        "5 nights, 2026-11-01T03:00:00Z to 2026-11-05T03:00:00Z",
        "host nights, oldest first now",
        "gpu02 PPPFF bad for 2 nights",
        "gpu03 PFPFP flapping",
        "✓ 1 host healthy in every night",
    ]


def test_a_host_its_checks_and_its_measures(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    _, out, _ = run(capsys, "--database", str(path), "--host", "gpu02")
    assert "b PPPFF bad for 2 nights: it is broken" in rows(out)
    assert "✓ 1 check held in every night" in rows(out)
    assert "toolkit.12.3.tflops ▁▃▅▆█ 54 52 50" in rows(out)
    assert "gpu02 GPU-0" in rows(out)
    found = asked(capsys, path, "--host", "gpu02")["hosts"]["gpu02"]
    assert found == {
        "verdicts": "PPPFF",
        "measures": {SPEED: [50.0, 51.0, 52.0, 53.0, 54.0]},
        "checks": {
            "a": {
                "verdicts": "PPPPP",
                "strikes": 0,
                "flapping": False,
                "cause": None,
                "remedy": None,
            },
            "b": {
                "verdicts": "PPPFF",
                "strikes": 2,
                "flapping": False,
                "cause": "it is broken",
                "remedy": "fix it",
            },
        },
    }


@pytest.mark.parametrize("name", ["gpu02", "gpu09"])
def test_a_host_has_its_states_with_who_set_them(
    capsys: pytest.CaptureFixture[str], path: Path, name: str
) -> None:
    """A host that was refused has states, and is in no recorded run."""
    states: list[Any] = [
        {"state": state, "since": f"2026-11-0{day}T10:00:00Z", "by": "ann", "why": why}
        for day, state, why in ((1, "new", "it came"), (2, "quarantined", "GPU 0"))
    ]
    with History(path) as history:
        for state in states:
            host_states.set_state(history, name, state)
    _, out, _ = run(capsys, "--database", str(path), "--host", name)
    assert [row for row in rows(out) if "2026-11-0" in row][:2] == [
        "new 2026-11-01T10:00:00Z ann it came",
        "quarantined 2026-11-02T10:00:00Z ann GPU 0",
    ]
    assert asked(capsys, path, "--host", name)["hosts"][name]["states"] == states


def test_a_host_has_its_states_before_the_first_night(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "new.sqlite"
    with History(path) as history:
        host_states.set_state(
            *(history, "gpu09"),
            {"state": "new", "since": "2026-11-01T10:00:00Z", "by": "ann", "why": "it came"},
        )
    _, out, _ = run(capsys, "--database", str(path), "--host", "gpu09")
    assert "new 2026-11-01T10:00:00Z ann it came" in rows(out)


def test_a_check_over_all_hosts(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    _, out, _ = run(capsys, "--database", str(path), "--check", "a")
    assert "gpu03 PFPFP flapping; had been: now and then" in rows(out)
    assert "✓ 2 hosts held in every night" in rows(out)
    found = asked(capsys, path, "--check", "a", "--last", "2")
    assert {name: list(it["checks"]) for name, it in found["hosts"].items()} == {
        "gpu01": ["a"],
        "gpu02": ["a"],
        "gpu03": ["a"],
    }
    assert found["hosts"]["gpu03"]["checks"]["a"]["verdicts"] == "FP"


def test_measures_by_a_form(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    for form in ("*.tflops", "gpu.GPU-0.*", "*GPU-0*tflops", SPEED, "*"):
        found = asked(capsys, path, "--measure", form)
        assert set(found["hosts"]["gpu01"]["measures"]) == {SPEED}, form
    assert asked(capsys, path, "--measure", "*.temperature_c")["hosts"] == {}


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["--host", "gpu1"], "No night knew of the host gpu1. Did you mean gpu0"),
        (["--check", "z"], "No night knew of the check z."),
        (["--last", "0"], "--last is more than 0"),
        (["--last", "many"], "--help lists the options"),
        (["--colour"], "--help lists the options"),
        (["--record", "/nowhere"], "Name the directory of a report"),
    ],
)
def test_mistakes_are_status_4_in_one_line_and_one_document(
    capsys: pytest.CaptureFixture[str], path: Path, words: list[str], output: str
) -> None:
    before = files(path.parent)
    status, out, err = run(capsys, "--database", str(path), "--json", *words)
    assert (status, files(path.parent)) == (4, before)
    assert output in re.sub(r"\s+", " ", err)
    (problem,) = json.loads(out)["problems"]
    assert problem["message"] and problem["code"] == "configuration"


def test_where_there_is_no_history_it_says_who_writes_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, _, err = run(capsys, "--database", str(tmp_path / "none.sqlite"))
    assert status == 4 and "There is no history yet" in err and "state_dir" in err
    assert not list(tmp_path.iterdir())


def test_the_nightlys_own_is_asked_where_there_is_one(
    capsys: pytest.CaptureFixture[str], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "NIGHTLYS", path)
    assert run(capsys)[0] == 0
    monkeypatch.setattr(options, "NIGHTLYS", path.parent / "none")
    monkeypatch.setattr(options, "OWN", path.parent / "none-either")
    assert run(capsys)[0] == 4


def test_the_nightlys_settings_say_where_its_history_is(
    capsys: pytest.CaptureFixture[str], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = path.parent / "nightly.yml"
    settings.write_text(f"inventory: [gpu01]\nstate_dir: {path.parent}\n")
    monkeypatch.setattr(options, "CONTROL", settings)
    monkeypatch.setattr(options, "NIGHTLYS", path.parent / "none")
    assert options.default_database() == path.parent / "history.sqlite"
    assert run(capsys)[0] == 0


def test_a_report_that_was_not_recorded_is_taken_in_later(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    night = session(3, host("gpu01", a="FAIL: broken"), host("gpu02"))
    directory = report.create_directory(tmp_path / "reports")
    report.write_report(directory, night)
    base = tmp_path / "history.sqlite"
    found = asked(capsys, base, "--record", str(directory), "--kind", "verify")
    assert (found["nights"], {name: it["verdicts"] for name, it in found["hosts"].items()}) == (
        [night.started],
        {"gpu01": "F", "gpu02": "U"},
    )
    status, _, err = run(
        capsys, "--database", str(base), "--record", str(directory), "--kind", "verify"
    )
    assert status == 4 and "in the history already" in err


def test_a_verify_of_some_hosts_is_no_nightly_run_unless_a_person_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The others would be reported as removed from the inventory, and as new the night after."""
    base = tmp_path / "history.sqlite"
    names = [f"gpu{number:02}" for number in range(1, 9)]
    with History(base) as history:
        history.record(session(2, *(host(name, a="PASS") for name in names)))
    words = ["--database", str(base), "--record"]

    def recorded(night: int, *hosts: str) -> list[str]:
        directory = report.create_directory(tmp_path / "reports")
        report.write_report(directory, session(night, *(host(name, a="PASS") for name in hosts)))
        return [*words, str(directory)]

    status, _, err = run(capsys, *recorded(3, "gpu01"))
    said = " ".join(err.split())
    assert status == 4
    assert f"It lacks 7 hosts of the nightly run before it ({at(2)}): gpu02, gpu03," in said
    assert "gpu06 and 2 more." in said and "--kind verify" in said
    assert run(capsys, *recorded(3, *names))[0] == 0
    # It is compared with the run before it: the first one of a history lacks none.
    assert run(capsys, *recorded(1, "gpu01"))[0] == 0
    # A run of the nightly from which hosts were removed, and one of another kind.
    assert run(capsys, *recorded(4, "gpu01"), "--kind", "nightly")[0] == 0
    assert run(capsys, *recorded(5, "gpu02"), "--kind", "verify")[0] == 0
    with History(base) as history:
        assert [night.started for night in history.nights(kind="nightly")] == [
            at(night) for night in (1, 2, 3, 4)
        ]


def test_the_launcher_hands_on_paths_as_the_person_means_them(path: Path) -> None:
    done = subprocess.run(
        [ROOT / "gpufleet", "history", "--database", path.name, "--json"],
        cwd=path.parent,
        capture_output=True,
        text=True,
        timeout=deadline(300),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["hosts"]) == {"gpu01", "gpu02", "gpu03"}


# -- a thousand hosts ------------------------------------------------------------------------------

LARGE = {"looks", "verdicts", "numbers", "words"}


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Some nights of the benchmark's fleet, in small."""
    benchmark = importlib.import_module("benchmarks.history")
    fleet = benchmark.Fleet(hosts=40, checks=20)
    found = tmp_path / "history.sqlite"
    with History(found) as history:
        for night in range(8):
            history.record(fleet.night(night), measure=fleet.measure)
    return found


def test_no_question_reads_a_whole_table(large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Times are the benchmark's; that indexes are used is what keeps them small."""
    asked_for: list[str] = []
    with History(large) as history:
        history.nights()
        assert history._open
        history._open.set_trace_callback(asked_for.append)
        options = history_cli.parser().parse_args
        hosts, checks = history.names("hosts"), history.names("checks")
        for words in (
            [],
            ["--host", hosts[3]],
            ["--check", checks[3]],
            ["--measure", "*.tflops"],
            ["--host", hosts[3], "--check", checks[3]],
            ["--host", hosts[3], "--measure", "*"],
        ):
            assert history_cli.document(history, options(words))["hosts"]
        history.changes()
        history.past()
    base = sqlite3.connect(large)
    plans = {
        question: " / ".join(row[3] for row in base.execute(f"EXPLAIN QUERY PLAN {question}"))
        for question in asked_for
        if question.startswith(("SELECT", "WITH"))
    }
    assert len(plans) > 12
    reported = [
        (table, plan)
        for plan in plans.values()
        for table in LARGE
        if re.search(rf"SCAN (\w+ )?{table}\b", plan) or re.search(r"SCAN [vlw]\b", plan)
    ]
    assert not reported
    assert any("INDEX wrong" in plan for plan in plans.values())


def test_the_history_stays_small(large: Path) -> None:
    base = sqlite3.connect(large)
    verdicts = base.execute("SELECT count(*) FROM verdicts").fetchone()[0]
    size = base.execute("SELECT sum(pgsize) FROM dbstat WHERE name = 'verdicts'").fetchone()[0]
    assert size / verdicts < 20, "bytes per verdict"


def test_a_host_shows_when_each_component_was_last_read_whole(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    def state(component: str, read: int | None) -> dict[str, Any]:
        return {
            "component": component,
            "installed": "then",
            "files": 1,
            "bytes": 2,
            "first": 3,
            "begun": 4,
            "read": read,
            "cursor": "a",
            "complete": True,
            "slow": [],
            "bad": [],
        }

    with History(path) as history:
        history.flag(
            "gpu01",
            "scrub",
            json.dumps(
                [
                    state("toolkit-12.3", 1_800_000_000),
                    state("stack-tf", None),
                    state("cudnn-12.3-9", 10**30),
                ]
            ),
        )
    assert asked(capsys, path, "--host", "gpu01")["hosts"]["gpu01"]["contents_read"] == {
        "toolkit-12.3": "2027-01-15T08:00:00Z",
        "stack-tf": None,
        "cudnn-12.3-9": "?",
    }
    assert "contents_read" not in asked(capsys, path, "--host", "gpu02")["hosts"]["gpu02"]
    out = rows(run(capsys, "--database", str(path), "--host", "gpu01")[1])
    assert {"toolkit-12.3 2027-01-15T08:00:00Z", "stack-tf not yet"} <= set(out)


# -- offenders -------------------------------------------------------------------------------------


def test_offenders_are_ranked_with_what_was_done(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "history.sqlite"
    broken = "FAIL: GPU 0 (0000:3b:00.0) has [red]errors"
    outputs = [broken, *["PASS"] * 3, broken, *["PASS"] * 3, broken]
    with History(path) as history:
        for night, output in enumerate(outputs):
            driver = "535" if night < 6 else "550"
            history.record(
                session(night, host("gpu01", gpu__memory=output), host("gpu02", x="PASS")),
                values={"gpu01": {"gpus": "0000:3b:00.0 GPU-a Tesla T4", "driver.version": driver}},
            )
    status, out, err = run(capsys, "--database", str(path), "--offenders")
    assert (status, err) == (0, "")
    assert [line.strip() for line in out.splitlines()] == [
        "9 nights, 2026-11-01 to 2026-11-09",
        "GPU-a in gpu01 0000:3b:00.0: 3 nights lost of 9; for replacement: it failed again after 2"
        " recoveries",
        *(
            line
            for day in ("2026-11-01", "2026-11-05", "2026-11-09")
            for line in (
                f"{day}, one night: gpu.memory: GPU 0 (0000:3b:00.0) has [red]errors",
                "as far as is recorded, "
                + ("nothing was done yet" if day.endswith("09") else "it ended by itself"),
            )
        ),
        "gpu01: 3 nights lost of 9",
        *(
            line
            for day in ("2026-11-01", "2026-11-05", "2026-11-09")
            for line in (
                f"{day}, one night: gpu.memory: GPU 0 (0000:3b:00.0) has [red]errors",
                "as far as is recorded, "
                + ("nothing was done yet" if day.endswith("09") else "it ended by itself"),
            )
        ),
    ]
    found = asked(capsys, path, "--offenders")
    assert [(row["name"], row["replace"]) for row in found["offenders"]] == [
        ("GPU-a", True),
        ("gpu01", False),
    ]
    assert asked(capsys, path, "--offenders", "--last", "2")["offenders"][0]["nights_lost"] == 1


def test_offenders_without_any_and_with_other_selections(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, path: Path
) -> None:
    well = tmp_path / "well.sqlite"
    with History(well) as history:
        history.record(session(0, host("gpu01", x="PASS")))
    assert (
        "no host and no card lost a night" in run(capsys, "--database", str(well), "--offenders")[1]
    )
    for words in (["--host", "gpu02"], ["--check", "b"], ["--kind", "verify"]):
        status, _, err = run(capsys, "--database", str(path), "--offenders", *words)
        assert status == 4 and "It ranks all hosts and cards" in err
    status, _, err = run(capsys, "--database", str(tmp_path / "none"), "--offenders")
    assert status == 4 and "There is no history yet" in err
