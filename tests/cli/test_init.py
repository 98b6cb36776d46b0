"""`gpufleet init`: an inventory that plans as it is, in a directory that was empty."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.cli.main import main
from gpufleet.fleet.inventory import HostSelector, inventory_hosts


def test_the_inventory_can_be_planned_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "new" / "fleet"
    assert main(["init", str(directory)]) == 0
    assert f"gpufleet plan -i {directory} --offline" in capsys.readouterr().out
    for name in ("hosts.yml", "README.md", ".gitignore", "group_vars/gpu_hosts/main.yml"):
        assert (directory / name).read_text()
    assert main(["plan", "--offline", "--json", "-i", str(directory)]) == 0
    plans = json.loads(capsys.readouterr().out)["hosts"]
    assert list(plans) == ["gpu01.example.org", "gpu02.example.org"]
    assert all(plan["stacks"] and not plan["problems"] for plan in plans.values())


def test_a_directory_that_is_not_empty_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts.yml").write_text("mine")
    assert main(["init", str(tmp_path)]) == 4
    assert "The directory is not empty." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["hosts.yml"]
    assert main(["init", str(tmp_path / "hosts.yml")]) == 4
    assert (tmp_path / "hosts.yml").read_text() == "mine"


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """An inventory as it is after a first provisioning: with a lock, and a control host."""
    directory = tmp_path / "fleet"
    assert main(["init", str(directory)]) == 0
    (directory / ".stacks").mkdir()
    (directory / ".stacks" / "tensorflow-2.21.0-py3.12.lock").write_text("absl-py==2.5.1 \\\n")
    with (directory / "hosts.yml").open("a") as hosts:
        hosts.write(
            "gpu_control:\n  hosts:\n    control:\n  vars:\n    secret: '{{ vault_become_password }}'\n"
        )
    (directory / "group_vars/all/vault.yml").write_text("vault_become_password: hunter2\n")
    return directory


@pytest.mark.parametrize("inside", [True, False])
def test_plain_ansible_reads_it_without_a_warning(inventory: Path, inside: bool) -> None:
    words = [] if inside else ["-i", str(inventory)]
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-inventory"), *words, "--list"],
        cwd=inventory if inside else inventory.parent,
        env={name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    found = json.loads(done.stdout)["_meta"]["hostvars"]
    assert found["control"]["vault_become_password"] == "hunter2"
    assert set(found) == {"control", "gpu01.example.org", "gpu02.example.org"}


def test_its_locks_are_where_no_inventory_reader_looks(inventory: Path) -> None:
    hosts = inventory_hosts(HostSelector([str(inventory)], "gpu_hosts"))
    assert {host.locks_dir for host in hosts} == {inventory / ".stacks"}
    assert {name for host in hosts for name in host.locks} == {"tensorflow-2.21.0-py3.12.lock"}
