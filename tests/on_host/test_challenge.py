"""The answer to a challenge: one machine's own, and no other machine's."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from gpufleet.documents import received
from gpufleet.on_host import challenge, runner
from gpufleet.on_host.host import Host

WORD = "0123456789abcdef"


def machine(place: Path, secret: bytes, randomized: str | None = "2") -> Host:
    """A machine whose first process is where `secret` says."""
    for name, content in (
        ("proc/1/auxv", secret),
        ("proc/sys/kernel/randomize_va_space", randomized and randomized.encode()),
    ):
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            path.write_bytes(content)
    return Host({"root": str(place), "challenge": WORD})


def test_one_machine_answers_alike_and_another_one_differently(tmp_path: Path) -> None:
    one = machine(tmp_path / "one", b"\x10\x7f")
    answer = challenge.answer(one)
    assert answer == challenge.answer(machine(tmp_path / "again", b"\x10\x7f"))
    assert answer == hashlib.sha256(WORD.encode() + b"\x10\x7f").hexdigest()
    assert answer != challenge.answer(machine(tmp_path / "other", b"\x11\x7f"))
    assert answer != challenge.answer(Host({**one.config, "challenge": "another"}))


@pytest.mark.parametrize(
    ("secret", "randomized"), [(b"\x10\x7f", "0\n"), (b"\x10\x7f", None), (b"", "2\n")]
)
def test_a_machine_without_a_secret_has_no_answer(
    tmp_path: Path, secret: bytes, randomized: str | None
) -> None:
    assert challenge.answer(machine(tmp_path, secret, randomized)) is None


def test_a_secret_that_the_account_may_not_read_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = machine(tmp_path, b"\x10\x7f")

    def denied(path: str) -> bytes:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(challenge, "read_bytes", denied)
    assert challenge.answer(host) is None


@pytest.mark.parametrize("word", [None, WORD])
def test_the_probe_prints_its_answer_beside_the_snapshot_where_it_is_asked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    word: str | None,
) -> None:
    machine(tmp_path, b"\x10\x7f")
    monkeypatch.setattr(runner, "Session", lambda: None)
    for name in ("keep_orphans", "kill_descendants"):
        monkeypatch.setattr(runner, name, lambda: None)
    monkeypatch.setattr(runner, "probe", lambda *_: {"schema": 1, "sections": {"os": {}}})
    monkeypatch.setattr(os, "_exit", lambda status: None)
    monkeypatch.setattr("sys.argv", ["probe"])
    runner.main(json.dumps({"root": str(tmp_path), "challenge": word}))
    found = json.loads(capsys.readouterr().out)
    assert received.answer_in(found) == (word and challenge.answer(machine(tmp_path, b"\x10\x7f")))
    assert found == {"schema": 1, "sections": {"os": {}}}


@pytest.mark.parametrize("answer", [None, 5, "", "A" * 64, "a" * 63, "a" * 64 + "\n", ["a" * 64]])
def test_what_is_no_answer_is_taken_for_none(answer: object) -> None:
    document = {"answer": answer}
    assert received.answer_in(document) is None
    assert document == {}
