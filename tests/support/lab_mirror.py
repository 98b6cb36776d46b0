"""A mirror that this machine serves to lab hosts, and hosts that reach nothing else."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.lab_fleet import ROOT, Fleet

# What Ansible and a person need to get in, and the mirror; all else is refused at once.
ONLY = """
iptables -A OUTPUT -o lo -j ACCEPT
iptables -A OUTPUT -p tcp --sport 22 -j ACCEPT
iptables -A OUTPUT -p tcp -d {address} --dport {port} -j ACCEPT
iptables -A OUTPUT -j REJECT
ip6tables -A OUTPUT -o lo -j ACCEPT
ip6tables -A OUTPUT -j REJECT
"""


@pytest.fixture(scope="module")
def mirror(fleet: Fleet, directory: Path) -> Iterator[dict[str, str]]:
    """A module's mirror, its fixture `directory`, served on this machine's side of the lab's
    network; what serve says of it."""
    route = fleet.run("ip", "-json", "route", "get", lab_hosts(fleet)["lab1"]["address"])
    here = json.loads(route.stdout)[0]["prefsrc"]
    words = ("artifacts", "serve", str(directory), "--bind", here, "--port", "0")
    with subprocess.Popen(
        [ROOT / "gpufleet", *words],
        env=fleet.environment,
        stdout=subprocess.PIPE,
        stderr=(directory / ".log").open("w"),
        text=True,
        start_new_session=True,
    ) as server:
        assert server.stdout is not None
        yield yaml.safe_load(server.stdout.readline() + server.stdout.readline())
        # The launcher and the server that it runs.
        # Not SIGINT, which whoever runs the tests in the background has it ignore.
        fleet.run("kill", "-TERM", "--", f"-{server.pid}")


def lab_hosts(fleet: Fleet) -> dict[str, dict[str, Any]]:
    """The lab's rows on its hosts, by name."""
    python = ROOT / ".venv" / "bin" / "python"
    listed = json.loads(fleet.run(python, "-m", "lab", "list", "--json").stdout)
    return {row["name"]: row for row in listed}


def cut_off(fleet: Fleet, host: str, mirror: dict[str, str]) -> None:
    """Leave a host nothing but ssh to it and the mirror."""
    container = lab_hosts(fleet)[host]["container"]
    pid = fleet.run("podman", "inspect", "--format", "{{.State.Pid}}", container).stdout.strip()
    address, _, port = mirror["gpu_artifacts_source"].removeprefix("http://").partition(":")
    for rule in ONLY.format(address=address, port=port).split("\n"):
        if rule:
            fleet.run("nsenter", f"--net=/proc/{pid}/ns/net", *rule.split())
