"""Ubuntu servers: the roles run on hosts that say they are Ubuntu 20.04, 22.04 and 24.04.

The packages of driver and kernel are stand-ins with Ubuntu's names, versions and relations
(lab/ubuntu_repository.py); apt, dpkg, DKMS, initramfs-tools, unattended-upgrades and systemd are
Debian's. The tests of a release are one story on the same host, and run in their order.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab import ubuntu_repository
from lab.driver_repository import KEY_FILE
from tests.support.distribution_host import STATE, DistributionHost
from tests.support.lab_fleet import ROOT

# What is installed on each release: kernels and server branches of its archive, old and new.
RELEASES: dict[str, dict[str, str]] = {
    "ubuntu-22.04": {"kernel": "5.15.0-130", "next": "5.15.0-134", "old": "580.126.09",
                     "new": "580.126.20", "other": "595.58.03"},
    "ubuntu-20.04": {"kernel": "5.4.0-200", "next": "5.4.0-216", "old": "535.274.02",
                     "new": "535.288.01", "other": ""},
    "ubuntu-24.04": {"kernel": "6.8.0-52", "next": "6.8.0-60", "old": "580.126.09",
                     "new": "580.126.20", "other": "595.58.03"},
}  # fmt: skip
pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
    pytest.mark.parametrize("host", RELEASES, indirect=True),
]


def driver(version: str, **more: Any) -> dict[str, Any]:
    """A driver from Ubuntu's own archive."""
    return {"branch": version, "source": "distro", **more}


def branch(version: str) -> str:
    return version.partition(".")[0]


@pytest.fixture
def of(host: DistributionHost) -> dict[str, str]:
    """The versions of the host's release."""
    return RELEASES[host.suite]


@pytest.fixture(scope="module")
def booted(host: DistributionHost) -> DistributionHost:
    """The host with a kernel of Ubuntu's, which nothing can boot, and its metapackage."""
    of = RELEASES[host.suite]
    meta = host.on("apt-get update -qq; apt-cache madison linux-generic").splitlines()
    version = next(line.split("|")[1].strip() for line in meta
                   if of["kernel"].replace("-", ".") in line)  # fmt: skip
    names = ("linux-generic", "linux-image-generic", "linux-headers-generic")
    host.apt("install", "--no-install-recommends", *(f"{name}={version}" for name in names))
    return host


def test_a_driver_of_the_distribution_is_installed_held_and_verified(
    booted: DistributionHost, of: dict[str, str]
) -> None:
    before = booted.fleet.state("lab1")
    checked = booted.provision(driver(of["old"]), "--check", "--diff").stdout
    assert "failed=0" in checked
    assert booted.fleet.state("lab1") == before
    booted.provision(driver(of["old"]))
    booted.works(driver(of["old"]), of["old"])
    assert booted.modules() == {f"{of['kernel']}-generic": of["old"]}
    assert set(booted.driver_packages()) <= set(booted.on("apt-mark showhold").split())


def test_check_mode_of_an_upgrade_says_it_and_changes_nothing(
    booted: DistributionHost, of: dict[str, str]
) -> None:
    before, packages = booted.fleet.state("lab1"), booted.driver_packages()
    output = booted.provision(driver(of["new"]), "--check", "--diff").stdout
    assert of["new"] in output
    assert (booted.fleet.state("lab1"), booted.driver_packages()) == (before, packages)


def test_an_upgrade_at_night_brings_the_kernel_with_the_module_and_leaves_the_driver(
    booted: DistributionHost, of: dict[str, str]
) -> None:
    packages = booted.driver_packages()
    output = booted.on("apt-get update -qq; unattended-upgrade --verbose 2>&1")
    assert "linux-generic" in output
    assert booted.driver_packages() == packages
    assert booted.modules() == {
        f"{kernel}-generic": of["old"] for kernel in (of["kernel"], of["next"])
    }
    booted.works(driver(of["old"]), of["old"])


def test_a_killed_upgrade_is_finished_by_the_next_run(
    booted: DistributionHost, of: dict[str, str]
) -> None:
    booted.on("mkdir -p /run/stand-in; echo 3 >/run/stand-in/build")
    name = "nvidia" if booted.receipt()["module"] == "open" else "nvidia-srv"
    building = f"test -d /var/lib/dkms/{name}/{of['new']}/build"
    booted.fleet.killed(building, *booted.command(driver(of["new"])))
    booted.on("rm -r /run/stand-in")
    assert booted.receipt()["version"] == of["old"], "the kill came too late"
    booted.provision(driver(of["new"]))
    booted.works(driver(of["new"]), of["new"])


def test_nothing_of_the_version_before_stays_behind(
    booted: DistributionHost, of: dict[str, str]
) -> None:
    """Ubuntu's firmware has the driver's version in its name: the old one was held for ever."""
    assert {version.partition("-")[0] for version in booted.driver_packages().values()} == {
        of["new"]}  # fmt: skip


def test_a_rollback_needs_no_archive(booted: DistributionHost, of: dict[str, str]) -> None:
    booted.on("mv /srv/archive /srv/away")
    booted.rollback()
    booted.on("mv /srv/away /srv/archive")
    booted.works(driver(of["old"]), of["old"])


