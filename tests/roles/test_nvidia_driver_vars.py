"""The role's variables, rendered for every supported distribution, source, branch and kind of
module, say the packages, repository and pins that were written down by hand beside this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.gpufleet.gpu.plugins.module_utils import driver_rules

from gpufleet.catalog import facts
from gpufleet.components.base.host import Host
from gpufleet.components.driver import kernels as driver_kernels
from gpufleet.components.driver import sources as driver_sources
from tests.support.role_variables import ROLE, trusted, variables

SYSTEMS = yaml.safe_load((ROLE.parents[1] / "tests/support/os_facts.yml").read_text())
EXPECTED = yaml.safe_load((Path(__file__).parent / "nvidia_driver_vars.yml").read_text())


def with_own_file(system: str, arch: str = "x86_64", **driver: Any) -> tuple[str, dict[str, Any]]:
    """The file of variables that the role takes on a system, and all variables with it."""
    os = {key: SYSTEMS[system][key] for key in ("id", "version_id", "codename")}
    family = "debian" if os["id"] in {"debian", "ubuntu"} else "redhat"
    plan = {"persistence": True, "fabric_manager": False, "version": None, **driver}
    known = {
        **variables("defaults/main.yml"),
        **variables("vars/main.yml"),
        "role_path": trusted(str(ROLE)),
        "gpu_plan": {"arch": arch, "os": {**os, "family": family}, "driver": plan},
        "gpu_changes": [],
    }
    files = Templar(loader=DataLoader(), variables=known).template(
        known["__nvidia_driver_vars_files"]
    )
    found = [name for name in files["files"] if (ROLE / "vars" / name).exists()]
    assert found, f"the role has no variables for {system}"
    return found[0], {**known, **variables(f"vars/{found[0]}")}


def rendered(system: str, arch: str = "x86_64", **driver: Any) -> dict[str, Any]:
    """The rendered variables of the role on a system, for a plan's driver."""
    _, known = with_own_file(system, arch, **driver)
    templar = Templar(loader=DataLoader(), variables=known)
    names = ("packages", "helpers", "repository")
    return {name: templar.template(known[f"__nvidia_driver_{name}"]) for name in names}


CASES = [
    (system, source, branch, flavour)
    for system, sources in EXPECTED.items()
    for source, row in sources.items()
    for branch, flavours in row["branches"].items()
    for flavour in flavours
]


@pytest.mark.parametrize(("system", "source", "branch", "flavour"), CASES)
def test_renders_what_was_written_down(system: str, source: str, branch: str, flavour: str) -> None:
    expected = EXPECTED[system][source]
    found = rendered(system, source=source, branch=branch, module=flavour)
    assert found["packages"] == expected["branches"][branch][flavour]
    assert found["helpers"] == expected["helpers"]
    repository = {key: found["repository"].get(key) for key in expected["repository"]}
    assert repository == expected["repository"]


def test_every_system_and_every_branch_that_is_offered_is_written_down() -> None:
    """Whatever the resolver may choose, the role knows packages for."""
    assert set(EXPECTED) == set(SYSTEMS)
    files = {path.name for path in (ROLE / "vars").glob("*-*.yml")}
    assert files == {with_own_file(name)[0] for name in SYSTEMS}
    for name, about in SYSTEMS.items():
        host = Host({"sections": {"os": {"state": "ok", "data": about}}})
        system = driver_sources.system_of(host)
        assert system is not None
        for source in ("distro", "nvidia_repo"):
            for offer in system.offers(source):
                for flavour in offer.modules:
                    found = rendered(
                        name,
                        source=source,
                        branch=offer.branch.number,
                        module=flavour,
                        fabric_manager=offer.fabric_manager,
                    )
                    assert found["packages"], f"{name} {source} {offer.branch.number} {flavour}"
                    fabric = [each for each in found["helpers"] if "fabric" in each]
                    assert bool(fabric) == offer.fabric_manager, f"{name} {source}: {fabric}"


