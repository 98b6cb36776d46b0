"""The roles run on Rocky Linux 8, 9 and 10: NVIDIA's driver by dnf, locked, upgraded, removed.

The hosts are stand-ins (lab/host/redhat.py): dnf, rpm, DKMS and systemd are real, the packages have
the names, versions and relations of the catalog's distributions/redhat.yml and little inside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.lab_fleet import fresh, lab
from tests.support.redhat_host import LOCKS, NVIDIA, STATE, RedHatHost

SUITES = ("rocky-9", "rocky-8", "rocky-10")
pytestmark = [
    pytest.mark.lab,
    pytest.mark.parametrize(
        "rocky",
        [pytest.param(name, marks=[pytest.mark.slow] * (name != "rocky-9")) for name in SUITES],
        indirect=True,
    ),
]


@pytest.fixture(scope="module")
def rocky(request: pytest.FixtureRequest) -> Iterator[RedHatHost]:
    """A fresh Rocky Linux."""
    suite: str = request.param
    with fresh(suite.replace("-", "")) as fleet:
        lab(fleet, "up", "--hosts", "lab1", "--suite", suite)
        yield RedHatHost(fleet, suite.partition("-")[2])


@pytest.fixture
def host(rocky: RedHatHost) -> RedHatHost:
    """Rocky Linux with EPEL and the older driver, undamaged."""
    rocky.enable_epel()
    rocky.install(rocky.old)
    return rocky


def test_the_driver_is_installed_and_no_upgrade_replaces_it(rocky: RedHatHost) -> None:
    # dkms is in EPEL alone; the remedy is run as it is printed.
    output = rocky.refused(rocky.old, "No enabled repository has dkms", "Nothing was changed")
    assert "dnf install epel-release on Rocky Linux" in output
    rocky.enable_epel()
    rocky.install(rocky.old)
    rocky.works(rocky.old)
    rocky.on("dnf --assumeyes --quiet upgrade --refresh")
    assert set(rocky.packages().values()) == {rocky.old}


@pytest.mark.slow
def test_another_branch_is_installed_and_rolled_back_without_a_repository(host: RedHatHost) -> None:
    host.install(host.new)
    host.works(host.new)
    host.on(f"mv {NVIDIA} {NVIDIA}.away; dnf clean all")
    host.playbook("rollback")
    host.on(f"mv {NVIDIA}.away {NVIDIA}")
    host.works(host.old)


@pytest.mark.slow
def test_automatic_upgrades_at_night_leave_the_driver_alone(host: RedHatHost) -> None:
    host.on("dnf --assumeyes --quiet install dnf-automatic")
    host.on("sed -i 's/^apply_updates = no/apply_updates = yes/' /etc/dnf/automatic.conf")
    host.on("dnf-automatic --installupdates /etc/dnf/automatic.conf")
    host.works(host.old)


@pytest.mark.slow
def test_a_new_kernel_gets_its_headers_and_the_module(host: RedHatHost) -> None:
    repository = "--repofrompath later,file:///srv/rocky/later --nogpgcheck"
    host.on(f"dnf --assumeyes --quiet upgrade {repository}")
    newer = host.kernels[1]
    assert newer in host.on("ls /lib/modules")
    assert "nvidia" in host.on(f"ls /lib/modules/{newer}/extra")
    host.works(host.old)
    host.on(f"dnf --assumeyes --quiet remove 'kernel*-{newer}'; ls /boot")


@pytest.mark.slow
def test_check_mode_tells_the_upgrade_and_changes_nothing(host: RedHatHost) -> None:
    before, packages = host.fleet.state("lab1"), host.packages()
    output = host.install(host.new, "--check", "--diff").stdout
    assert host.new in output
    assert "failed=0" in output
    assert (host.fleet.state("lab1"), host.packages()) == (before, packages)


@pytest.mark.slow
def test_a_killed_upgrade_is_finished_by_the_next_run(host: RedHatHost) -> None:
    host.on("mkdir -p /run/stand-in; echo 3 >/run/stand-in/build")
    host.fleet.killed(f"test -d /var/lib/dkms/nvidia*/{host.new}/build", *host.command(host.new))
    host.on("rm -r /run/stand-in")
    assert host.on(f"ls {STATE}/journal") != ""
    host.install(host.new)
    host.works(host.new)
    host.playbook("rollback")
    host.works(host.old)


def toolkit_repository(host: RedHatHost) -> dict[str, str]:
    """The variables that name the stand-in's repository of the container toolkit."""
    key = "/srv/containers/x86_64"
    return {
        "nvidia_docker_repo_url": "file:///srv/containers",
        "nvidia_docker_repo_key": f"file://{key}/key.asc",
        "nvidia_docker_repo_key_fingerprint": host.on(f"cat {key}/fingerprint").strip(),
    }


