"""Two hosts that only a gateway reaches, looked at in ClusterShell's tree mode."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab_fleet import ROOT, Done, Fleet

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ARTIFACTS = ("--cuda", "8.0")
UP = ("--hosts", "lab1,lab2,lab3")
INNER = ("lab2", "lab3")
KEY = "/home/deploy/.ssh/id_ed25519"
KNOWN = "/home/deploy/.ssh/known_hosts"
GATEWAY = f"""set -e
apt-get update -qq
apt-get install -qq --no-install-recommends python3-clustershell openssh-client >/dev/null
runuser -u deploy -- ssh-keygen -q -t ed25519 -N '' -f {KEY}
"""


@pytest.fixture(scope="module")
def tree(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The topology; lab2 and lab3 know no way back to this machine, and let the gateway in."""
    reported = json.loads(fleet.run(ROOT / "inventory/lab/hosts.py", "--list").stdout)
    found: dict[str, dict[str, str]] = reported["_meta"]["hostvars"]
    fleet.on("lab1", GATEWAY)
    public = fleet.on("lab1", f"cat {KEY}.pub").strip()
    for name in INNER:
        address = found[name]["ansible_host"]
        key = fleet.on(name, "cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub").strip()
        fleet.on("lab1", f"runuser -u deploy -- tee -a {KNOWN} <<'END'\n{address} {key}\nEND")
        fleet.on(name, f"echo '{public}' >>/home/deploy/.ssh/authorized_keys")
        fleet.on(name, f"ip route add blackhole {address.rpartition('.')[0]}.1")
    directory = tmp_path_factory.mktemp("tree")
    gateway, inner = found["lab1"]["ansible_host"], [found[name]["ansible_host"] for name in INNER]
    topology = directory / "topology.conf"
    topology.write_text(
        f"[routes]\n{platform.node().partition('.')[0]}: {gateway}\n{gateway}: {','.join(inner)}\n"
    )
    # In the place of this machine's own ~/.ssh/config, which says how a gateway is reached.
    options = found["lab1"]["ansible_ssh_common_args"]
    ssh = directory / "ssh"
    ssh.write_text(
        f"#!/bin/sh\nexec /usr/bin/ssh {options} -l deploy"
        f' -i {shlex.quote(found["lab1"]["ansible_ssh_private_key_file"])} "$@"\n'
    )
    ssh.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
        yield topology, found


def verdicts(fleet: Fleet, status: int, *words: str | Path) -> dict[str, Any]:
    """The verdicts of verify on all three hosts."""
    done: Done = fleet.gpufleet(
        "verify",
        "-i",
        "inventory/lab",
        "-e",
        '{"gpu_stacks": []}',
        "--json",
        *map(str, words),
        status=status,
    )
    hosts: dict[str, Any] = json.loads(done.stdout)["hosts"]
    return hosts


def test_only_the_gateway_gets_there(fleet: Fleet, tree: tuple[Path, dict[str, Any]]) -> None:
    found = verdicts(fleet, 1, "--deadline", "60")
    assert {name: host["verdict"] for name, host in found.items()} == {
        "lab1": "PASS",
        "lab2": "UNREACHABLE",
        "lab3": "UNREACHABLE",
    }


def test_through_it_each_is_judged(fleet: Fleet, tree: tuple[Path, dict[str, Any]]) -> None:
    fleet.on(
        "lab3",
        "mkdir -p /var/lib/gpufleet/receipts;"
        " echo '{' >/var/lib/gpufleet/receipts/toolkit-11.8.json",
    )
    found = verdicts(fleet, 1, "--topology", tree[0])
    assert {name: host["verdict"] for name, host in found.items()} == {
        "lab1": "PASS",
        "lab2": "PASS",
        "lab3": "FAIL",
    }
    assert [check["id"] for check in found["lab3"]["checks"] if check["verdict"] == "FAIL"] == [
        "install.complete"
    ]


def test_a_host_that_hangs_behind_it_has_its_deadline(
    fleet: Fleet, tree: tuple[Path, dict[str, Any]]
) -> None:
    fleet.on(
        "lab2",
        "printf '#!/bin/sh\\nexec sleep 600\\n' >/usr/local/bin/python3;"
        " chmod +x /usr/local/bin/python3",
    )
    found = verdicts(fleet, 1, "--topology", tree[0], "--deadline", "40")
    cause = found["lab2"]["checks"][0]["cause"]
    assert "the probe gave no answer within 40 s" in cause
    assert found["lab1"]["verdict"] == "PASS"


def test_a_gateway_that_is_away_is_named(fleet: Fleet, tree: tuple[Path, dict[str, Any]]) -> None:
    fleet.on("lab1", "apt-get remove -qq python3-clustershell >/dev/null")
    found = verdicts(fleet, 1, "--topology", tree[0], "--deadline", "60")
    assert {name: host["verdict"] for name, host in found.items()} == {
        "lab1": "PASS",
        "lab2": "UNREACHABLE",
        "lab3": "UNREACHABLE",
    }
    assert "gateway" in found["lab3"]["checks"][0]["cause"]
