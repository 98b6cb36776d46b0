"""What breaks a driver on Red Hat's family in public threads: each situation is made on a host of
Rocky Linux 9, and what gpufleet says or does there is right.

Not tried, since a container can have none of them: SELinux's labels, fapolicyd and Secure Boot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.lab_fleet import Fleet
from tests.support.redhat_host import LOCKS, OLD, RedHatHost

pytestmark = [pytest.mark.lab, pytest.mark.slow]

UP, ARTIFACTS = ("--hosts", "lab1", "--suite", "rocky-9"), ("--cuda", "8.0")
REPOS = "/etc/yum.repos.d"
DNF = "dnf --assumeyes --quiet"


@dataclass
class Breakage:
    """A situation on a host with EPEL and no driver."""

    source: str
    make: str  # shell, on the host
    undo: str = ""
    # Packages of others to build before: (name, version, relations).
    packages: list[tuple[str, str, dict[str, list[str]]]] = field(default_factory=list)
    told: tuple[str, ...] = ()  # what the refusal says; without it the driver is installed
    version: str = OLD
    more: dict[str, Any] = field(default_factory=dict)
    after: str = ""  # shell that succeeds on the host afterwards


BREAKAGES = {
    "another module stream is enabled than the declared branch": Breakage(
        source="https://github.com/instructlab/instructlab/pull/3222",
        make="mkdir -p /etc/dnf/modules.d; printf '[nvidia-driver]\\nname=nvidia-driver\\n"
        "stream=580-open\\nprofiles=\\nstate=enabled\\n' >/etc/dnf/modules.d/nvidia-driver.module",
        undo="rm -f /etc/dnf/modules.d/nvidia-driver.module",
    ),
    "the default stream hides the proprietary modules": Breakage(
        source="https://github.com/ComputeCanada/puppet-magic_castle/issues/374",
        make=":",
        more={"driver": {"module": "proprietary"}},
        after="rpm -q kmod-nvidia-latest-dkms",
    ),
    "a driver of RPM Fusion is installed": Breakage(
        source="https://github.com/gridhead/nvidia-auto-installer-for-fedora-linux/issues/82",
        packages=[("akmod-nvidia", "470.74-1.el9", {})],
        make=f"{DNF} install /srv/others/akmod-nvidia-*.rpm",
        undo=f"{DNF} remove akmod-nvidia",
        told=("A driver of another repository is installed (akmod-nvidia", "dnf remove akmod-nvid"),
    ),
    "dnf.conf excludes the driver": Breakage(
        source="https://discussion.fedoraproject.org/t/dnf-exclude/104982",
        make="echo 'exclude=kmod-nvidia* nvidia*' >>/etc/dnf/dnf.conf",
        undo="sed -i /^exclude=/d /etc/dnf/dnf.conf",
        told=("available: none", "excludepkgs= line in /etc/dnf/dnf.conf", "remove that line"),
    ),
}


@pytest.fixture(scope="module")
def rocky(fleet: Fleet) -> RedHatHost:
    """Rocky Linux 9 with EPEL."""
    host = RedHatHost(fleet, "9")
    host.enable_epel()
    return host


@pytest.mark.parametrize("name", BREAKAGES)
def test_the_situation_is_handled(rocky: RedHatHost, name: str) -> None:
    case = BREAKAGES[name]
    rocky.on(f"rm -rf /srv/others; rm -f {REPOS}/gpufleet-nvidia.repo; rm -rf /var/lib/gpufleet")
    for package, version, relations in case.packages:
        rocky.package(package, version, relations=relations)
    rocky.on(case.make)
    before = rocky.packages()
    try:
        if case.told:
            rocky.refused(case.version, *case.told, **case.more)
            assert rocky.packages() == before
        else:
            rocky.install(case.version, **case.more)
            assert set(rocky.packages().values()) == {case.version}
            assert len(rocky.locked()) == len(rocky.packages())
        if case.after:
            rocky.on(case.after)
    finally:
        rocky.on(case.undo or ":")
        rocky.on(
            f"{DNF} --disableplugin=versionlock --setopt=clean_requirements_on_remove=0"
            " remove '*nvidia*' dkms 'kernel-devel*'",
            None,
        )
        rocky.on(f"test ! -e {LOCKS} || sed -i /nvidia/d {LOCKS}")
