"""A host's missing packages are installed with the package manager whose packages were listed."""

from __future__ import annotations

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from tests.support.role_variables import ROLE, variables


def rendered(name: str, **known: object) -> object:
    """One variable of the role on a host with these facts."""
    known.update(variables("../host_packages/vars/main.yml"))
    return Templar(loader=DataLoader(), variables=known).template(known[name])


@pytest.mark.parametrize(("source", "apt"), [("apt", True), ("rpm", False)])
def test_the_listed_packages_say_which_package_manager_installs(source: str, apt: bool) -> None:
    listed = {"tar": [{"name": "tar", "version": "1.34", "source": source}]}
    facts = {"ansible_facts": {"packages": listed}, "host_packages": ["libxml2", "tar"]}
    assert rendered("__host_packages_apt", **facts) is apt
    assert rendered("__host_packages_missing", **facts) == ["libxml2"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [("apt", ["openssh-client", "python3-venv"]), ("rpm", ["openssh-clients"])],
)
def test_packages_have_red_hats_names_there(source: str, expected: list[str]) -> None:
    listed = {"tar": [{"name": "tar", "version": "1.34", "source": source}]}
    wanted = ["tar", "openssh-client", "python3-venv"]
    facts = {"ansible_facts": {"packages": listed}, "host_packages": wanted}
    assert rendered("__host_packages_missing", **facts) == expected


def test_a_host_is_asked_once_before_its_packages_are_installed_and_once_for_that() -> None:
    tasks = DataLoader().load_from_file(str(ROLE.parent / "host_packages/tasks/main.yml"))
    every = [task for outer in tasks for task in outer.get("block", [outer])]
    modules = [key for task in every for key in task if key.startswith("ansible.builtin.")]
    assert modules == [
        "ansible.builtin." + name
        for name in ("package_facts", "debug", "include_role", "apt", "package")
    ]
