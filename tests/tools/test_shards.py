"""`gpufleet test --all --shard NUMBER/COUNT`: parts of all tests, and what passed on a commit."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.cli.main import main
from gpufleet.errors import ConfigurationError
from tools.cli import shards
from tools.cli import test as test_verb

COMMIT = "c0ffee" * 6


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands of pytest, which passes; records are in a directory of the test."""
    commands: list[list[str]] = []

    def run_command(command: list[str], **_: object) -> int:
        commands.append(command)
        (junit,) = (word.partition("=")[2] for word in command if word.startswith("--junit-xml="))
        Path(junit).write_text('<testsuites><testsuite tests="9" skipped="2"/></testsuites>')
        return 0

    monkeypatch.setattr(test_verb, "run_command", run_command)
    monkeypatch.setattr(test_verb, "require", lambda _: None)
    monkeypatch.setattr(shards, "RECORDS", tmp_path / "shards")
    monkeypatch.setattr(shards, "clean_commit", lambda: COMMIT)
    return commands


@pytest.mark.parametrize("count", [1, 2, 6])
def test_every_test_file_is_in_exactly_one_shard(count: int) -> None:
    dealt = [name for number in range(1, count + 1) for name in shards.files(number, count)]
    assert sorted(dealt) == sorted(map(str, (shards.ROOT / "tests").rglob("test_*.py")))


def test_files_that_take_long_are_dealt_evenly(tmp_path: Path) -> None:
    for at in range(12):
        (tmp_path / f"test_{at}.py").write_text("@pytest.mark.lab\n" if at < 6 else "")
    for number in range(1, 4):
        texts = [Path(name).read_text() for name in shards.files(number, 3, tmp_path)]
        assert (len(texts), sum(map(bool, texts))) == (4, 2)


@pytest.mark.parametrize("text", ["0/6", "7/6", "2", "2/0", "a/b", "2/6/8"])
def test_a_shard_that_does_not_exist_is_refused(text: str, ran: list[list[str]]) -> None:
    assert main(["test", "--all", "--shard", text]) == 4
    assert ran == []


def test_a_shard_needs_all(ran: list[list[str]]) -> None:
    assert main(["test", "--shard", "1/2"]) == 4
    assert ran == []


def test_a_shard_that_passed_is_not_run_again_and_all_of_them_are_a_full_pass(
    ran: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test", "--all", "--shard", "1/2"]) == 0
    assert main(["test", "--all", "--shard", "1/2"]) == 0
    assert len(ran) == 1
    assert main(["test", "--all", "--shards"]) == 1
    assert "1 of 2 shards passed; left: 2/2\nLast full pass: none" in capsys.readouterr().out
    assert main(["test", "--all", "--shard", "2/2"]) == 0
    assert main(["test", "--all", "--shards"]) == 0
    assert ": 14 passed, 4 skipped\n" in capsys.readouterr().out


def test_nothing_is_recorded_of_a_part_of_a_shard(ran: list[list[str]]) -> None:
    for _ in range(2):
        assert main(["test", "--all", "--shard", "1/2", "-k", "fast"]) == 0
    assert len(ran) == 2
    assert shards.saved(COMMIT) == {}


def test_nothing_is_recorded_where_the_checkout_changed_meanwhile(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([COMMIT, ""])
    monkeypatch.setattr(shards, "clean_commit", lambda: next(answers))
    assert main(["test", "--all", "--shard", "1/2"]) == 0
    assert shards.saved(COMMIT) == {}


def test_nothing_is_recorded_where_a_test_failed(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_verb, "run_command", lambda *_, **__: 1)
    assert main(["test", "--all", "--shard", "1/2"]) == 1
    assert shards.saved(COMMIT) == {}


def test_a_checkout_with_changes_has_no_commit_to_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def git(*args: str) -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *args],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    monkeypatch.setattr(shards, "ROOT", tmp_path)
    assert shards.clean_commit() == ""
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message", "one")
    assert shards.clean_commit() == git("rev-parse", "HEAD")
    (tmp_path / "new").touch()
    assert shards.clean_commit() == ""


def test_without_a_browser_its_tests_are_skipped_except_in_ci(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(programs: object) -> None:
        assert programs is test_verb.BROWSER
        raise ConfigurationError("Packages are not installed: chromium.", "", "Install them.")

    require: Callable[[], None] = test_verb.require_browser
    monkeypatch.setattr(test_verb, "require", refuse)
    monkeypatch.delenv("CI", raising=False)
    require()
    assert "are skipped. Packages are not installed: chromium." in capsys.readouterr().err
    monkeypatch.setenv("CI", "true")
    with pytest.raises(ConfigurationError):
        require()


def test_a_file_that_is_not_there_is_named(
    ran: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """pytest's workers say of it that no tests ran."""
    assert main(["test", "tests/cli/test_nothing.py::test_it", "-k", "it"]) == 4
    assert ran == []
    assert "tests/cli/test_nothing.py::test_it" in capsys.readouterr().err
