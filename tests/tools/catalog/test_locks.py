"""`gpufleet catalog locks`: every lock of the catalog is tried once, and its result kept."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpufleet.catalog import facts, versions
from gpufleet.cli.main import main
from gpufleet.frameworks import FRAMEWORKS
from tests.support import published
from tools.catalog import locks


def one(**changes: Any) -> locks.Try:
    found = {
        "framework": "tensorflow",
        "version": "2.7.0",
        "cuda": "toolkit",
        "python": "3.9",
        "requirements": ("tensorflow==2.7.0", "protobuf<3.21"),
        "index": None,
    }
    return locks.Try(**{**found, **changes})


def test_each_source_of_cuda_and_each_python_is_a_try() -> None:
    found = {each.key for each in locks.tries("tensorflow", "2.17.1")}
    assert found == {
        (cuda, python) for cuda in ("toolkit", "pip") for python in ("3.9", "3.10", "3.11", "3.12")
    }
    plugins = {each.cuda for each in locks.tries("jax", "0.12.0.1")}
    assert plugins == {"pip", "toolkit", "cuda13 pip", "cuda13 toolkit"}
    (torch, *_) = locks.tries("pytorch", "2.6.0", "3.11")
    assert torch.requirements[0] == "torch==2.6.0"
    variant = next(each for each in locks.tries("pytorch", "2.6.0") if each.index)
    assert variant.requirements[0].startswith("torch==2.6.0+cu")


def test_a_result_is_kept_and_replaced(tmp_path: Path) -> None:
    result = {"date": "2026-11-24", "lock": "ok", "import": None}
    locks.save(one(), result, tmp_path)
    locks.save(one(python="3.10"), {**result, "import": "ok"}, tmp_path)
    known = locks.load("tensorflow", tmp_path)
    assert [row["python"] for row in known["2.7.0"]] == ["3.9", "3.10"]
    assert locks.is_tried(known, one(), lock_only=True)
    assert not locks.is_tried(known, one(), lock_only=False)
    locks.save(one(), {**result, "lock": "no solution"}, tmp_path)
    known = locks.load("tensorflow", tmp_path)
    assert locks.is_tried(known, one(), lock_only=False)
    assert not locks.is_tried(known, one(requirements=("tensorflow==2.7.0",)), lock_only=True)


def test_a_lock_that_cannot_be_made_is_a_result_with_its_reason() -> None:
    found = locks.attempt(
        one(requirements=("no such requirement ==",)), "2026-11-24", lock_only=True
    )
    assert found is not None
    assert "no such requirement" in found["lock"]
    assert found["import"] is None


def test_an_index_that_does_not_answer_is_recorded_beside_the_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = published.copy_of_data(tmp_path)
    monkeypatch.setattr(facts, "DATA", data)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_NO_CACHE", "1")
    before = locks.load("tensorflow", data)
    command = ["catalog", "locks", "--all", "--lock-only", "--tensorflow", "2.8.0"]
    assert main([*command, "--python", "3.9"]) == 3
    assert "Python 3.9: not tried: " in capsys.readouterr().out
    after = locks.load("tensorflow", data)
    (row,) = [row for row in after["2.8.0"] if row["python"] == "3.9"]
    assert row.pop("untried") == "the package index did not answer"
    assert after == before


def test_a_lock_for_python_3_6_is_for_one_that_hosts_have(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(locks, "_run", lambda command, *_: asked.append(command) or locks.OK)
    for python in ("3.6", "3.7"):
        locks.attempt(one(python=python), "2026-11-24", lock_only=True)
    assert [each[each.index("--python-version") + 1] for each in asked] == ["3.6.8", "3.7"]


def test_an_interpreter_that_is_not_here_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_run", lambda *_: locks.OK)
    found = locks.attempt(one(python="3.999"), "2026-11-24")
    assert found == {
        "date": "2026-11-24",
        "lock": "ok",
        "import": None,
        "untried": "no Python 3.999 was there",
    }


LOADER = "ImportError: {}: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (LOADER.format("libcublas.so.8.0"), (None, "libcublas.so.8.0 of its CUDA was not there")),
        (LOADER.format("libGL.so.1"), (LOADER.format("libGL.so.1"), None)),
        ("ValueError: it is broken", ("ValueError: it is broken", None)),
    ],
)
def test_a_release_that_is_linked_with_cuda_cannot_be_tried_without_it(
    error: str, found: tuple[str | None, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releases of TensorFlow 1 print a page of help after the error."""
    printed = f"Traceback (most recent call last):\n{error}\n\nFailed to load the runtime.\n"

    def run(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        imports = "-c" in command
        return subprocess.CompletedProcess(command, int(imports), "", printed * imports)

    monkeypatch.setattr(locks, "find_interpreter", lambda python: "python3.6")
    monkeypatch.setattr(locks.subprocess, "run", run)
    row = locks.attempt(one(), "2026-11-26")
    assert (row["import"], row.get("untried")) == found


def test_a_reason_is_no_result(tmp_path: Path) -> None:
    locks.save_reason(one(), "an index did not answer", "2026-11-26", tmp_path)
    known = locks.load("tensorflow", tmp_path)
    assert known["2.7.0"][0]["lock"] is None
    assert not locks.is_tried(known, one(), lock_only=True)
    locks.save(one(), {"date": "2026-11-26", "lock": "ok", "import": "ok"}, tmp_path)
    assert "untried" not in locks.load("tensorflow", tmp_path)["2.7.0"][0]


def test_the_command_tries_what_has_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "DATA", published.copy_of_data(tmp_path))
    (facts.DATA / "locks" / "tensorflow.yml").unlink()
    asked: list[str] = []

    def attempt(each: locks.Try, today: str, *, lock_only: bool = False) -> Any:
        asked.append(each.python)
        failed = each.python == "3.8"
        result = {"date": today, "lock": "ok", "import": "no module" if failed else "ok"}
        return result if failed else {**result, "scripts": "ok"}

    monkeypatch.setattr(locks, "attempt", attempt)
    command = ["catalog", "locks", "--tensorflow", "2.8.0"]
    assert main([*command, "--python", "3.9"]) == 0
    assert main(command) == 1
    assert asked == ["3.9", "3.7", "3.8", "3.10"]
    assert "TensorFlow 2.8.0, CUDA toolkit, Python 3.8: no module" in capsys.readouterr().out
    assert main(command) == 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_result_is_of_a_lock_that_the_catalog_makes_today(framework: Any) -> None:
    for version, rows in locks.load(framework, facts.DATA).items():
        known = {each.key: [*each.requirements] for each in locks.tries(framework, version)}
        for row in rows:
            assert known[row["cuda"], row["python"]] == row["requirements"], (version, row)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_lock_was_made_or_has_the_reason_why_not(framework: Any) -> None:
    results = locks.load(framework, facts.DATA)
    for each in locks.tries(framework):
        rows = results.get(each.version, [])
        (row,) = [row for row in rows if (row["cuda"], row["python"]) == each.key]
        assert row["lock"] or row["untried"], each.name


