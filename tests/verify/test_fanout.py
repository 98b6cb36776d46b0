"""All hosts at the same time: each ends as a snapshot or as a plain reason, none stops another."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from verify import fanout
from verify.connection import Become, Connection
from verify.fanout import Outcome, Target, look

NEVER = Become(False)


def local(name: str, python: str = "python3") -> Connection:
    return Connection(name, "local", python=python, become=NEVER)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    return tmp_path


def stand_in(path: Path, script: str) -> str:
    """An executable in Python's place."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_local_host_gives_a_snapshot_under_its_inventory_name(root: Path) -> None:
    heard: list[str] = []
    config = {"deadline_s": 20, "root": str(root), "host": "here"}
    found = look([Target(local("here"), config)],
                 report=lambda name, outcome: heard.append(name))
    assert heard == ["here"]
    snapshot = found["here"].snapshot
    assert snapshot is not None
    assert snapshot["host"] == "here"
    assert {section["state"] for section in snapshot["sections"].values()} == {"ok"}


def test_each_host_ends_in_its_own_way(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "GRACE_S", 1)
    monkeypatch.setattr(fanout, "MOST_BYTES", 1 << 16)
    config = {"deadline_s": 2, "root": str(root)}
    hosts = {
        "healthy": local("healthy"),
        "none": local("none", "/nowhere/python3"),
        "silent": local("silent", stand_in(tmp_path / "a", "exec sleep 600")),
        "noisy": local("noisy", stand_in(tmp_path / "b", "exec yes flooding")),
        "other": local("other", stand_in(tmp_path / "c", "echo '[1]'; echo words >&2; exit 3")),
        "closed": Connection("closed", "ssh", address="127.0.0.1", port=1, become=NEVER,
                             connect_timeout_s=2),
    }
    begin = time.monotonic()
    # A loaded machine may take its time to see that a host sends without end.
    deadlines = {"noisy": 60, "healthy": 60, "none": 60, "other": 60, "closed": 60}
    found = look([
        Target(connection, {**config, "deadline_s": deadlines.get(name, 2)})
        for name, connection in hosts.items()
    ])
    assert time.monotonic() - begin < 60
    assert {name for name, outcome in found.items() if outcome.snapshot} == {"healthy"}
    assert found["none"].cause == "There is no /nowhere/python3 on none"
    assert found["silent"].cause == "No answer within 3 s"
    assert "sends without end" in found["noisy"].cause
    assert found["other"].cause.endswith("(status 3): words")
    assert found["closed"].cause.startswith("ssh ")
    assert all(outcome.remedy for outcome in found.values() if not outcome.snapshot)


def test_more_hosts_than_the_fanout_all_come(root: Path) -> None:
    names = [f"host{number}" for number in range(6)]
    config = {"deadline_s": 30, "root": str(root)}
    heard: list[tuple[str, Outcome]] = []
    found = look([Target(local(name), config) for name in names], fanout=2,
                 report=lambda name, outcome: heard.append((name, outcome)))
    assert sorted(found) == names
    assert sorted(name for name, outcome in heard if outcome.snapshot) == names


def test_noise_of_a_login_before_the_snapshot_does_no_harm(root: Path, tmp_path: Path) -> None:
    python = stand_in(tmp_path / "python", "echo Welcome; exec python3 \"$@\"")
    config = {"deadline_s": 20, "root": str(root)}
    assert look([Target(local("here", python), config)])["here"].snapshot
