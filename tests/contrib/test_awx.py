"""docs/how-to/plain-ansible.md: surveys give valid variables, and slices add up to the whole fleet."""

from __future__ import annotations

import json
import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.components.resolver import resolve
from gpufleet.fleet.inventory import HostSelector, inventory_hosts
from tests.support.host_documents import codes, declaration

ROOT = Path(__file__).resolve().parents[2]
AWX = ROOT / "contrib" / "awx"


def survey(name: str) -> list[dict[str, Any]]:
    """A survey's questions."""
    questions: list[dict[str, Any]] = json.loads((AWX / name).read_text())["spec"]
    assert questions
    return questions


def answers(question: dict[str, Any]) -> list[Any]:
    """The values that AWX hands to Ansible for each choice of a person."""
    choices = question.get("choices", [question["default"]])
    return [[each] for each in choices] if question["type"] == "multiselect" else choices


@pytest.mark.parametrize("question", survey("survey-provision.json"), ids=str)
def test_each_answer_to_the_survey_is_a_declaration_that_can_be(question: dict[str, Any]) -> None:
    for answer in answers(question):
        assert codes(resolve(declaration("2.13.1", **{question["variable"]: answer}))) == []
    if "choices" in question:
        assert codes(resolve(declaration("2.13.1", **{question["variable"]: "no such answer"})))


def test_the_survey_of_removal_asks_for_the_playbook_s_own_variables() -> None:
    playbook = (ROOT / "playbooks" / "remove.yml").read_text()
    for question in survey("survey-remove.json"):
        assert f"{question['variable']} | default([])" in playbook
        assert question["type"] == "multiselect"


def test_the_image_takes_what_it_needs_from_the_package_alone() -> None:
    definition = yaml.safe_load((AWX / "execution-environment.yml").read_text())
    assert set(definition["dependencies"]) == {"ansible_core", "ansible_runner", "system"}
    assert "gpufleet-*.whl" in definition["additional_build_files"][0]["src"]
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (ansible,) = [each for each in known if each.startswith("ansible")]
    assert definition["dependencies"]["ansible_core"]["package_pip"] == ansible


def slices(text: str) -> list[str]:
    """The patterns that the guide names."""
    return re.findall(r"--limit '(gpu_hosts\[[^']+)'", text)


def hosts(inventory: Path, limit: str | None = None) -> list[str]:
    """The names that a pattern matches there, as Ansible's own inventory tells."""
    return [host.name for host in inventory_hosts(HostSelector([str(inventory)], limit))]


@pytest.mark.costly
@pytest.mark.parametrize("count", [1000, 997, 751])
def test_slices_are_all_hosts_and_each_once(tmp_path: Path, count: int) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(f"gpu_hosts: {{hosts: {{'gpu[0001:{count:04}]': }}}}\n")
    patterns = slices((ROOT / "docs" / "how-to" / "plain-ansible.md").read_text())
    parts = [hosts(inventory, pattern) for pattern in patterns]
    assert len(parts) == 4
    assert all(parts)
    assert list(chain.from_iterable(parts)) == hosts(inventory)
