"""The probe as a Slurm job step: which command runs on which machine, and what is refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gpufleet.cli.main import main
from gpufleet.errors import ConfigurationError
from gpufleet.fleet.inventory import Connection, HostSelector, inventory_hosts
from gpufleet.fleet.transport.connection import READY, command, failure_reason
from gpufleet.fleet.transport.fanout import Target, probe_targets
from gpufleet.fleet.transport.slurm import as_job_steps
from tests.support.machine import deadline

INVENTORY = """
all:
  hosts:
    head1: {ansible_host: 10.0.0.1, ansible_user: ops}
gpu_hosts:
  hosts:
    gpu01: {gpu_node_name: n01, ansible_host: 10.0.0.2, ansible_python_interpreter: /opt/py}
  vars: {gpu_scheduler_host: head1, gpu_srun_options: ["--gres=gpu:8"]}
"""


def write_inventory(directory: Path, text: str = INVENTORY) -> HostSelector:
    (directory / "hosts.yml").write_text(text)
    return HostSelector([str(directory / "hosts.yml")])


def test_srun_runs_on_the_head_node_for_the_node_by_its_slurm_name(tmp_path: Path) -> None:
    selector = write_inventory(tmp_path)
    [host] = as_job_steps(inventory_hosts(selector), selector, lambda host: 300)
    assert host.connection.name == "gpu01"
    args = command(host.connection)
    assert args[args.index("--") + 1] == "10.0.0.1"
    assert args[args.index("-l") + 1] == "ops"
    step = shlex.split(args[-1])
    assert step[:2] == ["exec", "srun"]
    assert {"--nodelist=n01", "--overlap", "--immediate=150", "--time=6", "--gres=gpu:8"} < {*step}
    assert step[-3:-1] == ["/bin/sh", "-c"]
    assert "/opt/py -I -S -" in step[-1]


def test_without_a_head_node_srun_runs_on_this_machine(tmp_path: Path) -> None:
    selector = write_inventory(tmp_path, "gpu_hosts: {hosts: {gpu01: {ansible_host: 10.0.0.2}}}")
    [host] = as_job_steps(inventory_hosts(selector), selector, lambda host: 10)
    args = command(host.connection)
    assert args[0] == "srun"
    assert "--nodelist=gpu01" in args
    assert args[-3:-1] == ["/bin/sh", "-c"]


@pytest.mark.parametrize("options", ['"--gres=gpu:8"', "[1]"])
def test_options_that_are_not_a_list_are_refused(tmp_path: Path, options: str) -> None:
    selector = write_inventory(tmp_path, INVENTORY.replace('["--gres=gpu:8"]', options))
    with pytest.raises(ConfigurationError, match="gpu01: gpu_srun_options"):
        as_job_steps(inventory_hosts(selector), selector, lambda host: 300)


def test_a_head_node_that_is_not_in_the_inventory_is_refused(tmp_path: Path) -> None:
    selector = write_inventory(
        tmp_path, INVENTORY.replace("gpu_scheduler_host: head1", "gpu_scheduler_host: head2")
    )
    with pytest.raises(ConfigurationError, match="head2"):
        as_job_steps(inventory_hosts(selector), selector, lambda host: 300)


def test_the_output_of_srun_is_the_cause_and_its_command_the_remedy(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\necho 'srun: error: Requested nodes are busy' >&2\nexit 1\n")
    srun.chmod(0o755)
    connection = Connection("gpu01", "local", launcher=(str(srun), "--nodelist=gpu01"))
    found = probe_targets([Target(connection, {"host": "gpu01", "deadline_s": deadline(20)})])[
        "gpu01"
    ]
    assert found.snapshot is None
    assert "srun: error: Requested nodes are busy" in found.cause
    assert found.remedy == f"try by hand: {srun} --nodelist=gpu01 true"


def test_the_probe_goes_through_a_launcher(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    srun.chmod(0o755)
    connection = Connection("gpu01", "local", launcher=(str(srun), "--nodelist=gpu01"))
    config = {"host": "gpu01", "deadline_s": deadline(60), "mode": "facts"}
    found = probe_targets([Target(connection, config)])["gpu01"]
    assert found.snapshot is not None, found.cause
    assert READY not in str(found.snapshot)


def test_the_remedy_has_the_whole_command_of_a_step_over_ssh() -> None:
    connection = Connection("gpu01", address="10.0.0.1", launcher=("srun", "--nodelist=n01"))
    _, remedy = failure_reason(connection, 1, "srun: error")
    assert remedy.endswith(" 10.0.0.1 srun --nodelist=n01 true")


@pytest.mark.parametrize("more", [["--local"], ["--pairs"], ["--topology", "t.conf"]])
def test_it_excludes_local_pairs_and_topology(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "-i", "localhost,", "--launcher", "slurm", *more]) == 4
    assert "--launcher slurm" in capsys.readouterr().err


def test_a_domain_is_a_variable_or_a_group_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(
        "gpu_hosts: {hosts: {a: {rack: 7}, b: , c: }}\nrack_r1: {hosts: {b: }}\n"
    )
    found = inventory_hosts(HostSelector([str(tmp_path / "hosts.yml")], domain="rack"))
    assert {host.name: host.domain for host in found} == {"a": "7", "b": "rack_r1", "c": None}
