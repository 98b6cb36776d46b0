"""The command that runs a playbook, and what is printed of it."""

from __future__ import annotations

import sys

import pytest

from gpufleet.campaign.provision.playbook import run, without_secrets


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            "ansible_become_password=hunter2 gpu_prune=true",
            "ansible_become_password=*** gpu_prune=true",
        ),
        ("smtp_pass='hunter2 x' a=b", "smtp_pass=*** a=b"),
        ('{"api_token": "hunter2", "gpu_prune": true}', "***"),
        ('{"nightly_verify_secrets": {"smtp": "hunter2"}}', "***"),
        ("password='hunter2", "***"),
        ("vault_x: hunter2", "***"),
        ('{"gpu_prune": true}', '{"gpu_prune": true}'),
        ("@secrets.yml", "@secrets.yml"),
        ("gpu_locks_dir=/srv", "gpu_locks_dir=/srv"),
    ],
)
def test_secrets_among_extra_variables_are_not_printed(given: str, shown: str) -> None:
    assert without_secrets(["ansible-playbook", "-e", given, "--limit", "password=x"]) == [
        "ansible-playbook",
        "-e",
        shown,
        "--limit",
        "password=x",
    ]


def test_the_printed_command_has_no_secret(capfd: pytest.CaptureFixture[str]) -> None:
    assert run([sys.executable, "-c", "pass", "-e", "password=hunter2"]) == 0
    printed = capfd.readouterr().err
    assert "password=***" in printed and "hunter2" not in printed
