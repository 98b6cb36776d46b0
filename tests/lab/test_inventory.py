"""The dynamic inventory: what Ansible is told about the lab, up or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab import state
from lab.gpus import cards
from lab.gpus.planting import Cards
from lab.settings import Lab
from lab.state import Host

SCRIPT = Path(__file__).parents[2] / "inventory/lab/hosts.py"
MANY = Path(__file__).parents[2] / "inventory/many/hosts.py"


def ask(lab: Lab, *words: str, script: Path = SCRIPT) -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        # Isolated and without site packages: any python3 may run it.
        [sys.executable, "-I", "-S", str(script), *words],
        capture_output=True,
        text=True,
        check=True,
        env={"GPUFLEET_CACHE": str(lab.cache), "GPUFLEET_LAB": lab.instance, "HOME": "/nowhere"},
    )
    return json.loads(done.stdout), done.stderr


def plant(lab: Lab) -> None:
    state.save(lab, [Host("lab1", "10.0.0.11", "bookworm", lab.container("lab1"))])
    lab.artifacts.mkdir(parents=True)
    catalogue = {"a.run": {"sha256": "00", "size_bytes": 1}}
    (lab.artifacts / "catalogue.json").write_text(json.dumps(catalogue))


def test_ansible_can_run_it() -> None:
    assert os.access(SCRIPT, os.X_OK)
    assert SCRIPT.read_text().startswith("#!/usr/bin/env python3\n")


def test_hosts_that_are_up(lab: Lab) -> None:
    plant(lab)
    found, _ = ask(lab, "--list")
    assert found["gpu_hosts"] == {"hosts": ["lab1"]}
    host = found["_meta"]["hostvars"]["lab1"]
    assert host["ansible_host"] == "10.0.0.11"
    assert host["ansible_user"] == "deploy"
    assert host["ansible_ssh_private_key_file"] == str(lab.key)
    assert "StrictHostKeyChecking=yes" in host["ansible_ssh_common_args"]
    assert str(lab.known_hosts) in host["ansible_ssh_common_args"]
    assert host["lab_suite"] == "bookworm"
    assert "ansible_become" not in host
    assert ask(lab, "--host", "lab1")[0] == host
    assert ask(lab, "--host", "lab7")[0] == {}


def test_hosts_with_stand_in_gpus_declare_them(lab: Lab) -> None:
    plant(lab)
    cards.save(lab, {"lab1": Cards(2), "lab7": Cards(1)})
    found, _ = ask(lab, "--list")
    host = found["_meta"]["hostvars"]["lab1"]
    assert (host["gpu_expect"]["count"], host["gpu_stacks"]) == (2, [])
    assert found["all"]["vars"]["gpu_scheduler_host"] == "lab1"
    assert host["ansible_host"] == "10.0.0.11"
    assert found["gpu_hosts"] == {"hosts": ["lab1"]}


def test_artifacts_are_offered_to_all(lab: Lab) -> None:
    plant(lab)
    variables = ask(lab, "--list")[0]["all"]["vars"]
    assert variables["gpu_artifacts_source"] == str(lab.artifacts)
    assert variables["gpu_artifacts"] == {"a.run": {"sha256": "00", "size_bytes": 1}}


def test_a_lab_that_is_not_up_has_hosts_that_say_so(lab: Lab) -> None:
    found, _ = ask(lab, "--list")
    assert found["gpu_hosts"]["hosts"] == ["lab1", "lab2"]
    for host in found["_meta"]["hostvars"].values():
        assert host["ansible_host"] == "lab-is-not-up.invalid"
    assert found["all"]["vars"]["gpu_artifacts"] == {}


def test_a_damaged_state_is_reported_and_does_no_harm(lab: Lab) -> None:
    plant(lab)
    lab.state.write_text('{"hosts": [')
    found, warned = ask(lab, "--list")
    assert found["_meta"]["hostvars"]["lab1"]["ansible_host"] == "lab-is-not-up.invalid"
    assert "lab up" in warned
    assert str(lab.state) in warned


def test_the_state_is_not_for_others_to_read(lab: Lab) -> None:
    plant(lab)
    assert lab.state.stat().st_mode & 0o077 == 0


def test_one_host_stands_in_for_a_fleet(lab: Lab) -> None:
    plant(lab)
    (lab.directory / "many.json").write_text(
        json.dumps({"schema": 1, "host": "lab1", "first_port": 20001, "count": 100})
    )
    found, _ = ask(lab, "--list", script=MANY)
    hosts = found["gpu_hosts"]["hosts"]
    assert (hosts[0], hosts[-1], len(hosts)) == ("host001", "host100", 100)
    assert found["_meta"]["hostvars"]["host100"] == {"ansible_port": 20100}
    reached = found["gpu_hosts"]["vars"]
    assert reached["ansible_host"] == "10.0.0.11"
    # Its one key is checked by its one address, whatever the port.
    assert reached["ansible_ssh_common_args"].endswith("-o HostKeyAlias=10.0.0.11")


def test_a_fleet_that_is_not_up_is_one_host_that_says_so(lab: Lab) -> None:
    found, _ = ask(lab, "--list", script=MANY)
    assert found["gpu_hosts"]["hosts"] == ["host1"]
    assert found["gpu_hosts"]["vars"]["ansible_host"] == "lab-is-not-up.invalid"
