"""The roles run on Rocky Linux 9: NVIDIA's driver by dnf, locked, upgraded, rolled back, removed.

The host is a stand-in (lab/host/redhat.py): dnf, rpm, DKMS and systemd are real, the packages have
the names, versions and relations of the catalog's distributions/redhat.yml and little inside.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.lab_fleet import ROOT, Fleet
from tests.support.redhat_host import LOCKS, NEW, NVIDIA, OLD, STATE, RedHatHost

pytestmark = pytest.mark.lab

UP, ARTIFACTS = ("--hosts", "lab1", "--suite", "rocky-9"), ("--cuda", "8.0")
BLACKLIST = "/etc/modprobe.d/gpufleet-nouveau.conf"


@pytest.fixture(scope="module")
def rocky(fleet: Fleet) -> RedHatHost:
    """A fresh Rocky Linux 9."""
    return RedHatHost(fleet, "9")


@pytest.fixture
def host(rocky: RedHatHost) -> RedHatHost:
    """The same with EPEL and the older driver, whole."""
    rocky.enable_epel()
    rocky.install(OLD)
    return rocky


def test_the_driver_is_installed_and_no_upgrade_replaces_it(rocky: RedHatHost) -> None:
    # dkms is in EPEL alone; the remedy is run as it is printed.
    said = rocky.refused(OLD, "No enabled repository has dkms", "Nothing was changed")
    assert "dnf install epel-release on Rocky Linux" in said
    rocky.enable_epel()
    rocky.install(OLD)
    rocky.works(OLD)
    rocky.on("dnf --assumeyes --quiet upgrade --refresh")
    assert set(rocky.packages().values()) == {OLD}


@pytest.mark.slow
def test_check_mode_reports_the_driver_and_changes_nothing(rocky: RedHatHost) -> None:
    rocky.on("dnf --assumeyes --quiet remove 'kmod-nvidia*' 'nvidia-*' 'libnvidia-*' || :")
    rocky.on(f"rm -rf {STATE} /etc/yum.repos.d/gpufleet-nvidia.repo; : >{LOCKS}; dkms status")
    before = rocky.fleet.state("lab1")
    done = rocky.install(OLD, "--check", "--diff")
    assert "changed=0 " not in done.stdout
    assert rocky.fleet.state("lab1") == before
    assert rocky.packages() == {}


@pytest.mark.slow
def test_another_branch_is_installed_and_rolled_back_without_a_repository(host: RedHatHost) -> None:
    host.install(NEW)
    host.works(NEW)
    host.on(f"mv {NVIDIA} {NVIDIA}.away; dnf clean all")
    host.playbook("rollback")
    host.on(f"mv {NVIDIA}.away {NVIDIA}")
    host.works(OLD)


@pytest.mark.slow
def test_automatic_upgrades_at_night_leave_the_driver_alone(host: RedHatHost) -> None:
    host.on("dnf --assumeyes --quiet install dnf-automatic")
    host.on("sed -i 's/^apply_updates = no/apply_updates = yes/' /etc/dnf/automatic.conf")
    host.on("dnf-automatic --installupdates /etc/dnf/automatic.conf")
    host.works(OLD)


@pytest.mark.slow
def test_a_new_kernel_gets_its_headers_and_the_module(host: RedHatHost) -> None:
    repository = "--repofrompath later,file:///srv/rocky/later --nogpgcheck"
    host.on(f"dnf --assumeyes --quiet upgrade {repository}")
    newer = host.kernels[1]
    assert newer in host.on("ls /lib/modules")
    assert "nvidia" in host.on(f"ls /lib/modules/{newer}/extra")
    host.works(OLD)
    host.on(f"dnf --assumeyes --quiet remove 'kernel*-{newer}'; ls /boot")


@pytest.mark.slow
def test_a_killed_installation_is_finished_by_the_next_run(host: RedHatHost) -> None:
    new = f"rpm -q nvidia-kmod-common-{NEW} >/dev/null 2>&1"
    host.fleet.killed(new, *host.command(NEW))
    assert host.verdicts(NEW, status=1)["driver.packages"]["verdict"] == "FAIL"
    host.install(NEW)
    host.works(NEW)


@pytest.mark.slow
def test_podman_gets_the_container_toolkit_which_no_upgrade_replaces(rocky: RedHatHost) -> None:
    place = "/srv/containers/x86_64"
    declared = {
        "gpu_containers": {"engine": "podman"},
        "nvidia_docker_repo_url": "file:///srv/containers",
        "nvidia_docker_repo_key": f"file://{place}/key.asc",
        "nvidia_docker_repo_key_fingerprint": rocky.on(f"cat {place}/fingerprint").strip(),
    }
    words: list[str | Path] = [ROOT / ".venv/bin/ansible-playbook", "playbooks/site.yml", "-e"]
    words.append(json.dumps({"gpu_stacks": [], **declared}))
    before = rocky.on("rpm -qa | sort")
    assert "changed=0 " not in rocky.fleet.run(*words, "--check").stdout
    assert rocky.on("rpm -qa | sort") == before
    rocky.fleet.run(*words)
    assert "changed=0 " in rocky.fleet.run(*words).stdout
    assert rocky.on(f"rpm -q podman nvidia-container-toolkit; grep -c container {LOCKS}")
    rocky.fleet.run(*words[:-1], json.dumps({"gpu_stacks": [], "gpu_containers": None}))


@pytest.mark.slow
def test_the_driver_is_removed_with_all_that_came_with_it(host: RedHatHost) -> None:
    host.fleet.gpufleet("remove", "--driver")
    assert host.packages() == {}
    assert host.on("rpm -qa | grep -E 'dkms|kernel-devel|versionlock'", None) == ""
    gone = f"{STATE}/driver /etc/yum.repos.d/gpufleet-nvidia.repo {BLACKLIST}"
    assert host.on(f"ls {gone}", None) == ""
    assert host.on(f"grep nvidia {LOCKS}; dkms status; ls {STATE}/receipts", None) == ""