def test_the_kind_of_module_changes_and_back(booted: DistributionHost, of: dict[str, str]) -> None:
    for module in ("proprietary", "open"):
        declaration = driver(of["new"], module=module)
        booted.provision(declaration)
        booted.works(declaration, of["new"])
        assert booted.receipt()["module"] == module


def test_another_branch_takes_the_place_of_the_first(
    booted: DistributionHost, of: dict[str, str]
) -> None:
    if not of["other"]:
        pytest.skip("this release's archive has one branch of open modules that is offered")
    booted.provision(driver(branch(of["other"])))
    booted.works(driver(branch(of["other"])), of["other"])
    assert not [name for name in booted.driver_packages() if branch(of["new"]) in name]
    booted.rollback()
    booted.works(driver(of["new"]), of["new"])


def test_the_persistence_daemon_runs_with_the_mode_on(booted: DistributionHost) -> None:
    """Ubuntu's unit has the mode off and no [Install]: its restart, as a remedy, did not help."""
    booted.on("[ -e /dev/nvidia0 ] || mknod -m 666 /dev/nvidia0 c 203 0")
    known = {"gpu_plan": {"driver": {"persistence": True, "fabric_manager": False},
                          "os": {"family": "debian"}},
             "gpu_changes": [], "__nvidia_driver_modules": {"cards": 1}}  # fmt: skip
    words = [ROOT / ".venv/bin/ansible", "lab1", "--become", "--module-name", "include_role",
             "--args", "name=gpufleet.gpu.nvidia_driver tasks_from=services", "-e",
             json.dumps(known)]  # fmt: skip
    booted.fleet.run(*words)
    again = booted.fleet.run(*words).stdout
    assert "CHANGED" not in again
    output = booted.on("systemctl is-enabled nvidia-persistenced; systemctl is-active"
                     " nvidia-persistenced; cat /run/nvidia-persistenced/stand-in")  # fmt: skip
    assert output.split()[:2] == ["enabled", "active"]
    assert "--persistence-mode" in output.split()
    booted.on("systemctl disable --now nvidia-persistenced 2>&1; rm /dev/nvidia0;"
              " rm -r /etc/systemd/system/nvidia-persistenced.service.d;"
              " systemctl daemon-reload")  # fmt: skip


def test_the_driver_goes_with_all_that_came_with_it(booted: DistributionHost) -> None:
    booted.fleet.gpufleet("remove", "--driver")
    assert booted.driver_packages() == {}
    assert booted.on("apt-mark showhold") == ""
    gone = "/etc/apt/preferences.d/gpufleet-driver /etc/apt/apt.conf.d/52gpufleet-driver"
    assert booted.on(f"ls {gone} {STATE}/journal/* 2>/dev/null || :") == ""
    assert set(booted.modules().values()) == {"none"}


def test_nvidias_repository_gives_way_to_nothing_else(
    booted: DistributionHost, of: dict[str, str], tmp_path: Path
) -> None:
    """A key of others for the same address, and the distribution's packages of the same name."""
    release = booted.suite.rpartition("-")[2]
    fingerprint = ubuntu_repository.nvidia(release, tmp_path / "nvidia")
    booted.deliver(tmp_path / "nvidia", "/srv/nvidia")
    booted.on(
        "mkdir -p /etc/apt/trusted.gpg.d; cp /srv/nvidia/key.asc"
        " /etc/apt/trusted.gpg.d/cuda-keyring.asc;"
        " echo 'deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg]"
        " copy:/srv/nvidia ./' >/etc/apt/sources.list.d/cuda-ubuntu-x86_64.list"
    )
    repository = {"uri": "copy:/srv/nvidia", "suite": "./", "fingerprints": [fingerprint],
                  "key": f"file:///srv/nvidia/{KEY_FILE}", "pin": "release o=NVIDIA"}  # fmt: skip
    declaration = {"branch": "570", "source": "nvidia_repo"}
    more = {"nvidia_driver_repository": repository}
    booted.provision(declaration, **more)
    booted.works(declaration, "570.124.06", **more)
    # The file of that entry stays, without it: only lines are removed from a `.list`.
    assert booted.on("grep -rhs '^deb.*srv/nvidia' /etc/apt/sources.list.d/*.list || :") == ""
    assert booted.on("ls /etc/apt/trusted.gpg.d | grep cuda || :") == ""
    assert booted.on("apt-get update 2>&1 | grep '^[WE]:' || :") == ""
    booted.fleet.gpufleet("remove", "--driver")
    assert booted.driver_packages() == {}
    assert (
        booted.on(
            "find /etc/apt -name '*gpufleet*'; grep -rlsE '^(deb|URIs).*srv/nvidia' /etc/apt || :"
        )
        == ""
    )


def test_the_nightly_pass_is_a_document(booted: DistributionHost, of: dict[str, str]) -> None:
    booted.provision(driver(of["new"]))
    document = json.loads(booted.fleet.gpufleet(
        "verify", "--json", "-e", booted.declared(driver(of["new"]))).stdout)  # fmt: skip
    assert document["hosts"]["lab1"]["verdict"] == "PASS"
