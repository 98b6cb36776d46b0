"""The role network: what it writes is what the probe reads, and what remains is removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from gpufleet.components.changes import changes
from gpufleet.components.resolver import resolve
from gpufleet.on_host import network_setup
from tests.support.planted_host import probe_tree, put
from tests.support.rdma_host import REPOSITORY, planned_setup
from tests.support.role_variables import ROLE, trusted

NETWORK = ROLE.parent / "network"
ADAPTERS = ["0000:40:00.0", "0000:41:00.0"]


def rendered(text: str, network: dict[str, Any] | None) -> Any:
    """A template with the role's variables on a host with this plan."""
    known = trusted(yaml.safe_load((NETWORK / "vars/main.yml").read_text()))
    found = {"item": "/usr/libexec/platform-python", "stat": {"exists": True}}
    missing = {"item": "/usr/bin/python3", "stat": {"exists": False}}
    known |= {
        "gpu_plan": {"network": network, "os": {"family": "debian"}},
        "gpu_changes": [],
        "__network_python_found": {"results": [missing, found]},
    }
    return Templar(loader=DataLoader(), variables=known).template(trusted(text))


def tasks(name: str) -> list[dict[str, Any]]:
    """The tasks of a file."""
    read: list[dict[str, Any]] = yaml.safe_load((NETWORK / "tasks" / f"{name}.yml").read_text())
    return read


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"max_read_request": None},
        {"acs_off": False},
        {"adapters": [], "max_read_request": None},
    ],
)
def test_the_probe_reads_from_the_unit_what_the_role_wrote(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    plan = {**planned_setup(ADAPTERS), **changed}
    text = rendered((NETWORK / "templates/gpufleet-network.service.j2").read_text(), plan)
    put(tmp_path, network_setup.UNIT_FILE[1:], text)
    setup = probe_tree(tmp_path)["network"]["setup"]
    keys = ("max_read_request", "acs_off", "adapters")
    assert setup["settings"] == {key: plan[key] for key in keys}
    assert (setup["unit"], setup["enabled"]) == ("gpufleet-network.service", False)
    assert "ExecStart=/usr/libexec/platform-python /opt/gpufleet/network/" in text


def test_the_probe_reads_the_modules_that_the_role_wrote(tmp_path: Path) -> None:
    content = tasks("modules")[-1]["ansible.builtin.copy"]["content"]
    put(tmp_path, network_setup.BOOT_MODULES[1:], rendered(content, planned_setup(ADAPTERS)))
    modules = probe_tree(tmp_path)["network"]["setup"]["modules"]
    assert modules == planned_setup(ADAPTERS)["modules"]


def test_a_module_is_loaded_before_it_is_listed_for_the_boot() -> None:
    names = [task["name"] for task in tasks("modules")]
    assert names[-2:] == ["Fail when a module cannot be loaded", "Load the modules at boot"]


@pytest.mark.parametrize("name", ["repository_apt", "repository_dnf"])
def test_a_key_is_accepted_before_its_repository_is_used(name: str) -> None:
    assert tasks(name)[0]["name"] == "Install the signing key"


def test_the_probe_looks_for_every_file_of_the_role() -> None:
    every = rendered("{{ __network_every_file }}", None)
    program = rendered("{{ __network_program }}", None)
    listed = {program if name == "/opt/gpufleet/network" else name for name in every}
    assert listed == set(network_setup.FILES)


@pytest.mark.parametrize(
    ("network", "kept"),
    [
        (None, []),
        (planned_setup(ADAPTERS), ["unit", "modules"]),
        (planned_setup(ADAPTERS, modules=[]), ["unit"]),
        (planned_setup([], acs_off=False), ["modules"]),
        (planned_setup([]), ["unit", "modules"]),
        (planned_setup(None), ["modules"]),
        (planned_setup(ADAPTERS, max_read_request=None, acs_off=False), ["modules"]),
        (planned_setup([], repository=REPOSITORY, modules=[], acs_off=False), ["repository"]),
    ],
)
def test_what_is_not_declared_is_removed_and_nothing_else(
    network: dict[str, Any] | None, kept: list[str]
) -> None:
    files = {
        "unit": rendered("{{ __network_unit_files }}", network),
        "modules": [network_setup.BOOT_MODULES],
        "repository": rendered("{{ __network_repository_files }}", network),
    }
    removed = rendered("{{ __network_undeclared }}", network)
    assert removed == [name for key in files if key not in kept for name in files[key]]


def test_the_role_does_nothing_on_a_host_without_a_change() -> None:
    conditions = [task.get("when") for task in tasks("main")[1:]]
    assert all(str(each).startswith("__network_changed") for each in conditions)


def test_files_of_the_role_on_a_host_that_declares_nothing_are_a_change(tmp_path: Path) -> None:
    put(tmp_path, network_setup.BOOT_MODULES[1:], "mlx5_ib\n")
    setup = probe_tree(tmp_path)["network"]["setup"]
    assert setup["files"] == [network_setup.BOOT_MODULES]
    section = {"state": "ok", "data": {"setup": setup}, "error": None}
    snapshot = {"schema": 1, "host": "gpu01", "sections": {"network": section}}
    [row] = [row for row in changes(resolve({}, snapshot), snapshot) if row["what"] == "network"]
    assert row["action"] == "remove"


@pytest.mark.parametrize(
    ("driver", "expected"), [(True, ["ib_umad", "nvidia_peermem"]), (False, ["ib_umad"])]
)
def test_nvidia_peermem_waits_for_the_boot_that_loads_the_driver(
    driver: bool, expected: list[str]
) -> None:
    names = ("mlx5_ib", "ib_umad", "nvidia_peermem")
    known = {
        "__network_loaded": {
            "results": [{"item": name, "stat": {"exists": name == "mlx5_ib"}} for name in names]
        },
        "__network_nvidia": {"stat": {"exists": driver}},
    }
    (load,) = [task for task in tasks("modules") if task["name"] == "Load the modules"]
    found = Templar(loader=DataLoader(), variables=known).template(trusted(load["loop"]))
    assert [row["item"] for row in found] == expected
