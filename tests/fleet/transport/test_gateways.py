"""Probing through a gateway: which hosts are behind it, and what is sent to it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ClusterShell.Task import Task, task_self

from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import Become, Connection
from gpufleet.fleet.transport import gateways
from gpufleet.fleet.transport.connection import READY
from gpufleet.fleet.transport.fanout import Target, probe_targets

HERE = platform.node().partition(".")[0]


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    path = tmp_path / "topology.conf"
    path.write_text(f"[routes]\n{HERE}: gw1\ngw1: gpu[01-04]\n")
    return path


@pytest.fixture
def task() -> Iterator[Task]:
    """This thread's, which forgets the topology and the gateways that were lost."""
    task = task_self()
    yield task
    task.topology = task.router = None


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that is called as ssh, here and on the gateway: it stays on this machine."""
    path = tmp_path / "bin" / "ssh"
    path.parent.mkdir()
    path.write_text('#!/bin/sh\nfor last; do :; done; exec /bin/sh -c "$last"\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CLUSTERSHELL_GW_PYTHON_EXECUTABLE", sys.executable)
    monkeypatch.setenv("CLUSTERSHELL_GW_LOG_DIR", str(tmp_path))
    return path


@pytest.mark.parametrize(("name", "expected"), [("gpu01", True), ("gw1", False), ("gpu09", False)])
def test_which_hosts_are_behind_a_gateway(
    topology: Path, task: Task, name: str, expected: bool
) -> None:
    behind = gateways.load_topology(task, topology)
    assert gateways.is_behind(behind, Connection(name)) is expected
    assert gateways.is_behind(behind, Connection("other", address=name)) is expected
    assert not gateways.is_behind(behind, Connection(name, "local"))


@pytest.mark.parametrize("text", ["", "[routes]\nelsewhere: gw1\n", "[routes]\nno route\n"])
def test_an_unusable_topology_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "topology.conf"
    if text:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match="topology"):
        gateways.load_topology(task_self(), path)


def test_the_command_contains_the_probe_and_runs_it(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    config = {
        "host": "gpu01",
        "mode": "facts",
        "root": str(tmp_path),
        "deadline_s": 60,
        "matmul": "taken from the command",
    }
    command = gateways.command(Connection("gpu01"), config)
    # The longest argument that Linux accepts, and room for what is declared of a host.
    assert len(command) < (1 << 17) - 4096
    # ClusterShell writes a host's name for some of these, C shells an earlier command.
    assert not set("%!") & set(gateways._programs())
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    ready, _, output = done.stdout.strip().partition("\n")
    assert ready == READY
    assert json.loads(output.splitlines()[-1])["host"] == "gpu01"


def test_no_password_is_sent_through_a_gateway(topology: Path, task: Task) -> None:
    secret = Connection("gpu01", become=Become(True, "root", "secret"))
    found = probe_targets([Target(secret, {"deadline_s": 5})], topology=topology)["gpu01"]
    assert found.cause == "A sudo password is not sent through a gateway"
    assert found.remedy


def targets(tmp_path: Path) -> list[Target]:
    """Three hosts behind the gateway, of which one has no such Python, and one that is here."""
    (tmp_path / "tmp").mkdir()
    config = {"deadline_s": 60, "root": str(tmp_path), "mode": "facts"}
    never = Become(False)
    return [
        Target(Connection("one", address="gpu01", become=never), config),
        Target(Connection("two", address="gpu02", become=never), config),
        Target(Connection("bare", address="gpu03", python="/nowhere", become=never), config),
        Target(Connection("here", "local", become=never), config),
    ]


def test_each_host_behind_a_gateway_has_its_own_outcome(
    tmp_path: Path, topology: Path, task: Task, ssh: Path
) -> None:
    found = probe_targets(targets(tmp_path), topology=topology)
    assert {name for name, outcome in found.items() if outcome.snapshot} == {"one", "two", "here"}
    assert found["bare"].cause == "/nowhere was not found on bare"
    assert (found["two"].snapshot or {})["host"] == "two"


def test_a_lost_gateway_does_not_end_other_probes(
    tmp_path: Path, topology: Path, task: Task, ssh: Path
) -> None:
    ssh.write_text("#!/bin/sh\necho 'No route to host' >&2; exit 255\n")
    found = probe_targets(targets(tmp_path), topology=topology)
    assert found["here"].snapshot
    for name in ("one", "two", "bare"):
        assert found[name].cause == "The gateway cannot reach the host: No route to host"
        assert "gateway" in found[name].remedy


@pytest.mark.costly
def test_a_hanging_gateway_is_given_up(
    tmp_path: Path, topology: Path, task: Task, ssh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh.write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(gateways, "GATEWAY_S", -50)
    found = probe_targets(targets(tmp_path), topology=topology)
    assert {found[name].cause for name in ("one", "two", "bare")} == {gateways.NO_ANSWER[0]}
    assert found["here"].snapshot
