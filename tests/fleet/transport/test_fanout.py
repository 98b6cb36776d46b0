"""Probe hosts in parallel: each returns a snapshot or a reason, and none stops another."""

from __future__ import annotations

import ast
import json
import resource
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.fleet.inventory import Become, Connection
from gpufleet.fleet.transport import fanout
from gpufleet.fleet.transport.connection import READY
from gpufleet.fleet.transport.fanout import Outcome, Target, probe_targets
from tests.support.machine import deadline

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
    reported: list[str] = []
    config = {"deadline_s": deadline(20), "root": str(root), "host": "here"}
    found = probe_targets(
        [Target(local("here"), config)], report=lambda name, outcome: reported.append(name)
    )
    assert reported == ["here"]
    snapshot = found["here"].snapshot
    assert snapshot is not None
    assert snapshot["host"] == "here"
    assert {section["state"] for section in snapshot["sections"].values()} == {"ok"}


def login(path: Path, script: str) -> Connection:
    """A stand-in ssh: the script replaces the connection to the host and its login.

    `HOST` in it runs the requested command, as the host would.
    """
    script = script.replace("HOST", 'for last; do :; done; eval "$last"')
    return Connection(path.name, "ssh", ssh_executable=stand_in(path, script), become=NEVER)


def test_each_host_has_its_own_outcome_and_none_exceeds_its_deadline(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "MOST_BYTES", 1 << 20)
    config = {"deadline_s": deadline(2), "root": str(root)}
    endless = "while :; do printf 'no end of a line here, '; done"
    hosts = [
        local("healthy"),
        local("none", "/nowhere/python3"),
        local("silent", stand_in(tmp_path / "a", "exec sleep 600")),
        local("noisy", stand_in(tmp_path / "b", "exec yes flooding")),
        local("other", stand_in(tmp_path / "c", "echo '[1]'; echo words >&2; exit 3")),
        Connection("closed", "ssh", address="127.0.0.1", port=1, become=NEVER, connect_timeout_s=2),
        login(tmp_path / "mute", "exec sleep 600"),
        login(tmp_path / "endless", endless),
        login(tmp_path / "complaining", f"exec >&2; {endless}"),
        login(tmp_path / "profile", "yes Welcome"),
        login(tmp_path / "banner", "yes '** Be careful.' | head -500 | tee /dev/stderr; HOST"),
        login(
            tmp_path / "nested",
            f"echo {READY}; head -c 70000 >/dev/null; head -c 200000 /dev/zero | tr '\\0' '['",
        ),
        login(
            tmp_path / "cut",
            f"echo {READY}; head -c 70000 >/dev/null; echo Closed. >&2;"
            ' printf \'{"schema": 1, "secti\'; exit 255',
        ),
        login(
            tmp_path / "refusing",
            "yes '** A long banner.' | head -500 >&2; echo 'deploy@x:"
            " Permission denied (publickey).' >&2; exit 255",
        ),
    ]
    # A loaded machine may take its time to see that a host sends endless output.
    patient = {host.name: 60 for host in hosts if host.name not in {"silent", "mute"}}
    begin = time.monotonic()
    ended: dict[str, float] = {}
    found = probe_targets(
        [Target(host, {**config, "deadline_s": patient.get(host.name, 2)}) for host in hosts],
        report=lambda name, outcome: ended.update({name: time.monotonic() - begin}),
    )
    assert {name for name, outcome in found.items() if outcome.snapshot} == {"healthy", "banner"}
    assert all(outcome.remedy for outcome in found.values() if not outcome.snapshot)
    causes = {name: outcome.cause for name, outcome in found.items()}
    assert causes["none"] == "/nowhere/python3 was not found on none"
    assert causes["silent"] == (
        "The login to silent works, but the probe gave no answer within 2 s"
    )
    assert causes["mute"] == "No answer within 2 s: the login to mute did not complete"
    assert causes["other"].endswith("(status 3): words")
    assert causes["closed"].startswith("ssh failed: ssh: connect to host")
    assert causes["cut"] == "The connection to cut broke during the probe: Closed."
    assert causes["refusing"].endswith("deploy@x: Permission denied (publickey).")
    for name in ("noisy", "endless", "complaining", "profile"):
        assert causes[name] == f"{name} sends endless output instead of a snapshot"
    assert max(ended["silent"], ended["mute"]) < 2 + 5


def test_an_endless_line_is_not_kept_in_memory(root: Path, tmp_path: Path) -> None:
    host = login(tmp_path / "endless", "head -c 400000000 /dev/zero")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = probe_targets([Target(host, {"deadline_s": deadline(60), "root": str(root)})])
    assert found["endless"].cause == "endless sends endless output instead of a snapshot"
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 100 << 10


def test_the_probe_gets_the_remaining_time_as_its_deadline(root: Path, tmp_path: Path) -> None:
    received = tmp_path / "received"
    python = stand_in(tmp_path / "python", f"head -n 1 >{received}")
    slow = login(tmp_path / "slow", "sleep 1.5; HOST")
    given_s = deadline(30)
    probe_targets(
        [Target(replace(slow, python=python), {"deadline_s": given_s, "root": str(root)})]
    )
    left = json.loads(ast.literal_eval(received.read_text().partition(" = ")[2]))["deadline_s"]
    most_s = given_s - 1.5
    assert 10 < left <= most_s - min(fanout.RETURN_S, most_s * fanout.RETURN_SHARE)


def test_more_hosts_than_the_fanout_are_all_probed(root: Path) -> None:
    names = [f"host{number}" for number in range(6)]
    config = {"deadline_s": deadline(30), "root": str(root)}
    reported: list[tuple[str, Outcome]] = []
    found = probe_targets(
        [Target(local(name), config) for name in names],
        fanout=2,
        report=lambda name, outcome: reported.append((name, outcome)),
    )
    assert sorted(found) == names
    assert sorted(name for name, outcome in reported if outcome.snapshot) == names


def test_login_output_before_the_snapshot_is_ignored(root: Path, tmp_path: Path) -> None:
    python = stand_in(tmp_path / "python", 'echo Welcome; exec python3 "$@"')
    config = {"deadline_s": deadline(20), "root": str(root)}
    assert probe_targets([Target(local("here", python), config)])["here"].snapshot
