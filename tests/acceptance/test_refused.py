"""Bad input: one clear message, nothing changed on that host, the others go on.

The hosts stay fresh through this module: a refusal is only one if nothing was installed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.lab_fleet import ROOT, RUNFILE, TOOLKIT, Fleet
from tests.support.refusals import provision, refused

pytestmark = pytest.mark.lab

UNREACHABLE = "http://127.0.0.1:9"


def test_a_wrong_checksum_in_the_catalogue(fleet: Fleet) -> None:
    wrong = {RUNFILE: {"sha256": "0" * 64, "size_bytes": 1}}
    document = json.loads(fleet.run(ROOT / "inventory" / "lab" / "hosts.py", "--list").stdout)
    artifacts = {**document["all"]["vars"]["gpu_artifacts"], **wrong}
    done = provision(fleet, gpu_artifacts=artifacts)
    refused(fleet, done, RUNFILE, "0" * 64, "gpu_artifacts")


def test_an_artifact_that_is_missing_from_its_directory(fleet: Fleet, tmp_path: Path) -> None:
    done = provision(fleet, gpu_artifacts_source=str(tmp_path))
    refused(fleet, done, f"{RUNFILE} is not in {tmp_path}", "gpu_artifacts_source")


def test_a_licence_that_nobody_accepted(fleet: Fleet) -> None:
    done = provision(fleet, gpu_accept_nvidia_eula=False)
    refused(fleet, done, "gpu_accept_nvidia_eula")


def test_an_unreachable_mirror(fleet: Fleet) -> None:
    done = provision(fleet, gpu_artifacts_source=UNREACHABLE)
    refused(fleet, done, f"{UNREACHABLE}/{RUNFILE}", "refused")


def test_a_tmp_from_which_nothing_runs(fleet: Fleet) -> None:
    # Where /tmp alone is so, installers run from /var/tmp: `test_healthy_oddities.py`.
    fleet.on("lab1", "for each in /tmp /var/tmp; do mount -t tmpfs -o noexec tmpfs $each; done")
    try:
        refused(fleet, provision(fleet), "/tmp", "noexec", "gpu_tmpdir")
    finally:
        fleet.on("lab1", "umount /tmp /var/tmp")


def test_less_disk_than_needed(fleet: Fleet) -> None:
    fleet.on("lab1", "mount -t tmpfs -o size=100m tmpfs /usr/local")
    try:
        refused(fleet, provision(fleet), "/usr/local", "MiB")
    finally:
        fleet.on("lab1", "umount /usr/local")


def test_a_toolkit_that_we_did_not_install(fleet: Fleet) -> None:
    fleet.on("lab1", f"mkdir -p {TOOLKIT}/lib64 && echo theirs >{TOOLKIT}/lib64/libcudart.so.11.0")
    try:
        done = provision(fleet)
        assert done.returncode != 0
        assert TOOLKIT in done.stdout
        assert "did not install it" in " ".join(done.stdout.split())
        assert fleet.on("lab1", f"cat {TOOLKIT}/lib64/libcudart.so.11.0") == "theirs\n"
    finally:
        fleet.on("lab1", f"rm -r {TOOLKIT}")


def test_a_wrong_sudo_password(fleet: Fleet) -> None:
    sudoers = fleet.on("lab1", "grep -rlE '^deploy ' /etc/sudoers.d").strip()
    kept = fleet.on("lab1", f"cat {sudoers}")
    fleet.on("lab1", f"echo 'deploy ALL=(ALL) ALL' >{sudoers}")
    try:
        done = provision(fleet, ansible_become_password="wrong")
        refused(fleet, done, "Incorrect sudo password")
        judged = fleet.verdicts(1, "--limit", "lab1", "-e", "ansible_become_password=wrong")
        (only,) = judged["lab1"].values()
        assert only["verdict"] == "UNREACHABLE"
        assert "sudo" in only["cause"]
        assert "wrong" not in done.stdout.replace("wrong sudo", "")
    finally:
        fleet.on("lab1", f"cat >{sudoers} <<'E'\n{kept}E")


@pytest.mark.parametrize("inventory", ["nowhere/hosts.yml", "empty.yml"])
def test_an_inventory_without_hosts(fleet: Fleet, tmp_path: Path, inventory: str) -> None:
    path = tmp_path / inventory
    if inventory == "empty.yml":
        path.write_text("gpu_hosts: {hosts: {}}\n")
    done = fleet.gpufleet("provision", "-i", str(path), status=4)
    assert str(path) in done.stderr or "no host" in done.stderr.lower()


def test_an_unreachable_host_does_not_keep_the_others_from_going_on(fleet: Fleet) -> None:
    fleet.on("lab1", "systemctl stop ssh.socket ssh.service; pkill -x sshd || :")
    done = fleet.gpufleet("provision", status=1)
    output = " ".join((done.stdout + done.stderr).split())
    assert "Nothing is run on lab1: it is not reached" in output
    assert "--limit lab2" in output and "unreachable=1" not in output
    verdicts = json.loads(fleet.gpufleet("verify", "--json", status=1).stdout)["hosts"]
    assert [check["id"] for check in verdicts["lab1"]["checks"]] == ["host.reachable"]
    assert verdicts["lab1"]["verdict"] == "UNREACHABLE"
    assert verdicts["lab2"]["verdict"] == "PASS"
