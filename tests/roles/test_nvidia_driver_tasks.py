"""The role's tasks: refusals before changes, and nothing that verify names and no task mends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

TASKS = Path(__file__).resolve().parents[2] / "roles" / "nvidia_driver" / "tasks"


def tasks(name: str) -> list[dict[str, Any]]:
    """The tasks of a file."""
    read: list[dict[str, Any]] = yaml.safe_load((TASKS / f"{name}.yml").read_text())
    return read


def places(name: str) -> list[str]:
    """The names of the tasks of a file, in their order."""
    return [task["name"] for task in tasks(name)]


def test_what_cannot_be_vouched_for_is_refused_before_anything_changes() -> None:
    found = places("install")
    assert [name.partition(" ")[0] for name in found[:3]] == ["Choose", "Refuse", "Refuse"]
    assert found.index("Have the repository") < found.index("Forbid nouveau")


@pytest.mark.parametrize("name", ["repository_apt", "repository_dnf"])
def test_a_key_is_accepted_before_entries_of_other_hands_go(name: str) -> None:
    assert places(name)[0] == "Have the key"


def test_a_fabric_manager_without_an_nvswitch_is_taken_out_of_the_way() -> None:
    service = tasks("services")[-1]
    assert "when" not in service
    assert "gpu_plan.driver.fabric_manager" in service["vars"]["__nvidia_driver_service_runs"]


def test_a_runfile_brings_the_unit_that_verify_asks_for() -> None:
    unit = tasks("runfile")[-1]["ansible.builtin.copy"]
    assert unit["dest"] == "/etc/systemd/system/nvidia-persistenced.service"
    assert (TASKS.parent / "files" / unit["src"]).is_file()


def test_apt_is_called_once_no_two_entries_contradict_each_other() -> None:
    found = places("repository_apt")
    package = next(at for at, name in enumerate(found) if "package of its key" in name)
    assert found.index("Take their lines out") < found.index("Remove their files") < package