def test_no_lock_of_tensorflow_2_2_to_2_11_failed() -> None:
    results = locks.load("tensorflow", facts.DATA)
    assert len(results) >= 6
    for version, rows in results.items():
        if versions.key("2.2") <= versions.key(version) < versions.key("2.12"):
            for row in rows:
                assert row["lock"] == locks.OK, (version, row)
                assert row["import"] in {locks.OK, None}, (version, row)


SCRIPT = "#!/bin/sh\n"
TRACEBACK = "echo 'Traceback (most recent call last)' >&2\n"
ABSENT = "ModuleNotFoundError: No module named 'pkg_resources'"


@pytest.mark.parametrize(
    ("script", "target", "found"),
    [
        ("exit 0", "board:main", "ok"),
        ("echo 'unknown option --help' >&2; exit 2", "board:main", "ok"),
        (f'{TRACEBACK}echo "{ABSENT}" >&2; exit 1', "board:main", f"board: {ABSENT}"),
        (f'{TRACEBACK}echo "{ABSENT}" >&2; exit 1', "board:main [tool]", "ok"),
        (
            f"{TRACEBACK}echo 'FileNotFoundError: --help' >&2; exit 1",
            "board:main",
            "ok",
        ),
        (
            f"{TRACEBACK}echo 'pkg_resources.DistributionNotFound: six' >&2; exit 1",
            "board:main",
            "board: pkg_resources.DistributionNotFound: six",
        ),
        (
            f"{TRACEBACK}echo 'TypeError: main() missing 1 required argument' >&2; exit 1",
            "board:main",
            "ok",
        ),
        (
            f"{TRACEBACK}echo 'TypeError: Descriptors cannot be created directly.' >&2; exit 1",
            "board:main",
            "board: TypeError: Descriptors cannot be created directly.",
        ),
        ("kill -ILL $$", "board:main", "board: killed by signal 4"),
    ],
)
def test_each_console_script_is_started_once(
    tmp_path: Path, script: str, target: str, found: str
) -> None:
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "board-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "entry_points.txt").write_text(f"[console_scripts]\nboard = {target}\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "board").write_text(SCRIPT + script + "\n")
    (tmp_path / "bin" / "board").chmod(0o755)
    assert locks.start_scripts(tmp_path) == found


def test_a_script_without_an_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: Sequence[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 120)

    monkeypatch.setattr(locks, "console_scripts", lambda _: ["board"])
    monkeypatch.setattr(locks.subprocess, "run", run)
    assert locks.start_scripts(tmp_path) == "board: no end after 120 s"


def test_a_lock_whose_scripts_were_not_started_is_tried_again() -> None:
    row = {"cuda": "toolkit", "python": "3.9", "lock": "ok", "import": "ok"}
    row |= {"requirements": [*one().requirements]}
    assert not locks.is_tried({"2.7.0": [row]}, one(), lock_only=False)
    assert locks.is_tried({"2.7.0": [row]}, one(), lock_only=True)
    assert locks.is_tried({"2.7.0": [{**row, "scripts": "ok"}]}, one(), lock_only=False)


def test_no_shipped_lock_lacks_a_bound() -> None:
    shipped = sorted(Path("inventory").glob("*/stacks/*.lock"))
    assert shipped
    for path in shipped:
        assert locks.undeclared_bounds(path.read_text()) == [], path