@pytest.mark.slow
def test_podmans_container_toolkit_is_installed_locked_and_removed(host: RedHatHost) -> None:
    declared: dict[str, Any] = {"gpu_containers": {"engine": "podman"}, **toolkit_repository(host)}
    host.install(host.old, **declared)
    toolkit = host.on("rpm -qa --qf '%{NAME}\\n' | grep nvidia-container").split()
    assert len(toolkit) == 4
    locks = host.on(f"cat {LOCKS}")
    assert all(f"{name}-" in locks for name in toolkit)
    # Podman is a stand-in that runs nothing: a second run finds it not in order, and is not tried.
    host.on("dnf --assumeyes --quiet upgrade --refresh")
    assert host.on("rpm -qa --qf '%{NAME}\\n' | grep nvidia-container").split() == toolkit
    host.fleet.gpufleet("remove", "--containers", "-e", host.declared(host.old, **declared))
    assert host.on("rpm -qa | grep nvidia-container || :") == ""
    assert "nvidia-container" not in host.on(f"cat {LOCKS}")
    host.works(host.old)


@pytest.mark.slow
def test_docker_of_its_own_repository_is_installed_and_stays_at_removal(host: RedHatHost) -> None:
    stable = f"/srv/docker/{host.major}/x86_64/stable"
    declared: dict[str, Any] = {
        "gpu_containers": {"engine": "docker", "source": "docker_repo"},
        "nvidia_docker_docker_url": "file:///srv/docker",
        "nvidia_docker_docker_key": f"file://{stable}/key.asc",
        "nvidia_docker_docker_key_fingerprint": host.on(f"cat {stable}/fingerprint").strip(),
        **toolkit_repository(host),
    }
    before = host.fleet.state("lab1")
    output = host.install(host.old, "--check", **declared).stdout
    assert "docker-ce" in output
    assert host.fleet.state("lab1") == before
    host.install(host.old, **declared)
    host.on("rpm -q docker-ce docker-ce-cli containerd.io nvidia-container-toolkit")
    host.on("systemctl is-active --quiet docker && systemctl is-enabled --quiet docker")
    # What Docker has read, not what its file says.
    shown = json.loads(host.on("docker info --format '{{json .}}'"))
    assert (shown["LiveRestoreEnabled"], "nvidia" in shown["Runtimes"]) == (True, True)
    locks = host.on(f"cat {LOCKS}")
    assert "nvidia-container-toolkit-" in locks
    assert "docker-ce" not in locks
    assert "changed=0 " in host.install(host.old, **declared).stdout
    host.fleet.gpufleet("remove", "--containers", "-e", host.declared(host.old, **declared))
    assert host.on("rpm -qa | grep nvidia-container || :") == ""
    host.on("rpm -q docker-ce && systemctl is-active --quiet docker")
    assert "nvidia" not in host.on("docker info --format '{{json .}}'; cat /etc/docker/daemon.json")
    # Docker is updated from its repository as long as it is there.
    repositories = host.on("ls /etc/yum.repos.d")
    assert ("gpufleet-docker.repo" in repositories, "toolkit" in repositories) == (True, False)
    host.works(host.old)


@pytest.mark.slow
def test_the_driver_goes_with_all_that_came_with_it(host: RedHatHost) -> None:
    host.fleet.gpufleet("remove", "--driver")
    assert host.packages() == {}
    assert host.locked() == set()
    gone = "/etc/yum.repos.d/gpufleet-nvidia.repo /etc/pki/rpm-gpg/RPM-GPG-KEY-gpufleet-nvidia.asc"
    assert host.on(f"ls {gone} {STATE}/journal/* 2>/dev/null || :") == ""
    assert host.on("find /lib/modules -name 'nvidia*.ko*'") == ""
