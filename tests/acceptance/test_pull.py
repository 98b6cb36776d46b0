"""A host that verifies itself: timer, program, result, and what is made of it centrally."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab_fleet import ROOT, Done, Fleet

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ARTIFACTS = ("--cuda", "8.0")
UP = ("--hosts", "lab1")
RESULT, METRICS = "/var/lib/gpufleet-pull/lab1.json", "/var/lib/textfiles/gpufleet.prom"
DECLARED = json.dumps({"gpu_stacks": [], "pull_verify_textfile_dir": "/var/lib/textfiles"})
RUN = "systemctl start gpufleet-pull.service"


def play(fleet: Fleet, *words: str) -> str:
    """Run the playbook on lab1."""
    return fleet.run(
        ROOT / ".venv/bin/ansible-playbook",
        "playbooks/pull.yml",
        "-i",
        "inventory/lab",
        "-e",
        DECLARED,
        *words,
    ).stdout


def pulled(fleet: Fleet, directory: Path, status: int) -> dict[str, Any]:
    """The verdicts of the control machine on the collected results."""
    done: Done = fleet.gpufleet(
        "verify",
        "-i",
        "inventory/lab",
        "-e",
        DECLARED,
        "--pulled",
        str(directory),
        "--report",
        str(directory / "reports"),
        "--json",
        status=status,
    )
    found: dict[str, Any] = json.loads(done.stdout)["hosts"]["lab1"]
    return found


def test_the_role_says_first_what_it_would_do_and_does_it_once(fleet: Fleet) -> None:
    fleet.on("lab1", "mkdir -p /var/lib/textfiles")
    play(fleet, "--check", "--diff")
    assert fleet.on("lab1", "ls -d /opt/gpufleet/pull /etc/gpufleet 2>/dev/null || :") == ""
    play(fleet)
    assert "changed=0" in play(fleet)
    assert "gpufleet-pull.timer" in fleet.on("lab1", "systemctl list-timers --all")


def test_a_healthy_host_says_so_without_any_ssh(fleet: Fleet, tmp_path: Path) -> None:
    fleet.on("lab1", RUN)
    assert 'gpufleet_host_healthy{host="lab1"} 1' in fleet.on("lab1", f"cat {METRICS}")
    assert fleet.on("lab1", f"stat -c %a:%U {RESULT} /var/lib/gpufleet-pull").split() == [
        "640:root",
        "2750:root",
    ]
    (tmp_path / "lab1.json").write_text(fleet.on("lab1", f"cat {RESULT}"))
    assert pulled(fleet, tmp_path, 0)["verdict"] == "PASS"


def test_a_broken_host_says_what_is_wrong_with_it(fleet: Fleet, tmp_path: Path) -> None:
    fleet.on(
        "lab1",
        "mkdir -p /var/lib/gpufleet/receipts;"
        " echo '{' >/var/lib/gpufleet/receipts/toolkit-11.8.json",
    )
    fleet.on("lab1", RUN)
    fleet.on("lab1", "rm /var/lib/gpufleet/receipts/toolkit-11.8.json")
    metrics = fleet.on("lab1", f"cat {METRICS}")
    assert 'gpufleet_host_healthy{host="lab1"} 0' in metrics
    assert 'gpufleet_check_failed{host="lab1",check="install.complete"} 1' in metrics
    assert "toolkit-11.8.json cannot be read" in fleet.on("lab1", "journalctl -u gpufleet-pull")
    (tmp_path / "lab1.json").write_text(fleet.on("lab1", f"cat {RESULT}"))
    host = pulled(fleet, tmp_path, 1)
    assert [check["id"] for check in host["checks"] if check["verdict"] == "FAIL"] == [
        "install.complete"
    ]


def test_an_old_result_is_no_result(fleet: Fleet, tmp_path: Path) -> None:
    document = json.loads(fleet.on("lab1", f"cat {RESULT}"))
    document["looked"] = (datetime.now(UTC) - timedelta(hours=27)).strftime("%Y-%m-%dT%H:%M:%SZ")
    (tmp_path / "lab1.json").write_text(json.dumps(document))
    host = pulled(fleet, tmp_path, 1)
    assert host["verdict"] == "UNREACHABLE"
    assert f"was last probed {document['looked']}, 27 h ago" in host["checks"][0]["cause"]


def test_it_goes_as_it_came(fleet: Fleet) -> None:
    play(fleet, "-e", "pull_verify_state=absent")
    assert (
        fleet.on(
            "lab1",
            "ls -d /opt/gpufleet/pull /etc/gpufleet/pull.json"
            " /var/lib/gpufleet-pull /etc/systemd/system/gpufleet-pull.*"
            f" {METRICS} 2>/dev/null || :",
        )
        == ""
    )
