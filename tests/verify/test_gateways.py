"""Behind a gateway: who is, what is sent there, and what is not."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path

import pytest
from ClusterShell.Task import task_self

from verify import gateways
from verify.connection import READY, Become, Connection
from verify.errors import ConfigurationError
from verify.fanout import Target, look

HERE = platform.node().partition(".")[0]


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    path = tmp_path / "topology.conf"
    path.write_text(f"[routes]\n{HERE}: gw1\ngw1: gpu[01-04]\n")
    return path


@pytest.mark.parametrize(("name", "expected"), [("gpu01", True), ("gw1", False), ("gpu09", False)])
def test_who_is_behind_it(topology: Path, name: str, expected: bool) -> None:
    task = task_self()
    try:
        gateways.load(task, topology)
        assert gateways.behind(task, Connection(name)) is expected
        assert gateways.behind(task, Connection("other", address=name)) is expected
        assert not gateways.behind(task, Connection(name, "local"))
    finally:
        task.topology = None


@pytest.mark.parametrize("text", ["", "[routes]\nelsewhere: gw1\n", "[routes]\nno route\n"])
def test_a_topology_that_does_not_fit_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "topology.conf"
    if text:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match="topology"):
        gateways.load(task_self(), path)


def test_the_command_brings_the_probe_and_runs_it(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    config = {"host": "gpu01", "mode": "facts", "root": str(tmp_path), "deadline_s": 60,
              "matmul": "taken from the command"}
    command = gateways.command(Connection("gpu01"), config)
    # Linux takes no longer word.
    assert len(command) < 1 << 17
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    ready, _, said = done.stdout.strip().partition("\n")
    assert ready == READY
    assert json.loads(said.splitlines()[-1])["host"] == "gpu01"


def test_no_password_is_sent_there(topology: Path) -> None:
    secret = Connection("gpu01", become=Become(True, "root", "secret"))
    try:
        found = look([Target(secret, {"deadline_s": 5})], topology=topology)["gpu01"]
    finally:
        task_self().topology = None
    assert found.cause == "A sudo password is not sent through a gateway"
    assert found.remedy
