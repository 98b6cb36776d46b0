"""Whatever has systemd reload its units first lets running containers keep their GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from tests.support.role_variables import trusted

ROLES = Path(__file__).resolve().parents[2] / "roles"
KEEPING = {"name": "gpufleet.gpu.nvidia_docker", "tasks_from": "running.yml"}


@pytest.mark.parametrize(
    ("path", "reloading"),
    [
        ("host_packages/tasks/main.yml", "ansible.builtin.package:"),
        ("network/tasks/settings.yml", "ansible.builtin.systemd_service"),
        ("network/tasks/undeclared.yml", "ansible.builtin.systemd_service"),
        ("nightly_verify/tasks/timer.yml", "ansible.builtin.systemd_service"),
        ("nightly_verify/tasks/remove.yml", "ansible.builtin.systemd_service"),
        ("pull_verify/tasks/timer.yml", "ansible.builtin.systemd_service"),
        ("pull_verify/tasks/remove.yml", "ansible.builtin.systemd_service"),
    ],
)
def test_running_containers_keep_their_gpus(path: str, reloading: str) -> None:
    found = yaml.safe_load((ROLES / path).read_text())
    texts = [yaml.safe_dump(task, width=1000) for task in found]
    keeping = [
        at for at, task in enumerate(found) if task.get("ansible.builtin.include_role") == KEEPING
    ]
    assert len(keeping) == 1
    assert keeping[0] < next(at for at, text in enumerate(texts) if reloading in text)


@pytest.mark.parametrize(
    ("missing", "planned", "keeps"),
    [
        (["gcc"], {}, True),
        (["gcc"], {"__gpu_plan_result": {"image": False}}, True),
        (["gcc"], {"__gpu_plan_result": {"image": True}}, False),
        ([], {}, False),
    ],
)
def test_containers_are_asked_only_where_packages_are_installed(
    missing: list[str], planned: dict[str, Any], keeps: bool
) -> None:
    role = ROLES / "host_packages"
    known = {
        **yaml.safe_load((role / "vars" / "main.yml").read_text()),
        "__host_packages_missing": missing,
        "ansible_check_mode": False,
        **planned,
    }
    templar = Templar(loader=DataLoader(), variables=trusted(known))
    [task] = [
        task
        for task in yaml.safe_load((role / "tasks" / "main.yml").read_text())
        if "ansible.builtin.include_role" in task
    ]
    assert templar.evaluate_conditional(trusted(task["when"])) is keeps
