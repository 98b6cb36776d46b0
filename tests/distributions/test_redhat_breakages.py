"""What breaks a driver on Red Hat's family in public threads: each situation is made on a host of
Rocky Linux 9, and what gpufleet says or does there is right.

Not tried, since a container can have none of them: SELinux's labels, fapolicyd and Secure Boot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.lab_fleet import Fleet
from tests.support.redhat_host import FACTS, LOCKS, NEW, NVIDIA, OLD, RedHatHost

pytestmark = [pytest.mark.lab, pytest.mark.slow]

UP, ARTIFACTS = ("--hosts", "lab1", "--suite", "rocky-9"), ("--cuda", "8.0")
KERNEL = FACTS["releases"]["9"]["kernels"][0]
REPOS = "/etc/yum.repos.d"
OTHERS = "--disablerepo=* --repofrompath others,/srv/others --nogpgcheck"
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
    "precompiled modules are installed beside": Breakage(
        source="https://github.com/NVIDIA/yum-packaging-precompiled-kmod/issues/50",
        make=f"{DNF} --repofrompath n,{NVIDIA} --nogpgcheck --setopt=n.module_hotfixes=1 install"
        f" kmod-nvidia-{NEW}-{KERNEL.rpartition('.')[0]} nvidia-driver-cuda-{NEW}",
        more={"driver": {"module": "proprietary"}},
        after="! rpm -qa | grep kmod-nvidia-580",
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
    "somebody locked another version of the driver": Breakage(
        source="https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/version-locking.html",
        make=f"{DNF} install python3-dnf-plugin-versionlock;"
        f" printf 'nvidia-driver-cuda-3:{NEW}-1.el9.*\\nbash-0:1.0-1.el9.*\\n' >{LOCKS}",
        after=f"grep bash {LOCKS} && ! grep {NEW} {LOCKS}",
        undo=f"sed -i /bash/d {LOCKS}",
    ),
    "version locks are switched off": Breakage(
        source="https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/version-locking.html",
        make="echo plugins=0 >>/etc/dnf/dnf.conf",
        undo="sed -i /^plugins=0/d /etc/dnf/dnf.conf",
        told=("dnf.conf has plugins=0", "dnf ignores version locks"),
    ),
    "the headers of the installed kernel are in no repository any more": Breakage(
        source="https://github.com/dkms-project/dkms/issues/59",
        make=f"sed -i 's/^\\[baseos\\]/&\\nexcludepkgs=kernel-devel*{KERNEL}*/' {REPOS}/rocky.repo;"
        f" printf '[later]\\nname=later\\nbaseurl=file:///srv/rocky/later\\ngpgcheck=0\\n'"
        f" >{REPOS}/later.repo",
        undo=f"sed -i /^excludepkgs=/d {REPOS}/rocky.repo; rm -f {REPOS}/later.repo",
        told=("change or remove a kernel (kernel-core)", "dnf upgrade 'kernel*'", "reboot"),
    ),
    "EPEL's dkms is older than the modules' package requires": Breakage(
        source="https://github.com/stackhpc/ansible-slurm-appliance/pull/703",
        packages=[("dkms", "3.1.2-1.el9", {})],
        make=f"createrepo_c -q /srv/others; mv {REPOS}/epel.repo /srv/epel.repo;"
        f" printf '[old]\\nname=old\\nbaseurl=file:///srv/others\\ngpgcheck=0\\n'"
        f" >{REPOS}/old.repo",
        undo=f"mv /srv/epel.repo {REPOS}/epel.repo; rm -f {REPOS}/old.repo",
        told=("nothing provides dkms >= 3.1.8", "nothing was changed"),
    ),
    "RHEL is not registered": Breakage(
        source="https://github.com/NVIDIA/nvidia-docker/issues/1416",
        make="cp /etc/os-release /srv/os-release; sed -i s/^ID=.*/ID=rhel/ /etc/os-release;"
        " mkdir /srv/repos;"
        f" mv {REPOS}/rocky.repo {REPOS}/epel.repo /srv/repos",
        undo=f"cp /srv/os-release /etc/os-release; mv /srv/repos/* {REPOS}; rmdir /srv/repos",
        told=("not registered with Red Hat", "subscription-manager register"),
    ),
    "the repository's packages are signed with another key": Breakage(
        source="https://developer.nvidia.com/blog/updating-the-cuda-linux-gpg-repository-key/",
        make="/usr/libexec/platform-python /usr/lib/stand-in/redhat.py nvidia /srv/nvidia/second"
        f" {OLD} >/srv/fingerprint; cp {NVIDIA}/key.asc {NVIDIA}/fingerprint /srv/nvidia/second/",
        undo="rm -rf /srv/nvidia/second",
        more={"place": "/srv/nvidia/second"},
        told=("could not be installed", "GPG", "None of its packages is installed"),
    ),
    "the declared fingerprint is not the repository's": Breakage(
        source="https://developer.nvidia.com/blog/updating-the-cuda-linux-gpg-repository-key/",
        make=f"cp -R {NVIDIA} /srv/nvidia/third; printf '%040d' 7 >/srv/nvidia/third/fingerprint",
        undo="rm -rf /srv/nvidia/third",
        more={"place": "/srv/nvidia/third"},
        told=("fingerprint",),
    ),
    "CUDA and cuDNN are there from dnf": Breakage(
        source="https://docs.nvidia.com/cuda/cuda-installation-guide-linux/",
        packages=[("cuda-toolkit-12-4", "12.4.1-1", {}), ("libcudnn9-cuda-12", "9.1.0-1", {})],
        make=f"{DNF} install /srv/others/cuda-toolkit-*.rpm /srv/others/libcudnn9-*.rpm",
        after="rpm -q cuda-toolkit-12-4 libcudnn9-cuda-12",
        undo=f"{DNF} remove cuda-toolkit-12-4 libcudnn9-cuda-12",
    ),
    "NVIDIA's repository is configured by hand": Breakage(
        source="https://github.com/rocky-linux/documentation/pull/2937",
        make="printf '[cuda-rhel9-x86_64]\\nname=cuda\\nbaseurl=https://developer.download.nvidia.com"
        f"/compute/cuda/repos/rhel9/x86_64\\n' >{REPOS}/cuda-rhel9.repo",
        after=f"! ls {REPOS}/cuda-rhel9.repo",
    ),
    "/tmp and /var/tmp are noexec": Breakage(
        source="https://github.com/stackhpc/ansible-collection-linux/pull/4",
        make="for at in /tmp /var/tmp; do mount -t tmpfs -o noexec tmpfs $at; done",
        undo="umount /tmp /var/tmp",
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