def test_the_subnet_manager_is_installed_beside_the_fabric_manager() -> None:
    found = rendered(
        "ubuntu-24.04",
        source="nvidia_repo",
        branch="580",
        module="open",
        fabric_manager=True,
        subnet_manager={"packages": ["nvlsm"], "modules": ["ib_umad"]},
    )
    assert found["helpers"] == ["nvidia-fabricmanager-580", "nvlsm"]


def test_no_persistence_daemon_where_it_is_not_declared() -> None:
    found = rendered("debian-12", source="distro", branch="535", module="open", persistence=False)
    assert found["helpers"] == []


def test_a_mirror_needs_only_its_address() -> None:
    with_mirror = {"uri": "https://mirror.example/nvidia/"}
    known = rendered("debian-12", source="nvidia_repo", branch="580", module="open")["repository"]
    assert known["uri"].startswith("https://developer.download.nvidia.com/")
    assert {**known, **with_mirror}["fingerprints"] == known["fingerprints"]


PLATFORMS = facts.document("platforms.yml")["platforms"]


@pytest.mark.parametrize("system", sorted(EXPECTED))
def test_the_repository_is_that_of_the_hosts_architecture(system: str) -> None:
    found = {
        arch: rendered(system, arch, source="nvidia_repo", branch="580", module="open")
        for arch in PLATFORMS
    }
    for arch, row in PLATFORMS.items():
        for key in ("uri", "key"):
            assert f"/{row['repository']}/" in found[arch]["repository"][key]
    assert found["aarch64"]["packages"] == found["x86_64"]["packages"]


@pytest.mark.parametrize("arch", sorted(PLATFORMS))
def test_the_runfile_is_that_of_the_hosts_architecture(arch: str) -> None:
    known = {
        **variables("vars/main.yml"),
        "gpu_plan": {"arch": arch, "driver": {"version": "580.95.05"}},
    }
    templar = Templar(loader=DataLoader(), variables=known)
    file = templar.template(known["__nvidia_driver_runfile"])
    assert file == f"NVIDIA-Linux-{arch}-580.95.05.run"
    assert templar.template(known["__nvidia_driver_runfiles"]) == PLATFORMS[arch]["runfile"]


@pytest.mark.parametrize(
    ("family", "kernel", "package"),
    [
        ("redhat", "5.14.0-503.el9.aarch64+64k", "kernel-64k-devel-5.14.0-503.el9.aarch64"),
        ("redhat", "5.14.0-503.el9.x86_64", "kernel-devel-5.14.0-503.el9.x86_64"),
        ("debian", "6.8.0-1028-nvidia-64k", "linux-headers-6.8.0-1028-nvidia-64k"),
        ("debian", "6.12.9+bpo-amd64", "linux-headers-6.12.9+bpo-amd64"),
    ],
)
def test_the_headers_of_a_kernel(family: str, kernel: str, package: str) -> None:
    tasks = yaml.safe_load((ROLE / "tasks/runfile.yml").read_text())
    wanted = next(task for task in tasks if task["name"] == "Install the build dependencies")
    known = {
        **variables("vars/main.yml"),
        "gpu_plan": {"os": {"family": family}},
        "__nvidia_driver_kernels": {"files": [{"path": f"/boot/vmlinuz-{kernel}"}]},
        "wanted": trusted(wanted["vars"]["host_packages"]),
    }
    found = Templar(loader=DataLoader(), variables=known).template(known["wanted"])
    assert found[-1] == package
    # The module and the checks name the same one.
    names = driver_rules.REDHAT_HEADERS if family == "redhat" else driver_rules.DEBIAN_HEADERS
    assert driver_rules.package_of(kernel, names[0]) == package
    manager = {"redhat": "rpm", "debian": "dpkg"}[family]
    snapshot = {"sections": {"packages": {"state": "ok", "data": {"manager": manager}}}}
    assert driver_kernels.headers(Host(snapshot), kernel) == package
