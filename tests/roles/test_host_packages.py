"""A host's missing packages are installed with the package manager whose packages were listed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from tests.support.role_variables import ROLE, variables


def rendered(name: str, **known: object) -> object:
    """One variable of the role on a host with these facts."""
    known.update(variables("../host_packages/vars/main.yml"))
    return Templar(loader=DataLoader(), variables=known).template(known[name])


def listed(*lines: str) -> dict[str, object]:
    """The variables that the role's first task registers on a host with these packages."""
    return {"__host_packages_listed": {"stdout_lines": [*lines]}}


@pytest.mark.parametrize(("manager", "apt"), [("apt", True), ("rpm", False)])
def test_the_first_line_says_which_package_manager_installs(manager: str, apt: bool) -> None:
    facts = {**listed(manager, "tar"), "host_packages": ["libxml2", "tar"]}
    assert rendered("__host_packages_apt", **facts) is apt
    assert rendered("__host_packages_missing", **facts) == ["libxml2"]


@pytest.mark.parametrize(
    ("manager", "expected"),
    [("apt", ["openssh-client", "python3-venv"]), ("rpm", ["openssh-clients"])],
)
def test_packages_have_red_hats_names_there(manager: str, expected: list[str]) -> None:
    wanted = ["tar", "openssh-client", "python3-venv"]
    facts = {**listed(manager, "tar"), "host_packages": wanted}
    assert rendered("__host_packages_missing", **facts) == expected


def test_a_host_is_asked_once_before_its_packages_are_installed_and_once_for_that() -> None:
    tasks = DataLoader().load_from_file(str(ROLE.parent / "host_packages/tasks/main.yml"))
    every = [task for outer in tasks for task in outer.get("block", [outer])]
    modules = [key for task in every for key in task if key.startswith("ansible.builtin.")]
    assert modules == [
        "ansible.builtin." + name for name in ("command", "debug", "include_role", "apt", "package")
    ]


DPKG = """case $* in --show*Status-Status*Package*)
  printf '%s\n' 'installed tar' 'config-files gone' 'installed libxml2' ;; esac"""


@pytest.mark.parametrize(
    ("programs", "lines"),
    [
        ({"apt-get": "exit 9", "dpkg-query": DPKG}, ["apt", "tar", "libxml2"]),
        ({"rpm": "printf '%s\\n' tar libxml2"}, ["rpm", "tar", "libxml2"]),
    ],
    ids=["apt", "rpm"],
)
def test_packages_are_listed_without_any_library_of_python(
    tmp_path: Path, programs: dict[str, str], lines: list[str]
) -> None:
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "sed").symlink_to("/usr/bin/sed")
    task = DataLoader().load_from_file(str(ROLE.parent / "host_packages/tasks/main.yml"))[0]
    _, *rest = task["ansible.builtin.command"]["argv"]
    done = subprocess.run(
        ["/bin/sh", *rest], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == lines
